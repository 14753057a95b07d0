"""Trials of splits with the clients: an update of one half of their samples, a comparison on the other half."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from coterie.client.tasks.half_losses import HalfLosses
from coterie.client.tasks.half_update import HalfUpdate
from coterie.core.clusters import Clusters, Params, unflat
from coterie.core.federation import positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.methods.asking import Cost
from coterie.methods.run import Run
from coterie.tiers.landmarks import with_the_rest
from coterie.tiers.split_test import FEWEST, Parting, SplitTest, parted, split_test
from coterie.tiers.view import View


@dataclass(frozen=True)
class RoundTrials:
    """The trials of one round, with their cost."""

    run: Run
    cost: Cost = field(default_factory=Cost)

    def split_tests(
        self, view: View, partings: Sequence[Parting], least: int, most: int, level: float
    ) -> Sequence[SplitTest]:
        """Return the test of every cluster with at least `least` members that have two samples."""
        candidates = list(self._candidates(view, partings, least, most))
        return list(self._compare(view, candidates, level)) if candidates else []

    def _candidates(self, view: View, partings: Sequence[Parting], least: int, most: int) -> Iterator[_Candidate]:
        """Ask for updates on half of the samples, and part the members of each cluster by them."""
        sizes = self.run.federation.sizes
        rows = self._updates(view)
        for k in range(view.K):
            members = np.array([place for place in view.members(k) if place in rows.places], dtype=np.int64)
            if len(members) < least:
                continue
            own = rows.at(members)
            mass = torch.from_numpy(sizes[view.answered[members]]).double()
            found = [self._parted(parting, own, most) for parting in partings]
            parts = [pair for pair in found if min(map(len, pair)) >= FEWEST]
            if parts:
                changes = [_mean(own["change"], mass, np.arange(len(members)))]
                changes += [_mean(own["change"], mass, part) for pair in parts for part in pair]
                yield _Candidate(k, [(members[one], members[other]) for one, other in parts], torch.stack(changes))

    def _updates(self, view: View) -> _Rows:
        """Ask all members with two samples for their updates on the first half."""
        run, tiers = self.run, self.run.tiers
        places = np.flatnonzero(run.federation.sizes[view.answered] >= 2)
        own = view.choice[torch.from_numpy(view.answered)]
        places = places[(own[torch.from_numpy(places)] >= 0).numpy()]
        task = HalfUpdate(tiers.local.without_prox(), run.seed, tiers.distance)
        scalars = {"lr": tiers.local.rate(view.round, run.rounds)}
        return self._asked(task, view, Clusters(view.clusters.all_models(), view.K), own[:, None], places, scalars)

    def _parted(self, parting: Parting, rows: Params, most: int) -> tuple[Positions, Positions]:
        """Part the members of one cluster; of more than `most` some are parted, and the others join the nearer part."""
        distance = self.run.tiers.distance
        assert distance is not None, "checked when the method is built"
        named = rows | {"own_change": rows["change"]}
        everybody = np.arange(len(rows["change"]))
        if len(everybody) <= most:
            return parted(parting, distance, named)
        some = np.linspace(0, len(everybody) - 1, most).astype(np.int64)  # members come in the order of their hashes
        first, second = parted(parting, distance, _rows_at(named, some))
        both = with_the_rest(
            (some[first], some[second]), everybody, lambda places: distance.server_pairwise(_rows_at(named, places))
        )
        return both[0], both[1]

    def _compare(self, view: View, candidates: Sequence[_Candidate], level: float) -> Iterator[SplitTest]:
        """Ask for the losses of the cluster's and both parts' models on the other half of the samples.

        The models of all candidates stand one after the other: for each the cluster's, then two for each parting. A
        client is sent its cluster's and, for each parting, that of its own part.
        """
        ways = max(len(one.parts) for one in candidates)
        like, slots = view.clusters.all_models(), torch.zeros(len(view.answered), 1 + ways, dtype=torch.int64)
        first = 0
        for one in candidates:
            for way in range(ways):
                for part, places in enumerate(one.parts[min(way, len(one.parts) - 1)]):
                    at = torch.from_numpy(places)
                    slots[at, 0] = first
                    slots[at, 1 + way] = first + 1 + 2 * min(way, len(one.parts) - 1) + part
            first += len(one.changes)
        start = torch.tensor([one.cluster for one in candidates for _ in one.changes])
        moved = unflat(torch.cat([one.changes for one in candidates]), like)
        params = {name: (p[start].double() + moved[name]).to(p) for name, p in like.items()}
        places = np.concatenate([part for one in candidates for part in one.parts[0]])
        rows = self._asked(HalfLosses(self.run.seed), view, Clusters(params, first), slots, places, {})
        for one in candidates:
            members = [place for part in one.parts[0] for place in part if place in rows.places]
            if len(members) < 2:  # the losses of the others are not finite
                continue
            losses = rows.at(members)["losses"].numpy()
            samples = (self.run.federation.sizes[view.answered[members]] // 2).astype(np.float64)
            found = [
                split_test(one.cluster, parts, losses[:, [0, 1 + way]], samples, level)
                for way, parts in enumerate(one.parts)
            ]
            yield min(found, key=lambda test: test.p)

    def _asked(
        self,
        task: HalfUpdate | HalfLosses,
        view: View,
        models: Clusters,
        slots: Tensor,
        places: Positions,
        scalars: Mapping[str, float],
    ) -> _Rows:
        """Return the rows of the members at these places, by place; `slots` has a row for all that answered."""
        if not len(places):
            return _Rows({}, {})
        positions = np.sort(view.answered[places])
        where = {int(position): place for place, position in enumerate(view.answered)}
        asked = np.array([where[int(position)] for position in positions], dtype=np.int64)
        broadcast = Broadcast(view.round, models, only=slots[torch.from_numpy(asked)], scalars=scalars)
        federation = self.run.federation
        reply = self.cost.count(federation.ask(task, broadcast, positions))
        answered = positions_of(federation, reply.clients)
        return _Rows({where[int(position)]: row for row, position in enumerate(answered)}, dict(reply.rows))


@dataclass(frozen=True)
class _Candidate:
    """A cluster that may be split."""

    cluster: int
    parts: Sequence[tuple[Positions, Positions]]
    """Both parts in each parting, as places in `View.answered`."""
    changes: Tensor
    """(1 + 2 partings, P) mean change of all members, then of each part of each parting."""


@dataclass(frozen=True)
class _Rows:
    """Rows of replies."""

    places: Mapping[int, int]
    """The row of each place in `View.answered`."""
    rows: Params

    def at(self, places: Sequence[int] | Positions) -> Params:
        """Return the rows of clients at these places."""
        return _rows_at(self.rows, np.array([self.places[int(place)] for place in places], dtype=np.int64))


def _rows_at(rows: Params, places: Positions) -> Params:
    return {name: row[torch.from_numpy(places)] for name, row in rows.items()}


def _mean(change: Tensor, mass: Tensor, part: Positions) -> Tensor:
    """Return the weighted mean (P,) of the changes (n, P) of a part."""
    at = torch.from_numpy(part)
    return (change[at].double() * mass[at, None]).sum(dim=0) / mass[at].sum()
