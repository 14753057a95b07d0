"""ODCL's linear data, both sets of intervals: five active features, models from their intervals, least squares."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario

PAPER = [(1, 2), (4, 5), (7, 8), (10, 11), (13, 14), (-2, -1), (-5, -4), (-8, -7), (-11, -10), (-14, -13)]
BOTH = ("odcl-linear", "odcl-clusterpath")


@cache
def linear(**options) -> FederatedDataset:
    return scenario("odcl-linear", **options)


def samples_of(population: FederatedDataset, client: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(int(population.train.starts[client]), int(population.train.stops[client]))
    return population.train.x[rows].numpy(), population.train.y[rows].numpy()


def local_models(population: FederatedDataset) -> np.ndarray:
    """Least squares on each client's own samples, (m, d)."""
    pairs = [samples_of(population, client) for client in range(len(population.clients))]
    return np.stack([np.linalg.lstsq(x, y, rcond=None)[0] for x, y in pairs])


def normalised_error(population: FederatedDataset, models: np.ndarray) -> float:
    """The paper's measure: the mean over clients of ||u_i - u*||^2 / ||u*||^2."""
    true = population.true_models[population.truth]
    return float((((models - true) ** 2).sum(axis=1) / (true**2).sum(axis=1)).mean())


def test_the_defaults_are_those_of_the_paper():
    found = linear()
    assert found.train.sizes.tolist() == [400] * 100
    assert found.train.x.shape == (40000, 20)
    assert np.bincount(found.truth).tolist() == [10] * 10
    assert found.test.sizes.tolist() == [500] * 100
    for (low, high), model in zip(PAPER, found.true_models, strict=True):
        assert model.shape == (20,)
        assert low <= model.min() < model.max() <= high


def test_the_four_groups_of_the_clusterpath_experiment():
    found = scenario("odcl-clusterpath")
    assert found.options == {"clients": 100, "samples": "400"}
    assert np.bincount(found.truth).tolist() == [25] * 4
    assert found.group_names == ("0 to 1", "1 to 2", "-1 to 0", "-2 to -1")
    for (low, high), model in zip([(0, 1), (1, 2), (-1, 0), (-2, -1)], found.true_models, strict=True):
        assert model.shape == (20,)
        assert low <= model.min() < model.max() <= high


def test_it_is_the_linear_scenario_with_other_intervals():
    same = linear(intervals="0:1,1:2,-1:0,-2:-1", samples="30")
    assert scenario("odcl-clusterpath", samples="30").fingerprint() == same.fingerprint()


def test_models_spread_over_their_intervals():
    model = linear(intervals="1:2", samples="1", clients=1, dimension=2000).true_models[0]
    # uniform in [1, 2]: mean 1.5, variance 1/12; four standard errors
    assert model.mean() == pytest.approx(1.5, abs=4 * np.sqrt(1 / 12 / 2000))
    assert model.var() == pytest.approx(1 / 12, rel=0.1)


@pytest.mark.parametrize("name", BOTH)
def test_five_features_of_a_sample_are_active_and_all_alike(name):
    x = scenario(name).train.x.numpy()
    assert np.array_equal((x != 0).sum(axis=1), np.full(40000, 5))
    # E[x x^T] = I/4. A diagonal entry has variance 3/4 - 1/16 = 0.6875, one next to it 5*4 / (20*19) = 0.053
    moment = x.T @ x / len(x)
    assert np.abs(np.diag(moment) - 0.25).max() < 5 * np.sqrt(0.6875 / 40000)
    assert np.abs(moment - np.diag(np.diag(moment))).max() < 5 * np.sqrt(0.053 / 40000)


def test_with_five_dimensions_all_are_active():
    assert (linear(dimension=5, samples="10").train.x != 0).all()


@pytest.mark.parametrize("name", BOTH)
def test_held_out_samples_are_those_of_the_clients_group(name):
    found = scenario(name, samples="1")
    for client, group in enumerate(found.truth):
        rows = slice(int(found.test.starts[client]), int(found.test.stops[client]))
        residual = found.test.y[rows].numpy() - found.test.x[rows].numpy() @ found.true_models[group]
        # 500 samples: a standard deviation of 1 +- 0.032; with another group's model 2 and more
        assert residual.std() == pytest.approx(1, abs=0.15)


