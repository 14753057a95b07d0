"""Large matrix products in float32, by the library that is faster on this processor.

For products, torch calls MKL, which does not use the widest vector instructions of processors of other makers; for
convolutions it calls oneDNN, which does. Products of oneDNN are up to twice as fast there, and equally fast elsewhere.
The choice depends on the processor and on the sizes only, so that a run gives the same result when it is repeated.
These functions are not differentiable.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

PAYS = 4_000_000
"""Number of multiplications of a single product from which oneDNN is faster in spite of its cost for each call."""

SHORTEST_SUMS = 32
"""Number of terms of each sum from which oneDNN is faster."""


@cache
def onednn_is_faster() -> bool:
    """Return whether torch has products of oneDNN with vector instructions that MKL may leave unused."""
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    known: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return wide and known and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def multiply(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b^T, plus a bias for each column.

    Args:
        a: First factor, (n, k).
        b: Second factor, (m, k).
        bias: Biases, (m,).

    Returns:
        The product, (n, m).
    """
    if _pays(a, len(a), len(b)):
        return _by_onednn(a, b, bias)
    return a @ b.T if bias is None else torch.addmm(bias, a, b.T)


def multiply_each(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return a b^T for each of B pairs, plus a bias for each column.

    Args:
        a: First factors, (B, n, k).
        b: Second factors, (B, m, k).
        bias: Biases, (B, m).

    Returns:
        The products, (B, n, m).
    """
    if _pays(a, a.shape[1], b.shape[1]):
        biases = [None] * len(a) if bias is None else bias.unbind()
        return torch.stack([_by_onednn(*pair) for pair in zip(a.unbind(), b.unbind(), biases, strict=True)])
    turned = b.transpose(1, 2)
    return torch.bmm(a, turned) if bias is None else torch.baddbmm(bias[:, None], a, turned)


def subtract_products_(total: Tensor, a: Tensor, b: Tensor, factor: float) -> None:
    """Subtract `factor` times a^T b from each of B matrices, in place.

    Args:
        total: The matrices, (B, m, k).
        a: First factors, (B, n, m).
        b: Second factors, (B, n, k).
        factor: The factor.
    """
    if _pays(a.transpose(1, 2), total.shape[1], total.shape[2]):
        for one, first, second in zip(total.unbind(), a.unbind(), b.unbind(), strict=True):
            one.sub_(_by_onednn(first.T, second.T, None), alpha=factor)
        return
    total.baddbmm_(a.transpose(1, 2), b, alpha=-factor)


def _pays(a: Tensor, rows: int, columns: int) -> bool:
    """Return whether oneDNN is faster for products of `rows` by `columns` numbers with sums over the last axis of a."""
    terms = a.shape[-1]
    large = terms >= SHORTEST_SUMS and rows * columns * terms >= PAYS
    return large and a.dtype == torch.float32 and a.device.type == "cpu" and onednn_is_faster()


def _by_onednn(a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, "none", [], "")
    return product
