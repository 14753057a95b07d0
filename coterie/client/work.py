"""What stays the same while the clients of a shard do their round, and the training that most ways share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.client.kept import as_rows, as_vectors
from coterie.client.reply import Assignment, ReplyBuilder, TrainingPass
from coterie.core.blocks import Block
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Params, take_rows, unflat
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions, Shard
from coterie.learners.base import Learner
from coterie.learners.contribution import Contribution, add_by_row, finite_models, weigh
from coterie.privacy.client import made_private
from coterie.privacy.mechanism import Privacy
from coterie.privacy.noise import SECRET, Noise
from coterie.tiers.method import RoundSettings


@dataclass(frozen=True)
class Work:
    """One round of one shard."""

    learner: Learner
    settings: RoundSettings
    broadcast: Broadcast
    shard: Shard
    states: ClientStates | None
    tally: ReplyBuilder
    noise: Noise = SECRET

    @property
    def lr(self) -> float:
        return self.broadcast.scalars["lr"]

    @property
    def kept(self) -> ClientStates:
        """Where clients keep what is theirs."""
        assert self.states is not None, "clients that keep something need a place to keep it"
        return self.states

    @property
    def first(self) -> Tensor:
        """(R,) the first slot of each restart."""
        return torch.arange(self.broadcast.clusters.restarts) * self.broadcast.clusters.K

    def accepted(self, places: Positions) -> Tensor:
        """(B,) the last round of each of these clients that counted."""
        return self.broadcast.each["accepted"][torch.from_numpy(places)]

    def weight(self, places: Positions, block: Block, visit: Assignment) -> Tensor:
        """(B, R) what a client's change counts: once or n_i times, however many of its samples this round uses."""
        n = torch.from_numpy(self.shard.sizes[places]).to(block.counts)
        mass = n if self.settings.client_weight == "samples" else torch.ones_like(n)
        weight = mass[:, None].expand(visit.chosen.shape)
        if visit.loss is None or self.settings.privacy is not None:  # who is left out would be known by it
            return weight
        return torch.where(visit.loss.isfinite(), weight, 0)

    def train(self, places: Positions, block: Block, visit: Assignment, memo: Tensor | None) -> None:
        """Local steps on the models of the visit; what they change goes into the sums."""
        weight = self.weight(places, block, visit)
        self.tally.meet(places, block, visit)
        if self.settings.privacy is not None:
            self._train_privately(self.settings.privacy, places, block, visit, weight)
            return
        if self.settings.each:
            self._train_each(places, block, visit, weight)
            return
        if self.broadcast.clusters.overall:
            self._train_beside(self.broadcast.clusters.overall, places, block, visit, weight)
            return
        for turn in _turns(visit, weight, self.broadcast.clusters.K, self.settings.by_share):
            rows = torch.searchsorted(visit.slots, turn.slots).to(weight.device)
            part = block if turn.focus is None else replace(block, focus=turn.focus.expand(block.y.shape))
            given = self.learner.contribute(visit.models, rows, part, self.settings.work, self.lr, turn.weight, memo)
            self.tally.add(places, visit, turn, given)

    def _train_privately(
        self, privacy: Privacy, places: Positions, block: Block, visit: Assignment, weight: Tensor
    ) -> None:
        """The same, with each client's change made private before anything else is done with it; one restart only."""
        slots, rows = visit.chosen, torch.searchsorted(visit.slots, visit.chosen)
        theta = take_rows(visit.models, rows)
        change = as_vectors(self.learner.descend(theta, block, self.settings.work, self.lr))[:, 0]
        hashes = self.shard.hashes[places]
        normals = self.noise.normals(self.broadcast.round, hashes, change.shape[1]) if privacy.local else None
        sent = made_private(change, privacy, normals)
        restarts = torch.arange(1)
        if self.settings.each:
            self.tally.accept(places, restarts, torch.ones(slots.shape, dtype=torch.bool))
            self.tally.paths.add(self.settings.work.path("by-client"))
            self.tally.note(places, {"change": sent[:, None]})
            return
        named = {name: value[:, None] for name, value in unflat(sent, visit.models).items()}
        given = weigh(named, rows.to(weight.device), weight, len(visit.slots), self.settings.work.path("by-client"))
        self.tally.add(places, visit, TrainingPass(restarts, slots, weight, weight), given)

    def _train_each(self, places: Positions, block: Block, visit: Assignment, weight: Tensor) -> None:
        """The same, with each client's own change in a row of its own; whole models only."""
        vectors = []
        for turn in _turns(visit, weight, self.broadcast.clusters.K, self.settings.by_share):
            theta = take_rows(visit.models, torch.searchsorted(visit.slots, turn.slots))
            part = block if turn.focus is None else replace(block, focus=turn.focus.expand(block.y.shape))
            change = self.learner.descend(theta, part, self.settings.work, self.lr)
            self.tally.accept(places, turn.restarts, (finite_models(change) & (turn.weight > 0)).cpu())
            vectors.append(as_rows(change, weight[:, turn.restarts]))
        self.tally.paths.add(self.settings.work.path("by-client"))
        self.tally.note(places, {"change": torch.cat(vectors, dim=1)})

    def _train_beside(
        self, overall: Params, places: Positions, block: Block, visit: Assignment, weight: Tensor
    ) -> None:
        """The cluster's model, pulled to the overall one as it was sent; and the overall one itself, as in FedAvg."""
        rows, first = torch.searchsorted(visit.slots, visit.chosen), torch.zeros_like(visit.chosen)
        theta, omega, local = take_rows(visit.models, rows), take_rows(overall, first), self.settings.work
        change = self.learner.descend(theta, block, local, self.lr, towards=omega)
        common = self.learner.descend(omega, block, replace(local, prox=0.0), self.lr)
        mass = torch.where(finite_models(change) & finite_models(common), weight, 0)
        sums = {name: add_by_row(value, rows, mass, len(visit.slots)) for name, value in change.items()}
        turn = TrainingPass(torch.arange(1), visit.chosen, mass, mass)
        self.tally.add(places, visit, turn, Contribution(sums, mass > 0, local.path("by-client")))
        self.tally.add_overall({name: add_by_row(value, first, mass, 1) for name, value in common.items()})

    def tell(self, places: Positions, block: Block, features: Tensor | None = None) -> None:
        """What distances between clients are made of; features (B, n, d) under the shared body, where there is one."""
        if self.settings.distance is not None:
            self.tally.note(places, self.settings.distance.client_summary(features, block, self.learner.classes))

    def keep(self, places: Positions, rows: dict[str, Tensor]) -> None:
        """Keep these rows {name: (B, ...)} of the clients whose work counts."""
        counts = self.tally.accepted(places)
        own = {name: value.cpu()[counts] for name, value in rows.items()}
        self.kept.write(places[counts.numpy()], self.broadcast.round, own)


def _turns(visit: Assignment, weight: Tensor, K: int, by_share: bool) -> Iterator[TrainingPass]:
    """All chosen models at once; or, where all count, one model after the other.

    A soft client's change of a model is small already where the model counts little; with `by_share` what it counts in
    the sum is, too.
    """
    if visit.share is None:
        yield TrainingPass(torch.arange(visit.chosen.shape[1]), visit.chosen, weight, weight)
        return
    for row, slot in enumerate(visit.slots.tolist()):
        restarts, slots = torch.tensor([slot // K]), torch.full((len(weight), 1), slot)
        column, full = visit.share[:, row, None], weight[:, slot // K, None]
        mass = full * column
        focus = column if visit.gamma is None else visit.gamma[..., row]
        yield TrainingPass(restarts, slots, mass if by_share else full, mass, focus, soft=True)
