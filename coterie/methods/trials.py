"""Trials of splits with the clients: an update of one half of their samples, a comparison on the other half."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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
from coterie.tiers.split_test import FEWEST, Parting, SplitTest, parted, tested
from coterie.tiers.view import View


@dataclass(frozen=True)
class RoundTrials:
    """The trials of one round, with their cost."""

    run: Run
    cost: Cost = field(default_factory=Cost)
    tests: list[SplitTest] = field(default_factory=list)

    def split_tests(self, view: View, parting: Parting, least: int, level: float) -> Sequence[SplitTest]:
        """Return the test of every cluster with at least `least` members that have two samples."""
        candidates = list(self._candidates(view, parting, least))
        if candidates:
            self.tests.extend(self._compare(view, candidates, level))
        return self.tests

    def _candidates(self, view: View, parting: Parting, least: int) -> Iterator[_Candidate]:
        """Ask for updates on half of the samples, and part the members of each cluster by them."""
        run, tiers = self.run, self.run.tiers
        sizes = run.federation.sizes
        places = np.concatenate([np.zeros(0, dtype=np.int64), *(view.members(k) for k in range(view.K))])
        places = places[sizes[view.answered[places]] >= 2]
        models = Clusters(view.clusters.all_models(), view.K)
        own = view.choice[torch.from_numpy(view.answered)]
        task = HalfUpdate(tiers.local.without_prox(), run.seed, tiers.distance)
        rate = tiers.local.rate(view.round, run.rounds)
        rows = self._asked(task, view, models, own[:, None], places, {"lr": rate})
        for k in range(view.K):
            members = np.array([place for place in view.members(k) if place in rows.places], dtype=np.int64)
            if len(members) < least:
                continue
            at = [rows.places[place] for place in members]
            change = rows.rows["change"][at].double()
            summary = {name: value[at] for name, value in rows.rows.items()}
            assert tiers.distance is not None, "checked when the method is built"
            apart = tiers.distance.server_pairwise(summary | {"own_change": change})
            first, second = parted(parting, apart)
            if min(len(first), len(second)) >= FEWEST:
                mass = torch.from_numpy(sizes[view.answered[members]]).double()
                yield _Candidate(k, (members[first], members[second]), _means(change, mass, first, second))

    def _compare(self, view: View, candidates: Sequence[_Candidate], level: float) -> Iterator[SplitTest]:
        """Ask for the losses of the cluster's and both parts' models on the other half of the samples."""
        count = len(candidates)
        like = view.clusters.all_models()
        changes = torch.cat([torch.stack([one.changes[part] for one in candidates]) for part in range(3)])
        start = torch.tensor([one.cluster for one in candidates]).repeat(3)
        moved = unflat(changes, like)
        params = {name: (p[start].double() + moved[name]).to(p) for name, p in like.items()}
        slots = torch.full((len(view.answered), 3), 0)
        for column, one in enumerate(candidates):
            for part, places in enumerate(one.parts):
                slots[torch.from_numpy(places)] = column + count * torch.tensor([0, 1 + part, 2 - part])
        places = np.concatenate([part for one in candidates for part in one.parts])
        rows = self._asked(HalfLosses(self.run.seed), view, Clusters(params, count, 3), slots, places, {})
        for one in candidates:
            members = [place for part in one.parts for place in part if place in rows.places]
            losses = rows.rows["losses"][[rows.places[place] for place in members]].numpy()
            samples = (self.run.federation.sizes[view.answered[members]] // 2).astype(np.float64)
            yield tested(one.cluster, one.parts, losses[:, :2], samples, level)

    def _asked(
        self, task: HalfUpdate | HalfLosses, view: View, models: Clusters, slots: Tensor, places: Positions, scalars: dict[str, float]
    ) -> _Rows:
        """Return the rows of the members at these places, by place; `slots` has a row for all that answered."""
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
    """A cluster with two parts, and the mean changes (3, P) of all members and of each part."""

    cluster: int
    parts: tuple[Positions, Positions]
    changes: Tensor


@dataclass(frozen=True)
class _Rows:
    """Rows of replies, with the row of each place."""

    places: dict[int, int]
    rows: Params


def _means(change: Tensor, mass: Tensor, *parts: Positions) -> Tensor:
    """Return weighted means of changes (n, P): of all, then of each part."""
    groups = [torch.arange(len(change)), *map(torch.from_numpy, parts)]
    return torch.stack([(change[at] * mass[at, None]).sum(dim=0) / mass[at].sum() for at in groups])
