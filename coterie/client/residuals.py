"""Residuals of linear models."""

from __future__ import annotations

from torch import Tensor

from coterie.core.blocks import Block


def residuals(phi: Tensor, block: Block, theta: Tensor) -> Tensor:
    """Return y - <phi, theta_a>, (B, A, n), 0 for padding."""
    residual = block.y[:, None] - theta @ phi.transpose(1, 2)
    return residual if block.mask is None else residual * block.mask[:, None]
