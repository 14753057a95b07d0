"""Losses of single samples, with their factors explicit."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """-log softmax(logits)[y]: (..., C) and (...) to (...)."""
    return -functional.log_softmax(logits, dim=-1).gather(-1, y[..., None]).squeeze(-1)


def squared(prediction: Tensor, y: Tensor, half: bool) -> Tensor:
    """(prediction - y)^2, times 1/2 if `half`."""
    error = (prediction - y) ** 2
    return error / 2 if half else error