def test_without_noise_a_client_finds_its_groups_model():
    found = linear(noise=0.0, samples="100")
    assert np.allclose(local_models(found), found.true_models[found.truth], rtol=0, atol=1e-9)


def test_local_models_miss_by_what_theory_says():
    # sigma^2 tr(E[x x^T]^-1) / n = 80 / n to first order; with so few samples a few per cent more
    found = linear(samples="800", intervals="1:2,-2:-1")
    expected = 80 / 800 * (1 / (found.true_models[found.truth] ** 2).sum(axis=1)).mean()
    # a client's error is nearly chi^2 with 20 degrees of freedom: relative deviation 0.32, of 100 clients 0.032
    assert normalised_error(found, local_models(found)) == pytest.approx(expected, rel=0.2)


def test_averages_of_ten_clients_miss_by_a_tenth():
    found = linear(samples="300")
    local = local_models(found)
    average = np.stack([local[found.truth == group].mean(axis=0) for group in range(10)])[found.truth]
    ratio = normalised_error(found, average) / normalised_error(found, local)
    assert 0.05 < ratio < 0.17  # 0.10 with a deviation of 0.017 over seeds


def test_sizes_may_differ():
    sizes = linear(samples="60-600").train.sizes
    assert len(sizes) == 100
    assert 60 <= sizes.min() < 120
    assert 540 < sizes.max() <= 600


def test_groups_and_models_do_not_depend_on_samples_and_noise():
    one, two = linear(samples="10"), linear(samples="7-9", noise=0.0)
    assert np.array_equal(one.truth, two.truth)
    assert np.array_equal(one.true_models, two.true_models)


def test_groups_differ_by_at_most_one_client():
    assert sorted(np.bincount(linear(clients=13, samples="3", intervals="1:2,4:5,7:8").truth)) == [4, 4, 5]


@pytest.mark.parametrize("name", BOTH)
def test_the_same_seed_gives_the_same_data_and_another_seed_other_data(name):
    one = scenario(name, samples="5-9", clients=20, seed=3)
    assert scenario(name, seed=3, **one.options).fingerprint() == one.fingerprint()
    assert scenario(name, seed=4, **one.options).fingerprint() != one.fingerprint()


def test_a_recommended_run_finds_the_four_groups():
    result = fit(scenario("odcl-clusterpath"))
    assert result.metrics["ari"] == 1
    assert result.metrics["parameter_error"] < 0.3  # pooled least squares: about sqrt(80 / 10000) = 0.09 on average


def test_a_recommended_run_with_the_ten_known_groups_settles():
    result = fit(linear(), "oracle")
    assert len(result.parameters) == 10
    # pooled least squares of 4000 samples: sqrt(80 / 4000) = 0.14 on average, and the largest of ten
    assert result.metrics["parameter_error"] < 0.3


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"intervals": "1-2"}, "intervals must look like 1:2,-2:-1 with one for each group, got '1-2'"),
        ({"intervals": "1:2:3"}, "intervals must look like 1:2,-2:-1"),
        ({"intervals": "1:2,3"}, "intervals must look like 1:2,-2:-1"),
        ({"intervals": ""}, "intervals must look like 1:2,-2:-1"),
        ({"intervals": "2:1"}, "intervals='2:1': ends must be finite, and the first must not exceed the second"),
        ({"intervals": "1:inf"}, "ends must be finite"),
        ({"intervals": "nan:1"}, "ends must be finite"),
        ({"clients": 9}, "9 clients cannot fill 10 groups: every one needs at least one"),
        ({"samples": "many"}, "samples must look like 50, 10-200 or 900x10+20x50, got 'many'"),
        ({"dimension": 4}, "dimension must be a whole number at least 5, got 4"),
        ({"noise": -1.0}, "noise must be a number at least 0, got -1.0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        scenario("odcl-linear", **options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
