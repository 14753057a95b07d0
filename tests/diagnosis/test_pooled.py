"""Pooled fits from sums against fits of the pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.data import from_arrays
from coterie.diagnosis.diagnose import federation_of
from coterie.diagnosis.pooled import pooled_fit, principal_basis
from coterie.diagnosis.session import Session
from coterie.errors import InputError
from tests.diagnosis.make import federation


def fitted(data):
    data = data.compact()
    return pooled_fit(Session.of(federation_of(data, 0)), data.profile, 0)


def design(data, pooled) -> np.ndarray:
    z = (data.train.x.numpy() - pooled.common["center"].numpy()) @ pooled.common["basis"].numpy()
    return np.column_stack([np.ones(len(z)), z])


def test_least_squares_is_that_of_the_pooled_rows():
    data = federation()
    pooled = fitted(data)
    x, y = design(data, pooled), data.train.y.numpy()
    assert x.T @ x / len(x) == pytest.approx(np.eye(4), abs=1e-10)
    theta, rss, *_ = np.linalg.lstsq(x, y - y.mean(), rcond=None)
    sigma = np.sqrt(rss[0] / (len(y) - 4))
    assert pooled.common["model"].numpy()[:, 0] * sigma == pytest.approx(theta, abs=1e-10)
    assert pooled.score == pytest.approx(sigma**2)


def test_the_logistic_fit_has_no_gradient_left():
    data = federation(classes=2, distance=0)
    pooled = fitted(data)
    x, y = design(data, pooled), data.train.y.numpy()
    theta, contrast = pooled.common["model"].numpy()[:, 0], pooled.common["contrast"].numpy()[0]
    log_odds = x @ theta * (contrast[1] - contrast[0])
    p = 1 / (1 + np.exp(-log_odds))
    gradient = x.T @ (y - p) * (contrast[1] - contrast[0]) - np.r_[0, theta[1:]]
    assert gradient == pytest.approx(np.zeros(4), abs=1e-3)
    loss = -np.mean(np.where(y == 1, np.log(p), np.log(1 - p)))
    assert pooled.score == pytest.approx(loss, abs=1e-6)


def test_constant_and_collinear_features_are_left_out():
    """Of x, 2 x, a constant and an independent feature two directions remain."""
    random = np.random.default_rng(0)

    def client():
        x = random.standard_normal((20, 2))
        return np.column_stack([x[:, 0], 2 * x[:, 0], np.full(20, 7.0), x[:, 1]]), x.sum(axis=1)

    pooled = fitted(from_arrays([client() for _ in range(5)]))
    assert pooled.components == 2
    assert bool(torch.isfinite(pooled.common["model"]).all())


def test_the_basis_has_unit_variance():
    """Variances 4 and 1, covariance 1: correlation 1/2, eigenvalues 3/2 and 1/2."""
    covariance = torch.tensor([[4.0, 1], [1, 1]]).double()
    basis, rank = principal_basis(covariance, torch.zeros(2), 2)
    assert rank == 2
    assert torch.allclose(basis.T @ covariance @ basis, torch.eye(2).double())
    first = torch.tensor([0.5, 1]).double() / 3**0.5  # (1/2, 1) / sqrt 2 / sqrt 3/2
    assert torch.allclose(basis[:, 0].abs(), first)


def test_classes_that_a_plane_separates_have_a_finite_fit():
    x = np.linspace(-1, 1, 20)[:, None]
    pooled = fitted(from_arrays([(x, (x[:, 0] > 0).astype(int))] * 4))
    assert bool(torch.isfinite(pooled.common["model"]).all())
    assert 0 < pooled.score < 0.2


@pytest.mark.parametrize("y", [np.full(5, 3.5), np.zeros(5, dtype=int)])
def test_targets_that_are_all_the_same_are_refused(y):
    with pytest.raises(InputError, match="nothing to predict"):
        fitted(from_arrays([(np.arange(10.0).reshape(5, 2), y)] * 4))
