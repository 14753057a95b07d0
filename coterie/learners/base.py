"""The one small protocol that every model family follows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.learners.contribution import Contribution, Scored
from coterie.learners.local_training import LocalTraining


class Learner(Protocol):
    """A model family with its local optimisation.

    Parameters are values: dicts of named tensors with leading batch axes, one model for each entry. B is a
    number of clients, L of tracks (models that one client trains), S of slots.
    """

    @property
    def spec(self) -> str:
        """The text that builds this learner again, such as `mlp:hidden=64`."""
        ...

    @property
    def classes(self) -> int | None:
        """C for classification; None for regression."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """The default floating type: float64 for linear models, float32 for networks."""
        ...

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """A random model for each key: {name: (len(keys), ...)}."""
        ...

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        """Model b on batch b: {name: (B, ...)}, (B, n, ...) to logits (B, n, C) or predictions (B, n)."""
        ...

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of each sample, (B, n), from what `outputs` gave."""
        ...

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        """Model b on batch b: the loss of each sample, (B, n)."""
        ...

    def score(self, models: Params, block: Block) -> Scored:
        """Every model {name: (S, ...)} on every sample of a block."""
        ...

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """The change of each client's models by its local steps: {name: (B, L, ...)}, in and out.

        `lr` is the learning rate of the round. A proximal term pulls to `theta` itself, or to `towards`, of the same
        shape.
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
        """What `descend` gives, weighted by `mass` (B, R) and added up for each of `models` {name: (S, ...)}.

        Client b trains the models in rows[b]. A learner may get there without ever holding a client's own model;
        `memo` comes from `score` of the same models and block, if they were scored. What the contribution says
        beside the sums: `path`, the way that was taken, and for mini-batches the `loss` as they were stepped on.
        """
        ...


class HasFeatures(Learner, Protocol):
    """A learner that ends in one fully connected layer, its head: outputs = features weight^T + bias."""

    @property
    def head(self) -> str:
        """The head's name: its parameters are "HEAD.weight" (C, d) and "HEAD.bias" (C,)."""
        ...

    def features(self, theta: Params, x: Tensor) -> Tensor:
        """Model b on batch b: {name: (B, ...)}, (B, n, ...) to what the head is given, (B, n, d)."""
        ...


def has_features(learner: Learner) -> TypeGuard[HasFeatures]:
    """Whether a learner ends in a head; to find that of a user's module takes time, so ask only where it matters."""
    return getattr(learner, "head", None) is not None
