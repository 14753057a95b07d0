"""A local round of a group of clients: settings, base class of client algorithms, and common training code.

A `ClientAlgorithm` determines which models a client trains on which samples; it is the client side of a member of tier
2 (`coterie/tiers/assignment`). A `ClientRound` holds everything that is the same for all blocks of a group.
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
from coterie.learners.base import Learner, trains_together
from coterie.learners.contribution import Contribution, add_by_row, finite_models, weigh
from coterie.learners.local_training import LocalTraining
from coterie.privacy.client import made_private
from coterie.privacy.mechanism import Privacy
from coterie.privacy.noise import SYSTEM_NOISE, Noise

ClientWeight = Literal["uniform", "samples"]
"""Weight of a client in a mean: 1 (`uniform`) or its number of samples (`samples`)."""


@dataclass(frozen=True)
class RoundSettings:
    """Settings of a round, for all client algorithms."""

    objective: Objective
    """Tier 1 of the method."""
    work: LocalTraining
    """Local training."""
    client_weight: ClientWeight
    """Weight of a client in a mean."""
    seed: int
    """Seed of the run."""
    resample: int | None = None
    """Number of rounds (T) if every round uses different samples; None: all samples in every round."""
    by_share: bool = False
    """Whether the change of a model is weighted by the client's soft weight of the cluster."""
    send_each: bool = False
    """Whether every client's change, with its soft weights, is sent as a row instead of a part of a sum."""
    distance: Distance | None = None
    """Distance whose rows clients send."""
    privacy: Privacy | None = None
    """Privacy mechanism on the clients; None: no differential privacy."""

    @property
    def adds_noise(self) -> bool:
        """Whether clients add noise to their replies themselves."""
        return self.privacy is not None and self.privacy.local


class ClientAlgorithm(Registered, ABC, family="assignment"):
    """Base class of client algorithms: which models a client trains in a round, and what it sends.

    The class variables declare facts for the rest of the run. The defaults describe a client that is a member of one
    cluster and trains a complete model.
    """

    assigned: ClassVar[bool] = False
    """Whether the server determines the cluster of a client."""
    keeps: ClassVar[bool] = False
    """Whether a client keeps a state from round to round."""
    single: ClassVar[bool] = False
    """Whether there is only one cluster."""
    member_of_one: ClassVar[bool] = True
    """Whether a client is a member of exactly one cluster in a round."""
    mixture: ClassVar[bool] = False
    """Whether every sample belongs to all clusters with weights, so that clients train all models and predict with a
    mixture of them. Only these algorithms use the objective's counts."""
    personal: ClassVar[bool] = False
    """Whether a client trains a personal model, sends it, and predicts with it."""
    trains_heads: ClassVar[bool] = False
    """Whether clients train cluster heads and a shared body separately; otherwise they train complete models and never
    compute features."""
    cluster_row: ClassVar[str] = "which cluster it chose"
    """Information that the row `cluster` of a reply reveals about a client."""
    not_private: ClassVar[str] = ""
    """Content of replies other than one model change and a cluster, which prevents privacy; empty if there is none."""

    @property
    def keeps_weights(self) -> bool:
        """Whether a client keeps a weight for each cluster."""
        return self.mixture or self.personal

    @property
    def takes_best(self) -> bool:
        """Whether a client's round consists of choosing the model with the lowest mean loss and training it.

        Models that the server assigned are trained without a choice. Such rounds can read the samples just once.
        """
        return False

    @property
    def mixes_all(self) -> bool:
        """Whether a client's round consists of training all models, weighted by its responsibilities for each sample.

        The responsibilities follow from its losses and kept weights alone. Such rounds can read the samples just once.
        """
        return False

    @abstractmethod
    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        """Do one round for the clients of a block, and add their contributions to `work.builder`.

        Args:
            work: The round of the whole group.
            places: Positions of the block's clients in the group, (B,).
            scored: Samples by which clients choose a cluster.
            block: Samples for training; the same block as `scored`, unless every round uses different samples.
        """

    def client_predictor(self, objective: Objective, restart: int, restarts: int) -> Predictor | None:
        """Return the predictor of clients that keep a state; None: clients predict with the model of their cluster."""
        return None

    def client_reveals(self, settings: RoundSettings) -> dict[str, str]:
        """Return the rows that clients send in a round, with the information that each reveals about a client."""
        rows = {"cluster": self.cluster_row}
        return rows | {"change": "how it changed its cluster's model"} if settings.send_each else rows

    def server_expects(self, settings: RoundSettings, clusters: Clusters, run: RunFacts) -> Expected:
        """Return the expected form of a reply, without the arrays that are common to all algorithms."""
        if settings.send_each:
            return Expected(rows={"change": expected_vectors(clusters, clusters.restarts)})
        return Expected(slotted={"clusters": expected_sums(clusters)})


