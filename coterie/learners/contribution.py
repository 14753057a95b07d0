"""From the clients' changes to what enters the sums: weighted, slot by slot, and only what is finite."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.clusters import Params


@dataclass(frozen=True)
class Scored:
    """Every model on every sample of a block."""

    losses: Tensor
    """(B, n, S)."""
    memo: Tensor | None = None
    """What the learner can use again when it trains these models on this block; its own affair."""


@dataclass(frozen=True)
class Contribution:
    """A block's part of a round's sums."""

    sums: Params
    """{name: (S, ...)} mass times change, added over the clients that trained the model in that row."""
    finite: Tensor
    """(B, R) False where a client's change or loss was not finite, and so left out."""
    path: str
    """The way the learner took, for the record: the same result to rounding, at another cost."""
    loss: Tensor | None = None
    """(B, R) mean loss of the samples stepped on, each when it was stepped on; None for full-batch steps."""
    pooled: bool = False
    """Whether the sums are moments of the samples, from which the server makes the models, and no changes of them."""


def weigh(
    change: Params, rows: Tensor, mass: Tensor, count: int, path: str, loss: Tensor | None = None
) -> Contribution:
    """Changes {name: (B, R, ...)} of the models in `rows` (B, R) of `count`, with mass (B, R), as a contribution."""
    finite = torch.ones_like(mass, dtype=torch.bool) if loss is None else loss.isfinite()
    for value in change.values():
        finite = finite & all_finite(value)
    kept = torch.where(finite, mass, 0)
    return Contribution(
        {name: add_by_row(value, rows, kept, count) for name, value in change.items()}, finite, path, loss
    )


def all_finite(value: Tensor) -> Tensor:
    """(B, R) whether all of a value (B, R, ...) is finite."""
    flat = value.reshape(*value.shape[:2], -1)
    # a finite sum has finite terms only, and costs a small part of looking at each; an infinite one says nothing
    sums = flat.sum(dim=2).isfinite()
    return sums if bool(sums.all()) else flat.isfinite().all(dim=2)


def finite_models(models: Params) -> Tensor:
    """(B, R) whether all of {name: (B, R, ...)} is finite."""
    sound: Tensor | None = None
    for value in models.values():
        sound = all_finite(value) if sound is None else sound & all_finite(value)
    assert sound is not None
    return sound


def add_by_row(value: Tensor, rows: Tensor, mass: Tensor, count: int) -> Tensor:
    """sum over (b, r) with rows[b, r] = s of mass[b, r] value[b, r], shape (count, ...); no mass, no trace."""
    shaped = mass.reshape(*mass.shape, *(1,) * (value.dim() - 2))
    weighted = value * shaped
    if not bool(mass.all()):  # 0 times what is not finite would be NaN
        weighted = torch.where(shaped != 0, weighted, 0)
    total = torch.zeros((count, *value.shape[2:]), dtype=value.dtype, device=value.device)
    return total.index_add_(0, rows.flatten().to(value.device), weighted.flatten(0, 1))
