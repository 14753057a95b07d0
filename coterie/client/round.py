"""One local round of a group of clients: its settings, its algorithms, and the training that they share.

A `ClientAlgorithm` decides which models a client trains, and on which samples; it is the client half of a member of
tier 2 (`coterie/tiers/assignment`). `ClientRound` is what stays the same while the blocks of a group are worked on.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.client.interfaces import Distance, Objective
from coterie.client.kept import as_rows, as_vectors
from coterie.client.predictors import Predictor
from coterie.client.reply import Assignment, ReplyBuilder, TrainingPass
from coterie.core.blocks import Block
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Clusters, Params, take_rows, unflat
from coterie.core.expected import Expected, RunFacts, Slots, Spec, clusters_dtype, expected_changes, parameter_count
from coterie.core.messages import Broadcast
from coterie.core.registry import Registered
from coterie.core.shard import Positions, Shard
from coterie.learners.base import Learner
from coterie.learners.contribution import Contribution, add_by_row, finite_models, weigh
from coterie.learners.local_training import LocalTraining
from coterie.privacy.client import made_private
from coterie.privacy.mechanism import Privacy
from coterie.privacy.noise import SECRET, Noise

ClientWeight = Literal["uniform", "samples"]
"""Whether a client counts once or n_i times."""


@dataclass(frozen=True)
class RoundSettings:
    """Settings of a round that every client algorithm receives."""

    objective: Objective
    work: LocalTraining
    client_weight: ClientWeight
    seed: int
    resample: int | None = None
    """T, the number of rounds, if every round uses fresh samples; None: all samples in every round."""
    by_share: bool = False
    """Whether a soft client's change is weighted in the sums by the cluster's weight for the client."""
    send_each: bool = False
    """Whether every client's change is sent as a row, and its soft weights with it, instead of being added up."""
    distance: Distance | None = None
    """Distance whose summaries clients send."""
    privacy: Privacy | None = None
    """How clients make their replies private; None: they do not."""

    @property
    def adds_noise(self) -> bool:
        """Whether clients add noise to their replies themselves."""
        return self.privacy is not None and self.privacy.local


class ClientAlgorithm(Registered, ABC, family="assignment"):
    """What a client does between broadcast and reply: which models it trains, and what it sends.

    The declared facts say what the rest of a run needs to know about it. The defaults are those of a client that is a
    member of one cluster and trains a whole model.
    """

    assigned: ClassVar[bool] = False
    """Whether the server decides which cluster a client belongs to."""
    keeps: ClassVar[bool] = False
    """Whether a client keeps a state from round to round."""
    single: ClassVar[bool] = False
    """Whether there is only one cluster."""
    member_of_one: ClassVar[bool] = True
    """Whether a client is a member of exactly one cluster in a round."""
    mixture: ClassVar[bool] = False
    """Whether every sample belongs to all clusters in part, so that clients train all models and predict by a mixture
    of them; objectives count only here."""
    personal: ClassVar[bool] = False
    """Whether a client trains a model of its own, sends it, and predicts with it."""
    trains_heads: ClassVar[bool] = False
    """Whether clients train the heads and the body separately where all clusters share a body; otherwise they train
    whole models, and never compute features."""
    cluster_row: ClassVar[str] = "which cluster it chose"
    """What the row `cluster` of a reply reveals about a client."""
    not_private: ClassVar[str] = ""
    """What clients send beyond the change of one model and their cluster; such replies cannot be made private."""

    @property
    def keeps_weights(self) -> bool:
        """Whether a client keeps a weight for every cluster."""
        return self.mixture or self.personal

    @abstractmethod
    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Do one round for the clients of a block; what they send goes into `work.builder`.

        Args:
            work: The round of the whole group.
            places: Positions of the block's clients in the group, (B,).
            scored: Samples to choose a cluster by.
            block: Samples to train on; the same block as `scored` unless samples are fresh in every round.
        """

    def client_predictor(self, objective: Objective, restart: int, restarts: int) -> Predictor | None:
        """Return how clients predict with what they keep; None: with the model of their cluster."""
        return None

    def client_reveals(self, settings: RoundSettings) -> dict[str, str]:
        """Return the rows that clients send in a round, and what each reveals to the server about a client."""
        rows = {"cluster": self.cluster_row}
        return rows | {"change": "how it changed its cluster's model"} if settings.send_each else rows

    def server_expects(self, settings: RoundSettings, clusters: Clusters, run: RunFacts) -> Expected:
        """Return the form of what clients send in a round, without what all algorithms send."""
        if settings.send_each:
            return Expected(rows={"change": expected_vectors(clusters, clusters.restarts)})
        return Expected(slotted={"clusters": expected_sums(clusters)})


def expected_vectors(clusters: Clusters, count: int) -> Spec:
    """Return the form of `count` models or changes of a client as vectors; in a diverged restart they are missing."""
    several = clusters.restarts > 1
    shape = (count, parameter_count(clusters.params))
    return Spec(shape, clusters_dtype(clusters), missing="vector" if several else "never")


def expected_weights(clusters: Clusters) -> Spec:
    """Return the form of a client's weights of the clusters."""
    missing: Literal["vector", "never"] = "vector" if clusters.restarts > 1 else "never"
    return Spec((clusters.restarts, clusters.K), low=0, high=1, total="one", axes=1, missing=missing)


