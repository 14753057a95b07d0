"""The baselines, compared with their definitions."""

import numpy as np
import pytest

import coterie
from coterie.errors import ConfigError
from tests.methods.test_ifca import arrays_of, population


def test_fedavg_is_the_sample_weighted_mean_of_the_local_models():
    """One round, one step: theta - lr * sum_i (n_i/N) g_i = theta - lr * gradient of the pooled data."""
    data = population()
    start = np.array([0.1, -0.2, 0.3, 0.4])
    result = coterie.fit(data, "fedavg", learner="linear", init=[{"weight": start}], rounds=1, local_steps=1, lr=0.2)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    expected = start - 0.2 * x.T @ (x @ start - y) / len(y)
    np.testing.assert_allclose(result.models[0]["weight"], expected, rtol=1e-12)


def test_fedprox_without_pull_is_fedavg():
    data = population()
    common = {"learner": "linear", "rounds": 4, "lr": 0.1, "local_steps": 3}
    one, two = coterie.fit(data, "fedprox", mu=0.0, **common), coterie.fit(data, "fedavg", **common)
    assert np.array_equal(one.models[0]["weight"], two.models[0]["weight"])


def test_fedprox_pulls_towards_the_received_model():
    """Two steps by hand on one client: theta1 = theta0 - lr g(theta0); theta2 = theta1 - lr (g(theta1) + mu (theta1 -
    theta0))."""
    x, y = np.array([[1.0], [2.0]]), np.array([1.0, 0.0])
    data = coterie.from_arrays([(x, y)])
    result = coterie.fit(
        data, "fedprox", mu=2.0, learner="linear", init=[{"weight": np.array([3.0])}], rounds=1, local_steps=2, lr=0.1
    )
    # g(t) = mean(x (x t - y)) = 2.5 t - 0.5:  g(3) = 7,  theta1 = 2.3,  g(2.3) = 5.25
    # theta2 = 2.3 - 0.1 (5.25 + 2 (2.3 - 3)) = 2.3 - 0.385 = 1.915
    assert result.models[0]["weight"] == pytest.approx([1.915])


def test_local_models_equal_gradient_descent_on_each_client_alone():
    data = population()
    result = coterie.fit(data, "local", learner="linear", rounds=3, local_steps=2, lr=0.1, seed=1)
    start = coterie.fit(data, "fedavg", learner="linear", rounds=1, lr=1e-300, seed=1).models[0]["weight"]
    for (x, y), model in zip(arrays_of(data), result.models, strict=True):
        theta = start.copy()
        for _ in range(6):
            theta = theta - 0.1 * x.T @ (x @ theta - y) / len(y)
        np.testing.assert_allclose(model["weight"], theta, rtol=1e-9)
    assert (result.metrics["bytes_up"], result.metrics["bytes_down"]) == (0, 0)


def test_the_oracle_trains_each_true_group_as_if_it_were_alone():
    data = population()
    oracle = coterie.fit(data, "oracle", learner="linear", rounds=5, lr=0.1, seed=4)
    pairs = arrays_of(data)
    for group in (0, 1):
        part = coterie.from_arrays({f"c{i}": pairs[i] for i in range(8) if i % 2 == group})
        alone = coterie.fit(part, "fedavg", learner="linear", client_weight="uniform", rounds=5, lr=0.1, seed=4)
        np.testing.assert_allclose(oracle.models[group]["weight"], alone.models[0]["weight"], rtol=1e-12)


def test_the_oracle_needs_the_truth():
    data = coterie.from_arrays([(np.ones((3, 2)), np.ones(3))] * 4)
    with pytest.raises(ConfigError, match="oracle needs the true groups: pass truth="):
        coterie.fit(data, "oracle")


@pytest.mark.parametrize("share", [0.25, 0.6])
def test_partial_participation_asks_the_given_share(share):
    result = coterie.fit(population(), "fedavg", learner="linear", rounds=6, participation=share)
    assert [r["answered"] for r in result.records] == [round(share * 8)] * 6
    assert result.metrics["clients"] == 8, "everybody is told its cluster in the end"
