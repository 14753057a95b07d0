"""Where models may begin: names with settings, and the starts that are for experiments."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.errors import ConfigError
from coterie.training.planning import prepare
from coterie.training.starting import begin
from coterie.training.starts import read_start


def first_models(data, start: str, method: str = "ifca", **options) -> np.ndarray:
    return begin(prepare(data, method, None, start, options)).state.clusters.params["weight"].numpy()


@pytest.fixture(scope="module")
def linear():
    return coterie.scenario("odcl-clusterpath", clients=8, samples="40")


def test_a_name_with_settings():
    assert read_start("random") == ("random", {})
    assert read_start("gaussian:sd=2") == ("gaussian", {"sd": 2.0})
    assert read_start("near-truth:low=0.1,high=0.2") == ("near-truth", {"low": 0.1, "high": 0.2})
    assert read_start("runs/odcl") is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gaussian:scale=2", "unknown setting of start gaussian 'scale'"),
        ("gaussian:sd", "sd=VALUE"),
        ("gaussian:sd=wide", "sd must be a number"),
        ("gaussian:sd=-1", "sd must be a number at least 0"),
        ("random:sd=1", "random has no settings"),
        ("odcl:clustering=kmeans", "clustering must be one of kmeans"),
    ],
)
def test_mistakes_in_settings(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        read_start(text)


def test_a_gaussian_start_has_the_scale_it_was_given(linear):
    models = first_models(linear, "gaussian:sd=5", restarts=100)
    assert models.shape == (400, 20)
    assert models.std() == pytest.approx(5, rel=0.05)
    assert first_models(linear, "gaussian:sd=1", restarts=2) == pytest.approx(models[:8] / 5, rel=1e-12)


def test_equal_models_never_separate(linear):
    with pytest.raises(ConfigError, match="sd=0 makes all clusters equal"):
        first_models(linear, "gaussian:sd=0")
    assert (first_models(linear, "gaussian:sd=0", "fedavg") == 0).all()


def test_near_truth_keeps_its_distance(linear):
    true = linear.true_models
    apart = min(np.linalg.norm(a - b) for i, a in enumerate(true) for b in true[:i])
    models = first_models(linear, "near-truth:low=0.2,high=0.25", restarts=20).reshape(20, 4, 20)
    lengths = np.linalg.norm(models - true, axis=2) / apart
    assert lengths.min() >= 0.2
    assert lengths.max() <= 0.25
    assert lengths.std() > 0.005


def test_near_truth_needs_to_know_it(linear):
    with pytest.raises(ConfigError, match="is above high"):
        first_models(linear, "near-truth:low=0.5,high=0.2")
    with pytest.raises(ConfigError, match="4 true models, but clusters=3"):
        first_models(linear, "near-truth", clusters=3)
    with pytest.raises(ConfigError, match="known true models"):
        first_models(coterie.scenario("opposite-labels", clients=4), "near-truth")


def test_a_noisy_cluster_oracle(linear):
    exact = first_models(linear, "cluster-oracle:noise=0", restarts=1)
    noisy = first_models(linear, "cluster-oracle:noise=0.5", restarts=50).reshape(50, 4, 20)
    assert (noisy - exact).std() == pytest.approx(0.5, rel=0.05)
    assert weights_of(linear) == pytest.approx(exact, rel=1e-12)
    with pytest.raises(ConfigError, match="4 true groups, but clusters=2"):
        first_models(linear, "cluster-oracle", clusters=2)


def weights_of(data) -> np.ndarray:
    return np.stack([m["weight"] for m in coterie.fit(data, "cluster-oracle").models])


def test_a_start_with_settings_is_kept_for_resuming(linear, tmp_path):
    whole = coterie.fit(linear, "ifca", start="gaussian:sd=2", rounds=3, out=tmp_path / "run")
    assert whole.config["start"] == "gaussian:sd=2"


def test_moment_descent_takes_settings_before_any_method():
    data = coterie.scenario("mixed-regression", clients=40, groups=2, dimension=4)
    begun = begin(prepare(data, "ifca", None, "moment-descent:anchors=7", {"clusters": 2}))
    assert len(begun.told["moment_descent"]["anchors"]) == 7


@pytest.mark.parametrize("method", ["odcl", "one-shot", "local-erm"])
def test_a_one_shot_method_begins_in_its_own_way(method: str, linear):
    with pytest.raises(ConfigError, match="start means nothing"):
        coterie.fit(linear, method, start="gaussian")


def test_a_misspelt_start_is_answered_with_the_nearest_one(linear):
    with pytest.raises(ConfigError, match="unknown start 'odlc': did you mean 'odcl'"):
        coterie.fit(linear, "ifca", start="odlc:clustering=convex")
