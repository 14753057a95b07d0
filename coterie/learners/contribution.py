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
    """(B, R) False where a client's change was not finite, and so left out."""


def weigh(change: Params, rows: Tensor, mass: Tensor, count: int) -> Contribution:
    """Changes {name: (B, R, ...)} of the models in `rows` (B, R) of `count`, with mass (B, R), as a contribution."""
    finite = torch.ones_like(mass, dtype=torch.bool)
    for value in change.values():
        finite &= value.flatten(2).isfinite().all(dim=2) if value.dim() > 2 else value.isfinite()
    sums = {name: add_by_row(value, rows, torch.where(finite, mass, 0), count) for name, value in change.items()}
    return Contribution(sums, finite)


def add_by_row(value: Tensor, rows: Tensor, mass: Tensor, count: int) -> Tensor:
    """sum over (b, r) with rows[b, r] = s of mass[b, r] value[b, r], shape (count, ...); no mass, no trace."""
    shaped = mass.reshape(*mass.shape, *(1,) * (value.dim() - 2))
    weighted = torch.where(shaped > 0, value * shaped, 0).flatten(0, 1)
    total = torch.zeros((count, *value.shape[2:]), dtype=value.dtype, device=value.device)
    return total.index_add_(0, rows.flatten().to(value.device), weighted)
