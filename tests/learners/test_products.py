"""Products by oneDNN: equal to those of torch up to rounding, and used for large products in float32 only."""

from __future__ import annotations

import pytest
import torch

from coterie.learners import products

LARGE = (2, 90, 250, 200)
SMALL = (2, 9, 25, 20)


@pytest.fixture
def called(monkeypatch) -> list[int]:
    """Return a list to which every product by oneDNN appends a number."""
    calls: list[int] = []
    real = products._by_onednn
    monkeypatch.setattr(products, "_by_onednn", lambda *args: (calls.append(1), real(*args))[1])
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [LARGE, SMALL], ids=["large", "small"])
def test_products_equal_those_of_torch(sizes, dtype, called):
    count, n, m, k = sizes
    torch.manual_seed(0)
    a, b, bias = torch.randn(count, n, k), torch.randn(count, m, k), torch.randn(count, m)
    exact = torch.einsum("bnk,bmk->bnm", a.double(), b.double())
    a, b, bias = a.to(dtype), b.to(dtype), bias.to(dtype)
    with_bias = exact + bias.double()[:, None]
    close = {"rtol": 0, "atol": 1e-12 * k if dtype == torch.float64 else 1e-6 * k}
    torch.testing.assert_close(products.multiply(a[0], b[0]).double(), exact[0], **close)
    torch.testing.assert_close(products.multiply(a[0], b[0], bias[0]).double(), with_bias[0], **close)
    torch.testing.assert_close(products.multiply_each(a, b).double(), exact, **close)
    torch.testing.assert_close(products.multiply_each(a, b, bias).double(), with_bias, **close)
    total = torch.ones(count, n, m, dtype=dtype)
    first, second = a.transpose(1, 2).contiguous(), b.transpose(1, 2).contiguous()
    products.subtract_products_(total, first, second, 0.5)
    torch.testing.assert_close(total.double(), 1 - 0.5 * exact, **close)
    expected = sizes == LARGE and dtype == torch.float32 and products.onednn_is_faster()
    assert bool(called) == expected


def test_torch_offers_products_of_onednn():
    # if this fails with a new version of torch, products are correct but slower on processors that are not from Intel
    assert hasattr(torch.ops.mkldnn, "_linear_pointwise") or not torch.backends.mkldnn.is_available()
