"""Trials with the clients: they train on one half of their samples, and models are compared on the other half."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from coterie.client.resample import HALF, held_out_sizes
from coterie.client.tasks.half_losses import HALVES, HalfLosses
from coterie.client.tasks.half_update import HalfUpdate
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.federation import positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.learners.minimum import GeneralisedLinear
from coterie.methods.exchanges import Cost
from coterie.methods.run import Run
from coterie.tiers.landmarks import assign_to_nearest_part
from coterie.tiers.split_test import MIN_PART_SIZE, HeldOut, Parting, SplitTest, bipartition_by, gain_test, split_test
from coterie.tiers.view import View

TRIAL_LENGTH = 4
"""Length of training in a trial, in rounds: after a few small steps the models of parts hardly differ."""


@dataclass(frozen=True)
class TrialSettings:
    """How trials divide samples, and which gain counts."""

    halvings: int
    """Number of random halvings of the samples, whose evidence is pooled."""
    held_out: float
    """Share of the samples in the half that tests the models."""
    clear: float
    """Least gain of a split, in standard errors."""


FOR_NETWORKS = TrialSettings(halvings=4, held_out=HALF, clear=4.0)
"""After the few rounds of a trial a network is far from its optimum, and separate models may gain for a while only."""
FOR_LINEAR = TrialSettings(halvings=8, held_out=1 / 3, clear=-math.inf)
"""Linear models train fast, and clients may have hardly more samples than coefficients: most samples train."""
REFINEMENTS = 4
"""Number of times that the members of two parts move to the part whose model fits them better."""


@dataclass(frozen=True)
class RoundTrials:
    """Runs the tests of one round with the clients, and counts their cost."""

    run: Run
    cost: Cost = field(default_factory=Cost)
    draw: int = 0
    """Number of the halving of the clients' samples."""

    def split_tests(
        self, view: View, partings: Sequence[Parting], least: int, most: int, level: float
    ) -> Sequence[SplitTest]:
        """Return the test of every cluster with at least `least` members that have two samples."""
        models = Clusters(view.clusters.all_models(), view.K)
        found = [each._compared_parts(view, models, partings, least, most) for each in self._halvings()]
        tests = [
            self._best_split(view, k, partings, [each[k] for each in found if k in each], level) for k in range(view.K)
        ]
        return [test for test in tests if test is not None]

    def _halvings(self) -> Sequence[RoundTrials]:
        """Return the trials with each of several halvings of the clients' samples."""
        return [replace(self, draw=draw) for draw in range(self.settings.halvings)]

    @property
    def settings(self) -> TrialSettings:
        """How the trials of this run's learner train and test models."""
        return FOR_LINEAR if isinstance(self.run.learner, GeneralisedLinear) else FOR_NETWORKS

    @property
    def _losses(self) -> HalfLosses:
        """The task of computing losses on both halves."""
        return HalfLosses(self.run.seed, self.draw, self.settings.held_out)

    def _held_out_sizes(self, view: View) -> Mapping[int, int]:
        """Return the number of held-out samples of each client, by its index in `View.answered`."""
        sizes = held_out_sizes(self.run.federation.sizes[view.answered], self.settings.held_out)
        return {place: int(size) for place, size in enumerate(sizes)}

    def _compared_parts(
        self, view: View, models: Clusters, partings: Sequence[Parting], least: int, most: int
    ) -> Mapping[int, Mapping[Parting, HeldOut]]:
        """Return the held-out losses of every cluster that can be divided, for each parting, from one halving."""
        rows = self._updates(view, models, torch.arange(view.K))
        candidates, names = [], []
        for k in range(view.K):
            members = rows.among(view.members(k))
            if len(members) < least:
                continue
            own = rows.at(members)
            found = {parting: self._divide(parting, own, most) for parting in partings}
            parts = {n: (members[one], members[two]) for n, (one, two) in found.items() if _both_large(one, two)}
            if parts:
                candidates.append(self._candidate(view, rows, k, members, list(parts.values())))
                names.append(tuple(parts))
        for _ in range(REFINEMENTS):
            candidates = self._refined(view, models, rows, candidates)
        losses = self._held_out_losses(view, models, candidates)
        return {
            one.model: {
                parting: _held_out(losses, parts, (0, 1 + 2 * at, 2 + 2 * at), self.settings.held_out)
                for at, (parting, parts) in enumerate(zip(own, one.parts, strict=True))
            }
            for one, own in zip(candidates, names, strict=True)
        }

    def _best_split(
        self, view: View, k: int, partings: Sequence[Parting], found: Sequence[Mapping[Parting, HeldOut]], level: float
    ) -> SplitTest | None:
        """Return the test of the best parting of a cluster; None if there is none."""
        sizes = self._held_out_sizes(view)
        halvings = {name: [each[name] for each in found if name in each] for name in partings}
        tests = [split_test(k, own, sizes, level, self.settings.clear) for own in halvings.values() if own]
        known = [test for test in tests if test is not None]
        return min(known, key=lambda test: (not test.accepted, test.p), default=None)

    def merge_tests(self, view: View) -> Sequence[tuple[tuple[int, int], SplitTest]]:
        """Return the test of every pair of nearest clusters that have enough members with two samples.

        The common model is the mean of both models plus the mean update of all members; the models of the parts are the
        same mean plus the mean update of one cluster's members.
        """
        vectors = flat(view.clusters.all_models()).double().cpu()
        counts = torch.bincount(self._own(view)[torch.from_numpy(self._testable(view))], minlength=view.K)
        pairs = nearest_pairs(vectors, [k for k in range(view.K) if counts[k] >= MIN_PART_SIZE])
        if not pairs:
            return []
        found = [each._compared_pairs(view, pairs) for each in self._halvings()]
        tests = []
        for row, (one, two) in enumerate(pairs):
            halvings = [each[row] for each in found if row in each]
            test = split_test(one, halvings, self._held_out_sizes(view), 1.0) if halvings else None
            if test is not None:
                tests.append(((one, two), replace(test, parts=halvings[0].parts, change=f"{two} apart from it")))
        return tests

    def _compared_pairs(self, view: View, pairs: Sequence[tuple[int, int]]) -> Mapping[int, HeldOut]:
        """Return the held-out losses of pairs of clusters by their index, from one halving."""
        like = view.clusters.all_models()
        vectors = flat(like).double().cpu()
        means = torch.stack([vectors[list(pair)].mean(dim=0) for pair in pairs])
        models, slots = Clusters(_models(means, like), len(pairs)), torch.full((view.K,), -1)
        for row, pair in enumerate(pairs):
            slots[list(pair)] = row
        rows = self._updates(view, models, slots)
        candidates = []
        for row, (first, second) in enumerate(pairs):
            parts = (rows.among(view.members(first)), rows.among(view.members(second)))
            if _both_large(*parts):
                candidates.append(self._candidate(view, rows, row, np.concatenate(parts), [parts]))
        losses = self._held_out_losses(view, models, candidates)
        return {one.model: _held_out(losses, one.parts[0], (0, 1, 2), self.settings.held_out) for one in candidates}

    def body_test(self, view: View, level: float) -> SplitTest | None:
        """Return the test of separate bodies for the clusters; None if fewer than two clients answered."""
        found = [each._with_own_bodies(view) for each in self._halvings()]
        places = reduce(np.intersect1d, [losses.among(np.arange(len(view.answered))) for losses in found])
        parts = [np.intersect1d(places, view.members(k)) for k in range(view.K)]
        members = np.concatenate(parts)
        if len(members) < MIN_PART_SIZE:
            return None
        held_out = np.mean([losses.at(members)["held_out"].numpy() for losses in found], axis=0)
        sizes = self._held_out_sizes(view)
        samples = np.array([sizes[int(member)] for member in members], dtype=np.float64)
        return gain_test(0, parts, held_out, samples, level, "separate bodies")

    def _with_own_bodies(self, view: View) -> _Rows:
        """Return each client's losses with the shared body and with a body of its cluster, from one halving.

        Each head gets the mean update of its cluster's members. The body gets the mean update of all clients, or that
        of the cluster's members. Clients with infinite losses have no row.
        """
        like = view.clusters.all_models()
        rows = self._updates(view, Clusters(like, view.K), torch.arange(view.K))
        parts = [rows.among(view.members(k)) for k in range(view.K)]
        answered = np.concatenate(parts)
        if len(answered) < MIN_PART_SIZE:
            return _Rows({}, {})
        overall = self._mean(view, rows, answered)
        of_body = flat({name: torch.full_like(p[:1], name in view.clusters.shared) for name, p in like.items()})[0] > 0
        vectors, slots = [], torch.zeros(len(view.answered), 2, dtype=torch.int64)
        for k, (start, places) in enumerate(zip(flat(like).double().cpu(), parts, strict=True)):
            slots[torch.from_numpy(places)] = torch.tensor([2 * k, 2 * k + 1])
            own = self._mean(view, rows, places) if len(places) else torch.zeros_like(start)
            vectors += [start + torch.where(of_body.cpu(), overall, own), start + own]
        models = Clusters(_models(torch.stack(vectors), like), len(vectors))
        return self._ask(self._losses, view, models, slots, answered, {})

    def _refined(self, view: View, models: Clusters, rows: _Rows, candidates: Sequence[_Candidate]) -> list[_Candidate]:
        """Move every member to the part whose model has the lowest loss on the half of its samples that trained it.

        Updates from few samples are noisy, and losses assign such members better. The other half is not used.
        """
        if not candidates:
            return []
        params, firsts = self._part_models(models, candidates)
        partings_count = max(len(one.parts) for one in candidates)
        slots = torch.zeros(len(view.answered), 2 * partings_count, dtype=torch.int64)
        for one, first in zip(candidates, firsts, strict=True):
            for parting in range(partings_count):
                sent = first + 1 + 2 * min(parting, len(one.parts) - 1)
                slots[torch.from_numpy(one.members), 2 * parting : 2 * parting + 2] = torch.tensor([sent, sent + 1])
        places = np.concatenate([one.members for one in candidates])
        losses = self._ask(self._losses, view, params, slots, places, {})
        found = []
        for one in candidates:
            answered = losses.among(one.members)
            if len(answered) < 2 * MIN_PART_SIZE:
                found.append(one)
                continue
            own = losses.at(answered)["trained"].numpy()
            nearer = [own[:, 2 * parting] <= own[:, 2 * parting + 1] for parting in range(len(one.parts))]
            parts = [
                (answered[first], answered[~first])
                if MIN_PART_SIZE <= first.sum() <= len(first) - MIN_PART_SIZE
                else before
                for first, before in zip(nearer, one.parts, strict=True)
            ]
            found.append(self._candidate(view, rows, one.model, one.members, parts))
        return found

    def _own(self, view: View) -> Tensor:
        """Return the cluster of each client that answered, (a,)."""
        return view.choice[torch.from_numpy(view.answered)]

    def _testable(self, view: View) -> Positions:
        """Return the indices of the clients that answered, have a cluster and at least two samples."""
        return np.flatnonzero((self.run.federation.sizes[view.answered] >= 2) & (self._own(view) >= 0).numpy())

    def _updates(self, view: View, models: Clusters, slots: Tensor) -> _Rows:
        """Ask for updates of these models on the first half of the samples.

        `slots` (K,) is the model that the members of each cluster train; clusters with -1 are not asked.
        """
        run, tiers = self.run, self.run.tiers
        sent = slots[self._own(view)]
        places = np.array([place for place in self._testable(view) if sent[place] >= 0], dtype=np.int64)
        work = tiers.local.prolonged(TRIAL_LENGTH)
        task = HalfUpdate(work, run.seed, tiers.distance, self.draw, self.settings.held_out)
        scalars = {"lr": tiers.local.rate(view.round, run.rounds)}
        return self._ask(task, view, models, sent[:, None], places, scalars)

    def _mean(self, view: View, rows: _Rows, places: Positions) -> Tensor:
        """Return the mean update (P,) of the clients at these indices, weighted by samples."""
        mass = torch.from_numpy(self.run.federation.sizes[view.answered[places]]).double()
        return (rows.at(places)["change"].double() * mass[:, None]).sum(dim=0) / mass.sum()

    def _candidate(
        self, view: View, rows: _Rows, model: int, members: Positions, parts: Sequence[tuple[Positions, Positions]]
    ) -> _Candidate:
        changes = [self._mean(view, rows, places) for places in (members, *(part for pair in parts for part in pair))]
        return _Candidate(model, members, parts, torch.stack(changes))

    def _part_models(self, models: Clusters, candidates: Sequence[_Candidate]) -> tuple[Clusters, Sequence[int]]:
        """Return the models of all candidates in sequence, and the index of each candidate's first one.

        For each candidate the common model comes first, then two for each parting.
        """
        counts = [len(one.changes) for one in candidates]
        start = torch.tensor([one.model for one in candidates for _ in one.changes])
        moved = unflat(torch.cat([one.changes for one in candidates]), models.params)
        params = {name: (p[start].double() + moved[name]).to(p) for name, p in models.params.items()}
        return Clusters(params, sum(counts)), [sum(counts[:place]) for place in range(len(counts))]

    def _divide(self, parting: Parting, rows: Params, most: int) -> tuple[Positions, Positions]:
        """Divide the members of one cluster; of more than `most`, only some are compared and the others join later."""
        distance = self.run.tiers.distance
        assert distance is not None, "checked when the method is built"
        named = rows | {"own_change": rows["change"]}
        members = np.arange(len(rows["change"]))
        if len(members) <= most:
            return bipartition_by(parting, distance, named)
        some = np.linspace(0, len(members) - 1, most).astype(np.int64)  # members are in the order of their hashes
        first, second = bipartition_by(parting, distance, _rows_at(named, some))
        both = assign_to_nearest_part(
            (some[first], some[second]), members, lambda places: distance.server_pairwise(_rows_at(named, places))
        )
        return both[0], both[1]

    def _held_out_losses(self, view: View, models: Clusters, candidates: Sequence[_Candidate]) -> _Rows:
        """Ask for losses on the other half: of the common model and, for each parting, of the models of both parts.

        A client's own part comes before the other one.
        """
        if not candidates:
            return _Rows({}, {})
        params, firsts = self._part_models(models, candidates)
        partings_count = max(len(one.parts) for one in candidates)
        slots = torch.zeros(len(view.answered), 1 + 2 * partings_count, dtype=torch.int64)
        for one, first in zip(candidates, firsts, strict=True):
            for parting in range(partings_count):
                known = min(parting, len(one.parts) - 1)
                for part, places in enumerate(one.parts[known]):
                    at, pair = torch.from_numpy(places), first + 1 + 2 * known
                    slots[at, 0] = first
                    slots[at, 1 + 2 * parting] = pair + part
                    slots[at, 2 + 2 * parting] = pair + 1 - part
        places = np.concatenate([part for one in candidates for part in one.parts[0]])
        return self._ask(self._losses, view, params, slots, places, {})

    def _ask(
        self,
        task: HalfUpdate | HalfLosses,
        view: View,
        models: Clusters,
        slots: Tensor,
        places: Positions,
        scalars: Mapping[str, float],
    ) -> _Rows:
        """Ask the clients at these indices and return their rows; `slots` has a row for all clients that answered."""
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
    """A model that one model for each of two parts may replace."""

    model: int
    """Number of the common model."""
    members: Positions
    """Members of its cluster, as indices of `View.answered`."""
    parts: Sequence[tuple[Positions, Positions]]
    """Both parts in each parting, as indices of `View.answered`."""
    changes: Tensor
    """Mean update of all members, then of each part of each parting, (1 + 2 partings, P)."""