def expected_vectors(clusters: Clusters, count: int) -> Spec:
    """Return the expected form of `count` models or changes of a client as vectors, NaN in a diverged restart."""
    several = clusters.restarts > 1
    shape = (count, parameter_count(clusters.params))
    return Spec(shape, clusters_dtype(clusters), missing="vector" if several else "never")


def expected_weights(clusters: Clusters) -> Spec:
    """Return the expected form of a client's cluster weights."""
    missing: Literal["vector", "never"] = "vector" if clusters.restarts > 1 else "never"
    return Spec((clusters.restarts, clusters.K), low=0, high=1, total="one", axes=1, missing=missing)


def expected_sums(clusters: Clusters) -> Slots:
    """Return the expected form of the summed changes of the clusters' models."""
    mass = Spec((), low=0, total="mass")
    return Slots(clusters.restarts * clusters.K, {**expected_changes(clusters.params), "mass": mass})


@dataclass(frozen=True)
class ClientRound:
    """One round of a group of clients."""

    learner: Learner
    """Model family of the run."""
    settings: RoundSettings
    """Settings of the round."""
    broadcast: Broadcast
    """Message of the server."""
    shard: Shard
    """Training samples of the clients."""
    states: ClientStates | None
    """State of the clients; None if they keep none."""
    builder: ReplyBuilder
    """Reply under construction."""
    noise: Noise = SYSTEM_NOISE
    """Source of the noise for differential privacy."""

    @property
    def lr(self) -> float:
        """Learning rate of the round."""
        return self.broadcast.scalars["lr"]

    @property
    def kept(self) -> ClientStates:
        """State of the clients, which must exist."""
        assert self.states is not None, "clients that keep a state need a store for it"
        return self.states

    @property
    def first(self) -> Tensor:
        """First slot of each restart, (R,)."""
        return torch.arange(self.broadcast.clusters.restarts) * self.broadcast.clusters.K

    def accepted(self, places: Positions) -> Tensor:
        """Return the last accepted round of each of these clients, (B,)."""
        return self.broadcast.each["accepted"][torch.from_numpy(places)]

    def mass(self, places: Positions, block: Block) -> Tensor:
        """Return the weight of each client, (B,): 1, or its total number of training samples."""
        n = torch.from_numpy(self.shard.sizes[places]).to(block.counts)
        return n if self.settings.client_weight == "samples" else torch.ones_like(n)

    def weight(self, places: Positions, block: Block, assignment: Assignment) -> Tensor:
        """Return the weight of each client's change in each restart, (B, R); 0 if its loss is not finite."""
        weight = self.mass(places, block)[:, None].expand(assignment.own.shape)
        # with differential privacy, no client is left out, since this would reveal something about its data
        if assignment.loss is None or self.settings.privacy is not None:
            return weight
        return torch.where(assignment.loss.isfinite(), weight, 0)

    def train(self, places: Positions, block: Block, assignment: Assignment, memo: Tensor | None) -> None:
        """Train the assigned models locally, and add the changes to the reply.

        Args:
            places: Positions of the block's clients in the group, (B,).
            block: Training samples of the clients.
            assignment: Assignment of the clients to models.
            memo: Intermediate result of scoring, which the learner can reuse.
        """
        weight = self.weight(places, block, assignment)
        self.builder.start(places, block.sizes, assignment)
        if self.settings.privacy is not None:
            self._train_privately(self.settings.privacy, places, block, assignment, weight)
            return
        if self.settings.send_each:
            self._train_each(places, block, assignment, weight)
            return
        if self.broadcast.clusters.overall:
            self._train_with_overall(self.broadcast.clusters.overall, places, block, assignment, weight)
            return
        together = trains_together(self.learner, self.settings.work)
        for one in _passes(assignment, weight, self.broadcast.clusters.K, self.settings.by_share, together):
            rows = torch.searchsorted(assignment.slots, one.slots).to(weight.device)
            given = self.learner.contribute(
                assignment.models, rows, one.weighted(block), self.settings.work, self.lr, one.weight, memo
            )
            self.builder.add(places, assignment, one, given)

    def _train_privately(
        self, privacy: Privacy, places: Positions, block: Block, assignment: Assignment, weight: Tensor
    ) -> None:
        """Train, and apply the privacy mechanism to each client's change before it is used; for a single restart."""
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
        """Train, and add each client's change to the reply as a row; for complete models only."""
        vectors = []
        for one in _passes(assignment, weight, self.broadcast.clusters.K, self.settings.by_share):
            theta = take_rows(assignment.models, torch.searchsorted(assignment.slots, one.slots))
            change = self.learner.descend(theta, one.weighted(block), self.settings.work, self.lr)
            self.builder.accept(places, one.restarts, (finite_models(change) & (one.weight > 0)).cpu())
            vectors.append(as_rows(change, weight[:, one.restarts]))
        self.builder.paths.add(self.settings.work.path("by-client"))
        self.builder.add_rows(places, {"change": torch.cat(vectors, dim=1)})

    def _train_with_overall(
        self, overall: Params, places: Positions, block: Block, assignment: Assignment, weight: Tensor
    ) -> None:
        """Train the cluster's model with a proximal term towards the received overall model, and train the latter."""
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
        """Add the rows that the distance needs.

        Args:
            places: Positions of the block's clients in the group, (B,).
            block: Samples of the clients.
            features: Features computed with the shared body, (B, n, d); None without a shared body.
        """
        if self.settings.distance is not None:
            self.builder.add_rows(places, self.settings.distance.client_summary(features, block, self.learner.classes))

    def keep(self, places: Positions, rows: dict[str, Tensor]) -> None:
        """Write rows, {name: (B, ...)}, to the state of those clients whose contribution is accepted."""
        accepted = self.builder.accepted(places)
        own = {name: value.cpu()[accepted] for name, value in rows.items()}
        self.kept.write(places[accepted.numpy()], self.broadcast.round, own)


