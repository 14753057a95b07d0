"""What all learners that autograd differentiates share: they only say how they start and what they output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Batch, Descent, descend_each_track
from coterie.learners.local_training import LocalTraining
from coterie.learners.losses import cross_entropy, squared


def check_penalty(learner: str, l2: float) -> None:
    """Refuse a penalty that is negative or no number."""
    if not 0 <= l2 < float("inf"):
        raise ConfigError(f"{learner}: l2 must be a finite number of at least 0, got {l2}")


MOST_PARAMETERS = 2**28
"""The most parameters of a model that is named with its sizes: one copy takes 1 GB in float32."""


def check_size(learner: str, parameters: float) -> None:
    """Refuse sizes that no memory holds, before anything is allocated."""
    if not parameters <= MOST_PARAMETERS:
        raise ConfigError(
            f"{learner}: a model of these sizes would have {float(min(parameters, 1e300)):.1e} parameters, but at most "
            f"{MOST_PARAMETERS} are allowed: choose smaller sizes"
        )


@dataclass(frozen=True)
class Network(ABC):
    """Cross-entropy for classes, (1/2) squared error for numbers. How it scores, steps and contributes is left open."""

    classes: int | None
    spec: str
    dtype: torch.dtype
    l2: float
    """objective = mean loss + (l2/2) ||weights||^2; biases are free, and the penalty is no part of the loss."""

    @property
    def one_by_one(self) -> bool:
        """Whether the clients of a block are trained one after the other."""
        return False

    @abstractmethod
    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """A random model for each key: {name: (len(keys), ...)}."""

    @abstractmethod
    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        """Model b on batch b: {name: (B, ...)}, (B, n, ...) to logits (B, n, C) or predictions (B, n)."""

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        """Model b on batch b: the loss of each sample, (B, n)."""
        return self.loss(self.outputs(theta, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, (B, n), from what `outputs` gave."""
        return squared(outputs, y, half=True) if self.classes is None else cross_entropy(outputs, y)

    def _objective(self, theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)
        if self.l2 == 0:
            return loss, loss
        weights = [p for name, p in theta.items() if name.endswith("weight")]
        return loss + self.l2 / 2 * torch.stack([(w**2).flatten(1).sum(dim=1) for w in weights]).sum(dim=0), loss


@dataclass(frozen=True)
class PlainNetwork(Network):
    """Scores model by model, steps by autograd, contributes by each client's own change: right for every network."""

    def score(self, models: Params, block: Block) -> Scored:
        """Every model on every sample of a block, as one large batch a model."""
        x, y = block.x.flatten(0, 1)[None], block.y.flatten(0, 1)[None]
        count = next(iter(models.values())).shape[0]
        columns = [self.losses({name: p[s : s + 1] for name, p in models.items()}, x, y)[0] for s in range(count)]
        return Scored(torch.stack(columns, dim=-1).reshape(*block.y.shape, count))

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """Gradient steps for all clients of the block at once, one track after the other."""
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
        """The clients' weighted changes, added up for each model."""
        done = self._descent(take_rows(models, rows), block, training, lr)
        return weigh(
            done.change, rows, mass, next(iter(models.values())).shape[0], training.path(self._path), done.loss
        )

    @property
    def _path(self) -> str:
        """How the steps are taken, for the record."""
        return "autograd"
