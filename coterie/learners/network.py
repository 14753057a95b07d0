"""Base classes of learners with gradients by autograd; subclasses define initial models and outputs."""

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
"""Maximum number of parameters of a model whose sizes are settings; in float32, one copy takes 1 GB."""


def check_size(learner: str, parameters: float) -> None:
    """Raise ConfigError for models that are too large for memory, before they are allocated."""
    if not parameters <= MOST_PARAMETERS:
        raise ConfigError(
            f"{learner}: a model of these sizes would have {float(min(parameters, 1e300)):.1e} parameters, but at most "
            f"{MOST_PARAMETERS} are allowed: choose smaller sizes"
        )


@dataclass(frozen=True)
class Network(ABC):
    """Base class of networks, with the cross-entropy for classification and (1/2) squared errors for regression."""

    classes: int | None
    spec: str
    dtype: torch.dtype
    l2: float
    """Weight of the penalty (l2/2) ||weights||^2 in the objective, without biases; reported losses exclude it."""

    @property
    def usual_training(self) -> LocalTraining:
        """Default local training: mini-batches."""
        return MINI_BATCHES

    @property
    def curvature(self) -> float | None:
        """Upper bound of the second derivative of the loss; None, since it is unknown for networks."""
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
        """Return the loss of model b on each sample of client b, (B, n)."""
        return self.loss(self.outputs(theta, x), y)

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), given the return value of `outputs`."""
        return squared(outputs, y, half=True) if self.classes is None else cross_entropy(outputs, y)

    def _objective(self, theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        loss = (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)
        if self.l2 == 0:
            return loss, loss
        weights = [p for name, p in theta.items() if name.endswith("weight")]
        return loss + self.l2 / 2 * torch.stack([(w**2).flatten(1).sum(dim=1) for w in weights]).sum(dim=0), loss


@dataclass(frozen=True)
class PlainNetwork(Network):
    """A network that is evaluated one model at a time and trained by autograd, with one change for each client."""

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of all models, each for all samples of the block in one batch."""
        x, y = block.x.flatten(0, 1)[None], block.y.flatten(0, 1)[None]
        count = next(iter(models.values())).shape[0]
        columns = [self.losses({name: p[s : s + 1] for name, p in models.items()}, x, y)[0] for s in range(count)]
        return Scored(torch.stack(columns, dim=-1).reshape(*block.y.shape, count))

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """Return the changes by gradient steps of all clients of the block together, one model after the other."""
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
        """Return the weighted sums of the clients' changes for each model."""
        done = self._descent(take_rows(models, rows), block, training, lr)
        return weigh(
            done.change, rows, mass, next(iter(models.values())).shape[0], training.path("autograd"), done.loss
        )
