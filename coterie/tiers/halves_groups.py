"""Group clients by the updates that halves of their samples make to one frozen model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from coterie.core.registry import register
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.tiers.landmarks import MAX_COMPARED, Floats, lowest_keys
from coterie.tiers.procedure import ProcedureStep
from coterie.tiers.split_test import ERROR_RATE, SplitTest
from coterie.tiers.tree_test import CountedByHalves, count_by_halves, directions
from coterie.tiers.view import View

HALF_ROWS = "half_onboarding_rows"
"""Name of the state array, (m, 1 + 2 W), of every client's number of samples and onboarding row, zeros at first."""


@register("group-by-halves")
@dataclass(frozen=True)
class GroupByHalves(ProcedureStep):
    """Groups clients by the updates that halves of their samples make to a frozen model; tests decide how many groups.

    In every round with new clients, `count_by_halves` counts the groups among all clients that have joined so far. If
    there are more groups than before, all clients are regrouped by k-means on directions; otherwise the new clients
    join the nearest group. The number of groups never falls. The tests of round t use the share 6 / (pi^2 t^2) of the
    error rate.

    Example:
        >>> from coterie.tiers import GroupByHalves
        >>> GroupByHalves(rate=0.01).onboards
        True
    """

    rate: float = ERROR_RATE
    """Largest probability that a run without groups has more than one cluster."""
    most: int = MAX_COMPARED
    """Largest number of clients that are compared with each other."""
    onboards: ClassVar[bool] = True
    by_halves: ClassVar[bool] = True
    reveals: ClassVar[Mapping[str, str]] = {
        "anchor": "the update that each half of its samples makes to a frozen model, sent once, folded to 256 numbers"
    }

    def server_propose(self, view: View) -> Regroup | None:
        if "anchor" not in view.rows or not len(view.answered):
            return None
        sent = view.state.arrays[HALF_ROWS].value.double().numpy()
        places = np.flatnonzero(sent[:, 0] > 0)
        places = places[np.argsort(view.hashes[places], kind="stable")]
        counted = self._counted(view, sent, places)
        view.statistics.extend(test.statistic for test in counted.tests)
        first, second = np.split(sent[places, 1:], 2, axis=1)
        points = directions(directions(first) + directions(second))
        before = view.choice.numpy()[places]
        groups = np.unique(before[before >= 0])
        K = min(max(len(groups), counted.K), len(np.unique(points, axis=0)))
        if len(groups) == 0 or len(groups) < K:
            return self._grouped_anew(view, places, points, K, counted.tests)
        return self._joined(view, places, points, groups)

    def _counted(self, view: View, sent: Floats, places: Positions) -> CountedByHalves:
        """Return the number of groups that tests find among the clients at these positions that have two halves."""
        halves = np.split(sent[:, 1:], 2, axis=1)
        both = places[np.all([(half[places] != 0).any(axis=1) for half in halves], axis=0)]
        both = both[lowest_keys(view.hashes[both], self.most)]
        rate = self.rate * 6 / (math.pi * (view.round + 1)) ** 2
        return count_by_halves(halves[0][both], halves[1][both], sent[both, 0], rate)

    @staticmethod
    def _grouped_anew(view: View, places: Positions, points: Floats, K: int, tests: Sequence[SplitTest]) -> Regroup:
        """Return K groups of all clients that have joined, each with the model of its largest previous cluster."""
        from coterie.server.clustering.kmeans import kmeans  # here, because nodes import tiers but never cluster

        labels = kmeans(points, K, 0).labels
        before = view.choice.numpy()[places]
        order = sorted(range(K), key=lambda k: _first_parent(before[labels == k]))
        new = []
        for k in order:
            inside = labels == k
            parents = tuple(int(old) for old in np.unique(before[inside]) if old >= 0)
            new.append(NewCluster(parents, "larger", tuple(view.clients[i] for i in places[inside])))
        accepted = [test.sentence for test in tests if test.accepted]
        arrived = f"{len(view.answered)} clients came"
        kind = "split" if bool((before >= 0).any()) else "arrival"
        return Regroup(tuple(new), kind, "; ".join([arrived, *accepted]), hard=True)

    @staticmethod
    def _joined(view: View, places: Positions, points: Floats, groups: npt.NDArray[np.int64]) -> Regroup:
        """Return the clusters, with each new client in the one whose mean direction is nearest to its own."""
        before = view.choice.numpy()[places]
        means = directions(np.stack([points[before == k].mean(axis=0) for k in groups]))
        nearest = (points @ means.T).argmax(axis=1)
        new = tuple(
            NewCluster((int(k),), "copy", tuple(view.clients[i] for i in places[(before < 0) & (nearest == at)]))
            for at, k in enumerate(groups)
        )
        return Regroup(new, "arrival", f"{len(view.answered)} clients came", hard=True)


def _first_parent(before: npt.NDArray[np.int64]) -> int:
    """Return the lowest old cluster of these members, or a number above all clusters if all of them are new."""
    known = before[before >= 0]
    return int(known.min()) if len(known) else np.iinfo(np.int64).max
