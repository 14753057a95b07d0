"""Base classes of learners whose gradients come from autograd; a subclass defines initial models and outputs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Batch, Descent, descend_each_track
from coterie.learners.local_training import MINI_BATCHES, LocalTraining
from coterie.learners.losses import cross_entropy, squared


def check_penalty(learner: str, l2: float) -> None:
    """Raise ConfigError for an L2 penalty that is negative or not finite."""
    if not 0 <= l2 < float("inf"):
        raise ConfigError(f"{learner}: l2 must be a finite number of at least 0, got {l2}")


MOST_PARAMETERS = 2**28
"""Largest number of parameters of a model whose sizes are given as settings: one copy takes 1 GB in float32."""


def check_size(learner: str, parameters: float) -> None:
    """Raise ConfigError for models that do not fit into memory, before anything is allocated."""
    if not parameters <= MOST_PARAMETERS:
        raise ConfigError(
            f"{learner}: a model of these sizes would have {float(min(parameters, 1e300)):.1e} parameters, but at most "
            f"{MOST_PARAMETERS} are allowed: choose smaller sizes"
        )


@dataclass(frozen=True)
class Network(ABC):
    """Base of networks: cross-entropy for classes, (1/2) squared error for regression."""

    classes: int | None
    spec: str
    dtype: torch.dtype
    l2: float
    """Weight of the penalty (l2/2) ||weights||^2 in the objective. Biases are free; losses do not include it."""

    @property
    def usual_training(self) -> LocalTraining:
        """Local training by default: mini-batches."""
        return MINI_BATCHES

    @property
    def curvature(self) -> float | None:
        """Unknown."""
        return None

    @property
    def one_by_one(self) -> bool:
        """Whether the clients of a block are trained one after the other."""
        return False

    @abstractmethod
    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """Return a random model for each key, {name: (len(keys), ...)}."""

    @abstractmethod
    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        """Return logits (B, n, C) or predictions (B, n) of model b {name: (B, ...)} on samples (B, n, ...)."""

    @abstractmethod
    def network(self, model: Params) -> nn.Module:
        """Return one model {name: (...)} as a module in evaluation mode."""

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), of model b on the samples of client b."""
        return self.loss(self.outputs(theta, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), from the result of `outputs`."""
        return squared(outputs, y, half=True) if self.classes is None else cross_entropy(outputs, y)

    def _objective(self, theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)
        if self.l2 == 0:
            return loss, loss
        weights = [p for name, p in theta.items() if name.endswith("weight")]
        return loss + self.l2 / 2 * torch.stack([(w**2).flatten(1).sum(dim=1) for w in weights]).sum(dim=0), loss


@dataclass(frozen=True)
class PlainNetwork(Network):
    """A network that scores one model at a time, steps by autograd and adds up the clients' own changes."""

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of every model; all samples of the block are one large batch for each model."""
        x, y = block.x.flatten(0, 1)[None], block.y.flatten(0, 1)[None]
        count = next(iter(models.values())).shape[0]
        columns = [self.losses({name: p[s : s + 1] for name, p in models.items()}, x, y)[0] for s in range(count)]
        return Scored(torch.stack(columns, dim=-1).reshape(*block.y.shape, count))

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """Return the changes by gradient steps: all clients of the block at once, one model after the other."""
        return self._descent(theta, block, training, lr, towards).change

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        return descend_each_track(self._objective, theta, block, training, lr, towards)

    def contribute(
        self,
        models: Params,
        rows: Tensor,
        block: Block,
        training: LocalTraining,
        lr: float,
        mass: Tensor,
        memo: Tensor | None,
    ) -> Contribution:
        """Return the clients' weighted changes, added up for each model."""
        done = self._descent(take_rows(models, rows), block, training, lr)
        return weigh(
            done.change, rows, mass, next(iter(models.values())).shape[0], training.path(self._path), done.loss
        )

    @property
    def _path(self) -> str:
        """Path of computation, for the record."""
        return "autograd"
