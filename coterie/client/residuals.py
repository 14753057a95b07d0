"""Residuals of linear models."""

from __future__ import annotations

from torch import Tensor

from coterie.core.blocks import Block


def residuals(phi: Tensor, block: Block, theta: Tensor) -> Tensor:
    """Return the residuals y - <phi, theta_a>, (B, A, n), 0 for padding.

    Args:
        phi: Features, (B, n, p).
        block: Samples of B clients.
        theta: Coefficients of A models for each client, (B, A, p).
    """
    residual = block.y[:, None] - theta @ phi.transpose(1, 2)
    return residual if block.mask is None else residual * block.mask[:, None]
