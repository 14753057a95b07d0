"""Weighted sums of the clients' model changes, slot by slot, without changes that are not finite."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.clusters import Params


@dataclass(frozen=True)
class Scored:
    """Losses of all models on all samples of a block."""

    losses: Tensor
    """Loss of each model on each sample, (B, n, S)."""
    memo: Tensor | None = None
    """Intermediate result that the learner can reuse when it trains these models on this block."""


@dataclass(frozen=True)
class Contribution:
    """Contribution of the clients of a block to the sums of a round."""

    sums: Params
    """Sum of mass times change over the clients that trained each model, {name: (S, ...)}."""
    finite: Tensor
    """Whether each client's change and loss are finite, (B, R); others are left out."""
    path: str
    """Name of the computation path of the learner, for the record; results of all paths are equal up to rounding."""
    loss: Tensor | None = None
    """Mean loss of the mini-batches during training, (B, R); None for full-batch steps."""
    pooled: bool = False
    """Whether the sums are moments of the samples, from which the server computes models, instead of changes."""


def weigh(
    change: Params, rows: Tensor, mass: Tensor, count: int, path: str, loss: Tensor | None = None
) -> Contribution:
    """Return the contribution of changes of models.

    Args:
        change: Change of each model, {name: (B, R, ...)}.
        rows: Indices of the models, (B, R).
        mass: Weight of each change, (B, R).
        count: Number of models of the server (S).
        path: Name of the computation path.
        loss: Mean loss during training, (B, R).
    """
    finite = torch.ones_like(mass, dtype=torch.bool) if loss is None else loss.isfinite()
    for value in change.values():
        finite = finite & all_finite(value)
    kept = torch.where(finite, mass, 0)
    return Contribution(
        {name: add_by_row(value, rows, kept, count) for name, value in change.items()}, finite, path, loss
    )


def all_finite(value: Tensor) -> Tensor:
    """Return whether all entries of a value (B, R, ...) are finite, (B, R)."""
    flat = value.reshape(*value.shape[:2], -1)
    # a finite sum implies finite terms and is much cheaper to check; otherwise check each term
    sums = flat.sum(dim=2).isfinite()
    return sums if bool(sums.all()) else flat.isfinite().all(dim=2)


def finite_models(models: Params) -> Tensor:
    """Return whether all parameters of each model {name: (B, R, ...)} are finite, (B, R)."""
    finite: Tensor | None = None
    for value in models.values():
        finite = all_finite(value) if finite is None else finite & all_finite(value)
    assert finite is not None
    return finite


def add_by_row(value: Tensor, rows: Tensor, mass: Tensor, count: int) -> Tensor:
    """Return the sums of mass[b, r] value[b, r] over all (b, r) with rows[b, r] = s, (count, ...).

    Values without mass are ignored, even if they are not finite.
    """
    shaped = mass.reshape(*mass.shape, *(1,) * (value.dim() - 2))
    weighted = value * shaped
    if not bool(mass.all()):  # 0 times infinity would be NaN
        weighted = torch.where(shaped != 0, weighted, 0)
    total = torch.zeros((count, *value.shape[2:]), dtype=value.dtype, device=value.device)
    return total.index_add_(0, rows.flatten().to(value.device), weighted.flatten(0, 1))
