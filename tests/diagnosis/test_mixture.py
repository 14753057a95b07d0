"""Mixtures of quadratic log likelihoods against numerical integrals and known groups."""

from __future__ import annotations

import numpy as np
import pytest

from coterie.diagnosis.mixture import Evidence, fit_points, fit_spread


def evidence_around(centres: np.ndarray, spread: float, sizes: np.ndarray, seed: int = 0) -> Evidence:
    """Clients with H_i = n_i I and differences from their centres with this standard deviation."""
    random = np.random.default_rng(seed)
    own = centres[np.arange(len(sizes)) % len(centres)] + spread * random.standard_normal(
        (len(sizes), centres.shape[1])
    )
    score = sizes[:, None] * own + np.sqrt(sizes)[:, None] * random.standard_normal(own.shape)
    return Evidence(score, sizes[:, None, None] * np.eye(centres.shape[1]))


def test_a_spread_is_integrated_out():
    """log of the integral of exp(s u - h u^2 / 2) over u ~ N(mu, t), on a grid."""
    s, h, mu, t = 1.3, 2.0, 0.4, 0.5
    u = np.linspace(-15, 15, 200_001)
    density = np.exp(-((u - mu) ** 2) / (2 * t)) / np.sqrt(2 * np.pi * t)
    wanted = np.log(np.trapezoid(np.exp(s * u - h * u**2 / 2) * density, u))
    spread, constants, _ = Evidence(np.array([[s]]), np.array([[[h]]])).spread_by(np.array([t]))
    assert constants[0] + spread.of_centres(np.array([[mu]]))[0, 0] == pytest.approx(wanted, abs=1e-9)


def test_the_posterior_of_a_client_by_hand():
    """s = 3, h = 2, t = 1: the covariance of u is 1 / (2 + 1) and its mean at mu = 0 is 1."""
    _, _, covariance = Evidence(np.array([[3.0]]), np.array([[[2.0]]])).spread_by(np.array([1.0]))
    assert covariance[0, 0, 0] == pytest.approx(1 / 3)


def test_points_are_found_with_their_number():
    centres = np.array([[1.0, 0], [-1, 0], [0, 1]])
    sizes = np.exp(np.linspace(0, 6, 60))
    evidence = evidence_around(centres, 0, sizes)
    random, found = np.random.default_rng(0), []
    for clusters in range(1, 6):
        found.append(fit_points(evidence, clusters, found[-1] if found else None, random))
    best = min(found, key=lambda mixture: mixture.criterion)
    assert best.clusters == 3
    nearest = np.linalg.norm(best.centres[:, None] - centres[None], axis=2).min(axis=1)
    assert nearest.max() < 0.2
    large = sizes > 30
    assert best.memberships[large].max(axis=1).min() > 0.95
    assert best.memberships[0].max() < 0.95  # one sample tells little


def test_a_smooth_spread_beats_points():
    evidence = evidence_around(np.zeros((1, 2)), 0.7, np.full(80, 50.0))
    random = np.random.default_rng(0)
    one = fit_points(evidence, 1, None, random)
    smooth = fit_spread(evidence, one, common=True)
    points = [fit_points(evidence, clusters, None, random) for clusters in (2, 3, 4, 6)]
    assert smooth.criterion < min(mixture.criterion for mixture in [one, *points]) - 10
    assert smooth.variances == pytest.approx([0.49, 0.49], rel=0.3)
