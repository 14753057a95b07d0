"""The protocol of model families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.learners.contribution import Contribution, Scored
from coterie.learners.local_training import LocalTraining


class Learner(Protocol):
    """A model family with its local optimisation.

    Parameters are values: dictionaries of named tensors with leading batch axes, one model for each entry. B is the
    number of clients of a block, n the number of samples of its largest client, L the number of models that each
    client trains, S the number of models that the server holds.
    """

    @property
    def spec(self) -> str:
        """Text from which `make_learner` builds this learner again, such as `mlp:hidden=64`."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of classes C; None for regression."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Default floating type: float64 for linear models, float32 for networks."""
        ...

    @property
    def usual_training(self) -> LocalTraining:
        """Local training by default; its learning rate may be `auto`."""
        ...

    @property
    def curvature(self) -> float | None:
        """Bound of the loss's second derivative along a feature vector of length 1; None where there is none.

        A learner that has one has `glm`, which gives the feature vectors.
        """
        ...

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """Return a random model for each key, {name: (len(keys), ...)}."""
        ...

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        """Return the outputs of model b on the samples of client b.

        Args:
            theta: One model for each client, {name: (B, ...)}.
            x: Samples (B, n, ...).

        Returns:
            Logits (B, n, C), or predictions (B, n) for regression.
        """
        ...

    def network(self, model: Params) -> nn.Module:
        """Return one model {name: (...)} as a module in evaluation mode, which computes what `outputs` does.

        It maps samples (n, ...) to logits (n, C), or to predictions (n,); for numbers a user's module may return
        (n, 1). The names in its `state_dict` are those of the parameters.
        """
        ...

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), from the result of `outputs`."""
        ...

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), of model b on the samples of client b; arguments as in `outputs`."""
        ...

    def score(self, models: Params, block: Block) -> Scored:
        """Return the loss of every model {name: (S, ...)} on every sample of a block."""
        ...

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """Return the change of each client's models by its local training, {name: (B, L, ...)}.

        Args:
            theta: Models from which the clients start, {name: (B, L, ...)}.
            block: Samples of the clients.
            training: Local training.
            lr: Learning rate of the round.
            towards: Centre of the proximal term, of the same shape as `theta`; None: `theta` itself.

        Raises:
            ConfigError: if this learner cannot run the training, such as a proximal step of a network.
        """
        ...

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
        """Return the weighted sums of the changes that `descend` computes, for each model of the server.

        A learner may compute the sums without ever holding a client's own model.

        Args:
            models: Models of the server, {name: (S, ...)}.
            rows: Which of the models each client trains, (B, R).
            block: Samples of the clients.
            training: Local training.
            lr: Learning rate of the round.
            mass: Weight of each change in the sum, (B, R).
            memo: Result of `score` for the same models and block, if they were scored.

        Returns:
            The sums, the path of computation, and for mini-batches the mean loss during training.

        Raises:
            ConfigError: if this learner cannot run the training, such as a proximal step of a network.
        """
        ...


class HasFeatures(Learner, Protocol):
    """A learner that ends in one fully connected layer, its head: outputs = features weight^T + bias."""

    @property
    def head(self) -> str:
        """Name of the head: its parameters are "HEAD.weight" (C, d) and "HEAD.bias" (C,)."""
        ...

    def features(self, theta: Params, x: Tensor) -> Tensor:
        """Return the inputs of the head, (B, n, d), for model b on the samples of client b; see `outputs`."""
        ...


def has_features(learner: Learner) -> TypeGuard[HasFeatures]:
    """Return whether a learner ends in a head. For a user's module this takes time: call it only where it matters."""
    return getattr(learner, "head", None) is not None
