"""ODCL's logistic data: the four covariances, labels by the true models, the penalty of the paper."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario

PAPER = [[1, -1], [1, 0], [-1, 1], [0, -1]]
COVARIANCES = [[[1, 0], [0, 1]], [[2, 1], [1, 2]], [[2, 1], [1, 2]], [[2, 0], [0, 2]]]


@cache
def logistic(samples: int = 1000, seed: int = 0) -> FederatedDataset:
    return scenario("odcl-logistic", samples=samples, seed=seed)


def samples_of(population: FederatedDataset, group: int) -> tuple[np.ndarray, np.ndarray]:
    train, members = population.train, np.flatnonzero(population.truth == group)
    rows = np.concatenate([np.arange(train.starts[i], train.stops[i]) for i in members])
    return train.x[rows].numpy(), train.y[rows].numpy()


def newton(x: np.ndarray, y: np.ndarray, weights: np.ndarray, l2: float) -> np.ndarray:
    """The minimum of the weighted mean of log(1 + e^(-+logit)) + l2/2 ||weights||^2; the intercept, last, is free."""
    phi, penalty = np.column_stack([x, np.ones(len(x))]), np.array([l2, l2, 0])
    theta = np.zeros(3)
    for _ in range(30):
        p = 1 / (1 + np.exp(-phi @ theta))
        gradient = phi.T @ (weights * (p - y)) + penalty * theta
        theta -= np.linalg.solve((phi * (weights * p * (1 - p))[:, None]).T @ phi + np.diag(penalty), gradient)
    return theta


def test_sizes_and_true_models_are_those_of_the_paper():
    found = logistic()
    assert found.train.sizes.tolist() == [1000] * 100
    assert found.train.x.shape == (100000, 2)
    assert np.bincount(found.truth).tolist() == [25] * 4
    assert found.test.sizes.tolist() == [500] * 100
    assert found.true_models[:, :2].tolist() == PAPER
    assert found.true_models[:, 2].tolist() == [0, 0, 0, 0]
    assert found.options == {"clients": 100, "samples": 1000}


@pytest.mark.parametrize("group", range(4))
def test_features_have_the_covariance_of_their_group(group):
    x, _ = samples_of(logistic(), group)
    # 25000 samples: an entry's standard error is at most sqrt(2) * 2 / sqrt(25000) = 0.018
    np.testing.assert_allclose(np.cov(x.T), COVARIANCES[group], atol=0.08)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=0.05)


def test_the_third_covariance_is_what_numpy_draws_for_the_one_printed():
    random = np.random.default_rng(0)
    with pytest.warns(RuntimeWarning, match="not symmetric positive-semidefinite"):
        drawn = random.multivariate_normal([0, 0], [[1, 2], [2, 1]], 100000)
    np.testing.assert_allclose(np.cov(drawn.T), COVARIANCES[2], atol=0.05)


@pytest.mark.parametrize("group", range(4))
def test_labels_follow_the_true_model(group):
    x, y = samples_of(logistic(), group)
    found = newton(x, y, np.full(len(y), 1 / len(y)), 0.0)
    # curvature at least 0.1: standard errors up to sqrt(1 / (0.1 * 25000)) = 0.02
    np.testing.assert_allclose(found, logistic().true_models[group], atol=0.08)


def test_held_out_samples_follow_the_clients_group():
    found = logistic()
    for group in range(4):
        client = int(np.flatnonzero(found.truth == group)[0])
        rows = slice(int(found.test.starts[client]), int(found.test.stops[client]))
        x, y = found.test.x[rows].numpy(), found.test.y[rows].numpy()
        losses = [np.logaddexp(0, -(2 * y - 1) * (x @ model[:2])).mean() for model in found.true_models]
        assert int(np.argmin(losses)) == group


def test_the_true_models_are_all_but_the_optima_under_the_papers_penalty():
    nodes, weights = np.polynomial.hermite_e.hermegauss(60)
    grid = np.stack(np.meshgrid(nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).reshape(-1) / weights.sum() ** 2
    for model, covariance in zip(logistic().true_models, COVARIANCES, strict=True):
        x = grid @ np.linalg.cholesky(covariance).T
        optimum = newton(x, 1 / (1 + np.exp(-x @ model[:2])), mass, 1e-5)
        assert 1e-5 < np.linalg.norm(optimum - model) < 2e-4


def test_one_recommended_step_follows_the_papers_loss():
    # log(1 + exp(-y (<x, theta> + b))) + C/2 ||theta||^2 with y = -1 or +1 and C = 1e-5; b is not penalised
    found = scenario("odcl-logistic", clients=4, samples=6)
    weight, bias = np.array([30.0, -20.0]), 7.0  # so large that the penalty shows
    start = [{"weight": weight, "bias": np.array(bias)}]
    taken = fit(found, "fedavg", init=start, rounds=1, local_steps=1, lr=1.0).parameters[0]
    gradient = np.array([1e-5 * 30, 1e-5 * -20, 0.0])
    for x, y in zip(found.train.x.numpy(), found.train.y.numpy(), strict=True):
        sign = 2 * y - 1
        gradient -= sign / (1 + np.exp(sign * (x @ weight + bias))) * np.append(x, 1) / 24
    np.testing.assert_allclose(taken["weight"], weight - gradient[:2], rtol=0, atol=1e-9)
    assert float(taken["bias"]) == pytest.approx(bias - gradient[2], abs=1e-9)


def test_groups_do_not_depend_on_the_samples():
    assert np.array_equal(logistic().truth, logistic(samples=7).truth)


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    one = logistic(samples=7)
    assert scenario("odcl-logistic", **one.options).fingerprint() == one.fingerprint()
    assert logistic(samples=7, seed=1).fingerprint() != one.fingerprint()


def test_a_recommended_run_finds_the_groups():
    result = fit(scenario("odcl-logistic", clients=20))
    assert result.metrics["ari"] == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clients": 3}, "3 clients cannot fill 4 groups: every one needs at least one"),
        ({"samples": 0}, "samples must be a whole number at least 1, got 0"),
        ({"samples": "5-9"}, "samples must be a whole number at least 1, got '5-9'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        scenario("odcl-logistic", **options)
    assert words in str(caught.value)
