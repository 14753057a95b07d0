"""IFCA's synthetic data: zeros and ones times R, equal groups, least squares finds the models."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario


@cache
def small(noise: float = 0.1, norm: float = 1.0, seed: int = 0) -> FederatedDataset:
    return scenario("ifca-synthetic", clients=12, samples=40, dimension=20, groups=3, norm=norm, noise=noise, seed=seed)


def samples_of(population: FederatedDataset, group: int) -> tuple[np.ndarray, np.ndarray]:
    train, members = population.train, np.flatnonzero(population.truth == group)
    rows = np.concatenate([np.arange(train.starts[i], train.stops[i]) for i in members])
    return train.x[rows].numpy(), train.y[rows].numpy()


def test_sizes_are_those_asked_for():
    found = small()
    assert found.train.sizes.tolist() == [40] * 12
    assert found.train.x.shape == (480, 20)
    assert np.bincount(found.truth).tolist() == [4, 4, 4]
    assert found.test.sizes.tolist() == [500] * 12
    assert found.true_models.shape == (3, 20)


def test_the_true_models_are_r_times_zeros_and_ones():
    models = small(norm=0.25).true_models
    assert set(np.unique(models)) == {0.0, 0.25}
    assert 0.3 < (models > 0).mean() < 0.7  # 60 fair coins: 0.5 +- 0.065
    assert len({tuple(model) for model in models}) == 3


@pytest.mark.parametrize("group", range(3))
def test_least_squares_finds_the_model(group):
    x, y = samples_of(small(), group)
    fitted = np.linalg.lstsq(x, y, rcond=None)[0]
    # 160 samples, 20 numbers: the expected distance is 0.1 sqrt(20/139) = 0.038
    assert np.linalg.norm(fitted - small().true_models[group]) < 0.08
    residual = y - x @ small().true_models[group]
    assert residual.std() == pytest.approx(0.1, rel=0.2)


def test_without_noise_targets_are_exact():
    for group in range(3):
        x, y = samples_of(small(noise=0.0), group)
        assert np.allclose(y, x @ small(noise=0.0).true_models[group], atol=1e-12)


def test_held_out_samples_follow_the_clients_group():
    test = small(noise=0.0).test
    for client in range(12):
        part = slice(int(test.starts[client]), int(test.stops[client]))
        model = small(noise=0.0).true_models[small(noise=0.0).truth[client]]
        assert np.allclose(test.y[part].numpy(), test.x[part].numpy() @ model, atol=1e-12)


def test_features_are_standard_normal():
    x = small().train.x.numpy()
    assert x.mean() == pytest.approx(0, abs=0.04)  # 9600 numbers: 4 standard errors
    assert np.allclose(np.cov(x.T), np.eye(20), atol=0.3)


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    assert scenario("ifca-synthetic", **small().options).fingerprint() == small().fingerprint()
    assert small(seed=1).fingerprint() != small().fingerprint()


def test_the_defaults_are_those_of_the_paper():
    found = scenario("ifca-synthetic", dimension=10)
    assert found.train.sizes.tolist() == [100] * 100
    assert found.options == {
        "clients": 100, "samples": 100, "dimension": 10, "groups": 2, "norm": 1.0, "noise": 0.1,
    }  # fmt: skip


def test_a_recommended_run_with_known_groups_meets_the_papers_measure():
    # with known groups, so that it judges the data and the step size and not the luck of a start
    result = fit(scenario("ifca-synthetic", clients=20, samples=50, dimension=20), "oracle")
    config = result.config
    assert "half=false" in config["learner"]
    assert (config["exchange"], config["averaging"], config["local_steps"]) == ("gradient", "all", 1)
    assert result.metrics["parameter_error"] <= 0.6 * 0.1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clients": 101}, "clients must be a multiple of groups=2, since groups are of equal size; got 101"),
        ({"samples": "10-20"}, "samples must be a whole number at least 1, got '10-20'"),
        ({"samples": 0}, "samples must be a whole number at least 1, got 0"),
        ({"noise": "0.1,0.2"}, "noise must be a number at least 0, got '0.1,0.2'"),
        ({"noise": -1}, "noise must be a number at least 0, got -1.0"),
        ({"noise": float("inf")}, "noise must be a number at least 0, got inf"),
        ({"norm": 0.0}, "norm must be a number above 0"),
    ],
)
def test_options_that_cannot_be_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        scenario("ifca-synthetic", **options)
