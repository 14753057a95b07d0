"""Figures that clients compute on their data, in one exchange each."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.predictors import Predictor
from coterie.client.tasks import Evaluate, FineTune, MixtureWeights, Score
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.errors import SilenceError
from coterie.learners.local_training import LocalTraining

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Own:
    """Models that clients keep and predict with, in one restart, after their last accepted rounds."""

    predictor: Predictor
    """Predictor that uses the state of the clients."""
    restart: int
    accepted: Tensor
    """Last accepted round of each client, (m,)."""
    objective: Objective
    """The member of tier 1."""
    common: Params
    """Arrays that mixtures receive, of all restarts, {name: (R, ...)}."""
    flows: Tensor
    """Matrices that convert the clients' weights, (m, K then, K now); empty if K is constant."""

    def each(self, clients: Tensor) -> Params:
        """Return the arrays that are sent to each of these clients."""
        rows = {"accepted": self.accepted[clients]}
        return rows | ({"flow": self.flows[clients]} if len(self.flows) else {})

    def common_of_restart(self) -> Params:
        """Return the arrays that are sent to all clients, of the one restart."""
        return {name: value[self.restart : self.restart + 1] for name, value in self.common.items()}


@dataclass(frozen=True)
class Scores:
    """Score of the model of each client, on held-out samples if there are any, else on training samples."""

    positions: Positions
    """Clients that answered, ascending."""
    score: Floats
    """Accuracy in [0, 1], or root mean squared error; shape (answered,)."""
    loss: Floats


def scores(
    federation: Federation,
    clusters: Clusters,
    own: Tensor,
    round_: int,
    regression: bool,
    *,
    on: Literal["test", "validation"] = "test",
    by: Own | None = None,
) -> Scores:
    """Ask every client that has a cluster; `own` (m,) holds it, or a negative number. One restart only.

    With `by` clients predict with their own models.
    Without test samples `on` falls back to validation samples, without those to training samples.
    """
    asked = np.flatnonzero((own >= 0).numpy())
    rows = own[torch.from_numpy(asked)]
    each = {"own": rows}
    if by is not None:
        each |= by.each(torch.from_numpy(asked))
    only, common = None if by else rows[:, None], by.common_of_restart() if by else {}
    broadcast = Broadcast(round_, clusters, only=only, each=each, common=common)
    task = Evaluate(on, None if by is None else by.predictor)
    return _scores(federation, task, broadcast, asked, regression)


def _scores(federation: Federation, task: Task, broadcast: Broadcast, asked: Positions, regression: bool) -> Scores:
    reply = federation.ask(task, broadcast, asked).reply
    _refuse_silence(reply, len(asked))
    values = {name: value.numpy() for name, value in reply.rows.items()}
    return Scores(
        positions=positions_of(federation, reply.clients),
        score=np.sqrt(values["score"]) if regression else values["score"],
        loss=values["loss"],
    )


@dataclass(frozen=True)
class Tuning:
    """Fine-tuning of each client's model after the last round."""

    work: LocalTraining
    lr: float
    seed: int
    """Seed of the run."""
    round: int
    """A round that was not trained in, so that the batches are no round's."""

    @property
    def task(self) -> FineTune:
        return FineTune(self.work, self.seed)


def finetuned_scores(
    federation: Federation, clusters: Clusters, own: Tensor, regression: bool, tuning: Tuning
) -> Scores:
    """Return scores as `scores` does, after each client's model was fine-tuned on its training samples."""
    asked = np.flatnonzero((own >= 0).numpy())
    rows = own[torch.from_numpy(asked)]
    broadcast = Broadcast(tuning.round, clusters, only=rows[:, None], scalars={"lr": tuning.lr}, each={"own": rows})
    return _scores(federation, tuning.task, broadcast, asked, regression)


def training_losses(
    federation: Federation, clusters: Clusters, groups: Tensor | None, round_: int
) -> tuple[Positions, Floats]:
    """Return the clients that answered, and their training losses under every model (answered, S) or their own.

    With `groups` (m,) those that have none, a negative number, are not asked.
    """
    asked = np.arange(len(federation.clients)) if groups is None else np.flatnonzero((groups >= 0).numpy())
    only = None if groups is None else groups[torch.from_numpy(asked), None]
    reply = federation.ask(Score(), Broadcast(round_, clusters, only=only), asked).reply
    _refuse_silence(reply, len(asked))
    return positions_of(federation, reply.clients), reply.rows["losses"].numpy()


def own_weights(federation: Federation, clusters: Clusters, by: Own, round_: int) -> tuple[Positions, Floats]:
    """Return the clients that answered, and their weights (answered, R, P)."""
    all_clients = np.arange(len(federation.clients))
    broadcast = Broadcast(round_, clusters, each=by.each(torch.from_numpy(all_clients)))
    reply = federation.ask(MixtureWeights(by.objective), broadcast, all_clients).reply
    _refuse_silence(reply, len(all_clients))
    return positions_of(federation, reply.clients), reply.rows["weights"].numpy()


def _refuse_silence(reply: Reply, asked: int) -> None:
    if not asked:
        raise SilenceError("no client has a cluster that it could be asked about: lower lr or standardise the columns")
    if not reply.clients:
        raise SilenceError(f"none of the {asked} clients answered when asked how well the models fit: try again later")