def _passes(
    assignment: Assignment, weight: Tensor, K: int, by_share: bool, together: bool = False
) -> Iterator[TrainingPass]:
    """Yield one training pass for the assigned models of all restarts, or the passes of all models if all are trained.

    If all models are trained, a small weight of a model already makes its change small; with `by_share`, it also makes
    the weight of this change in the sum small. With `together`, all models are trained in the same pass.
    """
    if assignment.share is None:
        yield TrainingPass(torch.arange(assignment.own.shape[1]), assignment.own, weight, weight)
        return
    if together:
        restarts, slots = assignment.slots // K, assignment.slots.repeat(len(weight), 1)
        mass = (full := weight[:, restarts]) * assignment.share
        shares = assignment.share[:, None] if assignment.gamma is None else assignment.gamma
        yield TrainingPass(restarts, slots, mass if by_share else full, mass, shares=shares, soft=True)
        return
    for row, slot in enumerate(assignment.slots.tolist()):
        restarts, slots = torch.tensor([slot // K]), torch.full((len(weight), 1), slot)
        column, full = assignment.share[:, row, None], weight[:, slot // K, None]
        mass = full * column
        focus = column if assignment.gamma is None else assignment.gamma[..., row]
        yield TrainingPass(restarts, slots, mass if by_share else full, mass, focus, soft=True)
