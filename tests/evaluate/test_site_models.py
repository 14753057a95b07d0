"""Site intercepts and mixed models from sums, against formulas on pooled rows."""

from __future__ import annotations

import numpy as np
import pytest
import statsmodels.api as sm
from scipy.optimize import minimize

from coterie.client.group import ClientGroup
from coterie.core.dataset import Profile
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.evaluate.site_models import RIDGE, WEAK, linear_models, logistic_models
from coterie.learners import make_learner
from tests.core.make import Samples, make_shard

SIZES = (1, 6, 12, 3, 20, 9, 15, 2)


def rows(data: list[Samples]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    owner = np.repeat(np.arange(len(data)), [len(y) for _, y in data])
    return np.concatenate([x for x, _ in data]), np.concatenate([y for _, y in data]), owner


def regression(seed: int = 0, shift: float = 1000.0) -> list[Samples]:
    random = np.random.default_rng(seed)
    data = []
    for n in SIZES:
        x = random.standard_normal((n, 2))
        data.append((x, x @ [1.0, -2.0] + shift + 2 * random.standard_normal() + random.standard_normal(n)))
    return data


def federation(data: list[Samples], spec: str, classes: int | None, engine=Simulated):
    return engine(ClientGroup(make_learner(spec, Profile((2,), classes)), make_shard(data)))


@pytest.mark.parametrize("engine", [Simulated, Sequential])
@pytest.mark.parametrize("spec", ["linear", "linear:bias=true"])
def test_a_regression_has_the_models_of_statsmodels(engine, spec):
    """Pooled least squares, dummy variables, and restricted maximum likelihood."""
    data = regression()
    all_clients = np.arange(len(data))
    constant, pooled, site, mixed = linear_models(federation(data, spec, None, engine), all_clients, 3, 0)
    x, y, owner = rows(data)
    design = np.column_stack([x, np.ones(len(y))])
    assert constant.theta[:, 0].tolist() == pytest.approx([0, 0, y.mean()])
    np.testing.assert_allclose(pooled.theta[:, 0], sm.OLS(y, design).fit().params, rtol=1e-9)
    dummies = sm.OLS(y, np.column_stack([x, owner[:, None] == all_clients])).fit().params
    np.testing.assert_allclose(site.theta[:2, 0], dummies[:2], rtol=1e-8)
    np.testing.assert_allclose(site.theta[2, 0] + site.intercepts[:, 0], dummies[2:], rtol=1e-8)
    expected = sm.MixedLM(y, design, groups=owner).fit(reml=True)
    np.testing.assert_allclose(mixed.theta[:, 0], expected.fe_params, rtol=1e-4)
    effects = [float(np.asarray(expected.random_effects[i])[0]) for i in all_clients]
    np.testing.assert_allclose(mixed.intercepts[:, 0], effects, atol=2e-3)
    assert mixed.deviation == pytest.approx(float(np.sqrt(expected.cov_re[0, 0])), rel=1e-3)


def test_clients_that_do_not_differ_have_no_intercepts():
    """Every client has the same residuals +1, -1: they differ less than chance would have it."""
    x = np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    data = [(x, x @ [1.0, 3.0] + [1.0, 1.0, -1.0, -1.0])] * 6
    _, pooled, _, mixed = linear_models(federation(data, "linear", None), np.arange(6), 3, 0)
    assert mixed.deviation == 0
    np.testing.assert_allclose(mixed.theta, pooled.theta, atol=1e-9)
    assert not mixed.intercepts.any()


def classification(classes: int, seed: int = 0) -> list[Samples]:
    random = np.random.default_rng(seed)
    slopes = random.standard_normal((2, classes))
    data = []
    for n in SIZES * 2:
        x = random.standard_normal((n, 2))
        logits = x @ slopes + random.standard_normal(classes) + random.gumbel(size=(n, classes))
        data.append((x, logits.argmax(axis=1)))
    return data


@pytest.mark.parametrize("classes", [2, 3])
def test_a_classification_minimises_its_penalised_loss(classes):
    """Against a general optimiser on the pooled rows; the variance of the mixed model is that at its fixed point."""
    data = classification(classes)
    x, y, owner = rows(data)
    m, q = len(data), classes - 1
    constant, pooled, site, mixed = logistic_models(federation(data, "logistic", classes), np.arange(m), 3, classes, 0)
    shares = np.exp(np.append(0, constant.theta[-1]))
    counts = np.bincount(y, minlength=classes) + 0.5
    np.testing.assert_allclose(shares / shares.sum(), counts / counts.sum(), rtol=1e-9)
    design = np.column_stack([x, np.ones(len(y))])

    def loss(values: np.ndarray, precision: float | None) -> float:
        theta = values[: 3 * q].reshape(3, q)
        own = values[3 * q :].reshape(-1, q) if precision is not None else np.zeros((m, q))
        logits = np.column_stack([np.zeros(len(y)), design @ theta + own[owner]])
        spread = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(y)), y]
        return spread.sum() + RIDGE * (theta[:-1] ** 2).sum() / 2 + (precision or 0) * (own**2).sum() / 2

    best = minimize(loss, np.zeros(3 * q), args=(None,)).x
    np.testing.assert_allclose(pooled.theta, best.reshape(3, q), atol=2e-3)
    best = minimize(loss, np.zeros((3 + m) * q), args=(1 / WEAK,)).x
    np.testing.assert_allclose(site.theta, best[: 3 * q].reshape(3, q), atol=5e-3)
    np.testing.assert_allclose(site.intercepts, best[3 * q :].reshape(m, q), atol=2e-2)
    assert mixed.deviation is not None
    assert 0.3 < mixed.deviation < 3, "intercepts were drawn with differences of standard deviation 1.4"
    assert np.abs(mixed.intercepts).max() < np.abs(site.intercepts).max(), "they are shrunk"


def test_a_client_with_one_class_has_a_finite_intercept():
    data = [*classification(2), (np.zeros((9, 2)), np.ones(9, dtype=np.int64))]
    models = logistic_models(federation(data, "logistic", 2), np.arange(len(data)), 3, 2, 0)
    for model in models:
        assert np.isfinite(model.theta).all()
        assert np.isfinite(model.intercepts).all()
    assert models[3].intercepts[-1, 0] > 0
