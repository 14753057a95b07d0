"""Protocol of learners."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard, runtime_checkable

import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.learners.contribution import Contribution, Scored
from coterie.learners.local_training import LocalTraining


class Learner(Protocol):
    """A model family with local training.

    Models are dictionaries of named tensors with leading batch axes. Shapes: B clients in a block, n samples of its
    largest client, L models that each client trains, S models of the server.

    Example:
        >>> import coterie
        >>> from coterie.learners import make_learner
        >>> learner = make_learner("mlp:hidden=8", coterie.scenario("rotated-digits", clients=4).profile)
        >>> learner.spec, learner.classes
        ('mlp:hidden=8,l2=0.0', 10)
    """

    @property
    def spec(self) -> str:
        """Text from which `make_learner` creates the same learner, such as `mlp:hidden=64`."""
        ...

    @property
    def classes(self) -> int | None:
        """Number of classes (C); None for regression."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Default floating-point dtype: float64 for linear models, float32 for networks."""
        ...

    @property
    def usual_training(self) -> LocalTraining:
        """Default local training; its learning rate may be `auto`."""
        ...

    @property
    def curvature(self) -> float | None:
        """Upper bound of the second derivative of the loss along a feature vector of length 1; None if unknown.

        A learner with such a bound has a method `glm`, which returns the feature vectors.
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
        """Return one model {name: (...)} as a module in evaluation mode with the same outputs.

        The module maps samples (n, ...) to logits (n, C), or to predictions (n,) for regression; the module of a user
        may return (n, 1). The names in its `state_dict` are those of the parameters.
        """
        ...

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return the loss of each sample, (B, n), given the return value of `outputs`."""
        ...

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        """Return the loss of model b on each sample of client b, (B, n); the arguments are those of `outputs`."""
        ...

    def score(self, models: Params, block: Block) -> Scored:
        """Return the loss of each model {name: (S, ...)} on each sample of a block."""
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
            ConfigError: if the learner does not support the training, such as a proximal step of a network.
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
        """Return the weighted sums of the changes that `descend` returns, for each model of the server.

        A learner may compute the sums without computing the model of each client.

        Args:
            models: Models of the server, {name: (S, ...)}.
            rows: Indices of the models that each client trains, (B, R).
            block: Samples of the clients.
            training: Local training.
            lr: Learning rate of the round.
            mass: Weight of each change in the sum, (B, R).
            memo: Field `memo` of the result of `score` for the same models and block, if available.

        Returns:
            The sums, the computation path, and for mini-batches the mean loss during training.

        Raises:
            ConfigError: if the learner does not support the training, such as a proximal step of a network.
        """
        ...


class HasFeatures(Learner, Protocol):
    """A learner whose last layer, the head, is fully connected: outputs = features weight^T + bias."""

    @property
    def head(self) -> str:
        """Name of the head, whose parameters are `HEAD.weight` (C, d) and `HEAD.bias` (C,)."""
        ...

    def features(self, theta: Params, x: Tensor) -> Tensor:
        """Return the inputs of the head, (B, n, d), for model b on the samples of client b; see `outputs`."""
        ...


@runtime_checkable
class CountsProducts(Protocol):
    """A learner that may need much more work for a sample than reading its features."""

    @property
    def products(self) -> int:
        """Number of multiplications of a forward pass for one sample."""
        ...


class TrainsTogether(Protocol):
    """A learner that may train several models of a client at once, each with its own weights of the samples."""

    def trains_together(self, training: LocalTraining) -> bool:
        """Return whether `contribute` does so with this local training; the weights are in `block.shares`."""
        ...


def trains_together(learner: Learner, training: LocalTraining) -> bool:
    """Return whether a learner trains several models of a client at once, each with its own weights of the samples."""
    return _may_train_together(learner) and learner.trains_together(training)


def _may_train_together(learner: Learner) -> TypeGuard[TrainsTogether]:
    return hasattr(learner, "trains_together")


def has_features(learner: Learner) -> TypeGuard[HasFeatures]:
    """Return whether a learner has a head; finding the head of a user's module takes some time."""
    return getattr(learner, "head", None) is not None