@dataclass(frozen=True)
class _Rows:
    """Rows of replies, by client."""

    places: Mapping[int, int]
    """Row number of each client, by its index in `View.answered`."""
    rows: Params

    def among(self, places: Positions) -> Positions:
        """Return those of these indices that have a row."""
        return np.array([place for place in places if int(place) in self.places], dtype=np.int64)

    def at(self, places: Sequence[int] | Positions) -> Params:
        """Return the rows of the clients at these indices."""
        return _rows_at(self.rows, np.array([self.places[int(place)] for place in places], dtype=np.int64))


def _both_large(one: Positions, two: Positions) -> bool:
    return min(len(one), len(two)) >= MIN_PART_SIZE


def _held_out(rows: _Rows, parts: Sequence[Positions], columns: Sequence[int], share: float) -> HeldOut:
    """Return these columns of the losses of the members of two parts; clients with infinite losses have no row."""
    members = rows.among(np.concatenate(parts))
    if not len(members):  # all trial models diverged, or no client answered
        nothing = np.zeros((0, len(columns)))
        return HeldOut(parts, members, nothing, nothing)
    trained, held_out = (rows.at(members)[name].numpy()[:, list(columns)] for name in HALVES)
    return HeldOut(parts, members, held_out, (1 - share) * trained + share * held_out, 1 - share)


def _rows_at(rows: Params, places: Positions) -> Params:
    return {name: row[torch.from_numpy(places)] for name, row in rows.items()}


def _models(vectors: Tensor, like: Params) -> Params:
    """Return the models with these vectors, in the dtypes and on the devices of `like`."""
    return {name: p.to(like[name]) for name, p in unflat(vectors, like).items()}


def nearest_pairs(vectors: Tensor, among: Sequence[int]) -> list[tuple[int, int]]:
    """Return disjoint pairs of these rows of (K, P), ascending: the nearest two, then the nearest of the rest, etc."""
    distances = torch.cdist(vectors, vectors)
    every = sorted((float(distances[one, two]), one, two) for one in among for two in among if one < two)
    pairs: list[tuple[int, int]] = []
    for _, one, two in every:
        if not any({one, two} & set(pair) for pair in pairs):
            pairs.append((one, two))
    return sorted(pairs)