def expected_sums(clusters: Clusters) -> Slots:
    """Return the form of the clusters' summed changes."""
    mass = Spec((), low=0, total="mass")
    return Slots(clusters.restarts * clusters.K, {**expected_changes(clusters.params), "mass": mass})


@dataclass(frozen=True)
class ClientRound:
    """One round of one group of clients."""

    learner: Learner
    settings: RoundSettings
    broadcast: Broadcast
    shard: Shard
    states: ClientStates | None
    builder: ReplyBuilder
    noise: Noise = SECRET

    @property
    def lr(self) -> float:
        """Step size of the round."""
        return self.broadcast.scalars["lr"]

    @property
    def kept(self) -> ClientStates:
        """State of the clients."""
        assert self.states is not None, "clients that keep a state need a store for it"
        return self.states

    @property
    def first(self) -> Tensor:
        """(R,) first slot of each restart."""
        return torch.arange(self.broadcast.clusters.restarts) * self.broadcast.clusters.K

    def accepted(self, places: Positions) -> Tensor:
        """Return the last accepted round of each of these clients, (B,)."""
        return self.broadcast.each["accepted"][torch.from_numpy(places)]

    def mass(self, places: Positions, block: Block) -> Tensor:
        """Return what each client counts, (B,): once or n_i times, however many of its samples this round uses."""
        n = torch.from_numpy(self.shard.sizes[places]).to(block.counts)
        return n if self.settings.client_weight == "samples" else torch.ones_like(n)

    def weight(self, places: Positions, block: Block, assignment: Assignment) -> Tensor:
        """Return what each client's change counts in each restart, (B, R); 0 where its loss is not finite."""
        weight = self.mass(places, block)[:, None].expand(assignment.own.shape)
        if assignment.loss is None or self.settings.privacy is not None:  # leaving a client out would reveal its data
            return weight
        return torch.where(assignment.loss.isfinite(), weight, 0)

    def train(self, places: Positions, block: Block, assignment: Assignment, memo: Tensor | None) -> None:
        """Take local steps on the assigned models, and add the changes to the reply."""
        weight = self.weight(places, block, assignment)
        self.builder.start(places, block, assignment)
        if self.settings.privacy is not None:
            self._train_privately(self.settings.privacy, places, block, assignment, weight)
            return
        if self.settings.send_each:
            self._train_each(places, block, assignment, weight)
            return
        if self.broadcast.clusters.overall:
            self._train_with_overall(self.broadcast.clusters.overall, places, block, assignment, weight)
            return
        for one in _passes(assignment, weight, self.broadcast.clusters.K, self.settings.by_share):
            rows = torch.searchsorted(assignment.slots, one.slots).to(weight.device)
            part = block if one.focus is None else replace(block, focus=one.focus.expand(block.y.shape))
            given = self.learner.contribute(
                assignment.models, rows, part, self.settings.work, self.lr, one.weight, memo
            )
            self.builder.add(places, assignment, one, given)

    def _train_privately(
        self, privacy: Privacy, places: Positions, block: Block, assignment: Assignment, weight: Tensor
    ) -> None:
        """Train with each client's change made private before anything else is done with it; one restart only."""
        slots, rows = assignment.own, torch.searchsorted(assignment.slots, assignment.own)
        theta = take_rows(assignment.models, rows)
        change = as_vectors(self.learner.descend(theta, block, self.settings.work, self.lr))[:, 0]
        hashes = self.shard.hashes[places]
        normals = self.noise.normals(self.broadcast.round, hashes, change.shape[1]) if privacy.local else None
        sent = made_private(change, privacy, normals)
        restarts = torch.arange(1)
        if self.settings.send_each:
            self.builder.accept(places, restarts, torch.ones(slots.shape, dtype=torch.bool))
            self.builder.paths.add(self.settings.work.path("by-client"))
            self.builder.add_rows(places, {"change": sent[:, None]})
            return
        named = {name: value[:, None] for name, value in unflat(sent, assignment.models).items()}
        given = weigh(
            named, rows.to(weight.device), weight, len(assignment.slots), self.settings.work.path("by-client")
        )
        self.builder.add(places, assignment, TrainingPass(restarts, slots, weight, weight), given)

    def _train_each(self, places: Positions, block: Block, assignment: Assignment, weight: Tensor) -> None:
        """Train with each client's own change in a row of the reply; whole models only."""
        vectors = []
        for one in _passes(assignment, weight, self.broadcast.clusters.K, self.settings.by_share):
            theta = take_rows(assignment.models, torch.searchsorted(assignment.slots, one.slots))
            part = block if one.focus is None else replace(block, focus=one.focus.expand(block.y.shape))
            change = self.learner.descend(theta, part, self.settings.work, self.lr)
            self.builder.accept(places, one.restarts, (finite_models(change) & (one.weight > 0)).cpu())
            vectors.append(as_rows(change, weight[:, one.restarts]))
        self.builder.paths.add(self.settings.work.path("by-client"))
        self.builder.add_rows(places, {"change": torch.cat(vectors, dim=1)})

    def _train_with_overall(
        self, overall: Params, places: Positions, block: Block, assignment: Assignment, weight: Tensor
    ) -> None:
        """Train the cluster's model, pulled to the overall one as it was sent, and the overall one as in FedAvg."""
        rows, first = torch.searchsorted(assignment.slots, assignment.own), torch.zeros_like(assignment.own)
        theta, omega, local = take_rows(assignment.models, rows), take_rows(overall, first), self.settings.work
        change = self.learner.descend(theta, block, local, self.lr, towards=omega)
        common = self.learner.descend(omega, block, replace(local, prox=0.0), self.lr)
        mass = torch.where(finite_models(change) & finite_models(common), weight, 0)
        sums = {name: add_by_row(value, rows, mass, len(assignment.slots)) for name, value in change.items()}
        one = TrainingPass(torch.arange(1), assignment.own, mass, mass)
        self.builder.add(places, assignment, one, Contribution(sums, mass > 0, self.settings.work.path("by-client")))
        self.builder.add_overall({name: add_by_row(value, first, mass, 1) for name, value in common.items()})

    def summarise(self, places: Positions, block: Block, features: Tensor | None = None) -> None:
        """Add the rows that the distance needs; features (B, n, d) under the shared body, where there is one."""
        if self.settings.distance is not None:
            self.builder.add_rows(places, self.settings.distance.client_summary(features, block, self.learner.classes))

    def keep(self, places: Positions, rows: dict[str, Tensor]) -> None:
        """Write these rows {name: (B, ...)} to the state of the clients whose work counts."""
        counts = self.builder.accepted(places)
        own = {name: value.cpu()[counts] for name, value in rows.items()}
        self.kept.write(places[counts.numpy()], self.broadcast.round, own)


def _passes(assignment: Assignment, weight: Tensor, K: int, by_share: bool) -> Iterator[TrainingPass]:
    """Yield one pass over the own models of all restarts; or, where clients train all models, one pass per model.

    A soft client's change of a model is small already where the model's share is small; with `by_share` its weight in
    the sum is, too.
    """
    if assignment.share is None:
        yield TrainingPass(torch.arange(assignment.own.shape[1]), assignment.own, weight, weight)
        return
    for row, slot in enumerate(assignment.slots.tolist()):
        restarts, slots = torch.tensor([slot // K]), torch.full((len(weight), 1), slot)
        column, full = assignment.share[:, row, None], weight[:, slot // K, None]
        mass = full * column
        focus = column if assignment.gamma is None else assignment.gamma[..., row]
        yield TrainingPass(restarts, slots, mass if by_share else full, mass, focus, soft=True)
