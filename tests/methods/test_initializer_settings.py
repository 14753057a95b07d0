"""Initializers by their texts: names with settings, and initializers for experiments."""

from __future__ import annotations

import numpy as np
import pytest

import coterie
from coterie.core.plain import from_text
from coterie.errors import ConfigError
from coterie.methods import IFCA, GaussianInit, NearTruth, RandomInit
from coterie.methods.run import Initializer
from coterie.training.earlier import initializer_of
from coterie.training.fitting import initialize
from coterie.training.planning import prepare


def first_models(data, init: str, method: str = "ifca", **options) -> np.ndarray:
    return initialize(prepare(data, method, None, {"init": init, **options})).state.clusters.params["weight"].numpy()


@pytest.fixture(scope="module")
def linear():
    return coterie.scenario("odcl-clusterpath", clients=8, samples="40")


def test_a_name_with_settings():
    assert from_text(Initializer, "random") == RandomInit()
    assert from_text(Initializer, "gaussian:sd=2") == GaussianInit(sd=2.0)
    assert from_text(Initializer, "near-truth:low=0.1,high=0.2") == NearTruth(low=0.1, high=0.2)
    with pytest.raises(ConfigError, match="'runs/odcl' is not a run folder"):
        initializer_of("runs/odcl", IFCA)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gaussian:scale=2", "unknown setting 'scale' of gaussian"),
        ("gaussian:sd", "sd must be a number, got ''"),
        ("gaussian:sd=wide", "sd must be a number"),
        ("gaussian:sd=-1", "sd must be a number at least 0"),
        ("random:sd=1", "unknown setting 'sd' of random"),
        ("odcl:clustering=kmeans", "clustering must be one of kmeans"),
    ],
)
def test_mistakes_in_settings(text: str, words: str):
    with pytest.raises(ConfigError, match=words):
        from_text(Initializer, text)


def test_a_gaussian_initializer_has_the_scale_it_was_given(linear):
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


def test_near_truth_needs_true_models(linear):
    with pytest.raises(ConfigError, match="is above high"):
        first_models(linear, "near-truth:low=0.5,high=0.2")
    with pytest.raises(ConfigError, match="there are 4 and clusters=3"):
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


def test_an_initializer_with_settings_is_kept_for_resuming(linear, tmp_path):
    def stop(record):
        raise KeyboardInterrupt

    whole = coterie.fit(linear, "ifca", init="gaussian:sd=2", rounds=3)
    assert whole.config["init"] == {"name": "gaussian", "restarts": 10, "sd": 2.0}
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(linear, "ifca", init="gaussian:sd=2", rounds=3, out=tmp_path / "run", callbacks=[stop])
    resumed = coterie.resume(tmp_path / "run", linear)
    assert resumed.config["init"] == whole.config["init"]
    assert all((a["weight"] == b["weight"]).all() for a, b in zip(resumed.models, whole.models, strict=True))


def test_moment_descent_accepts_settings_as_initializer_of_any_method():
    data = coterie.scenario("mixed-regression", clients=40, groups=2, dimension=4)
    plan = prepare(data, "ifca", None, {"clusters": 2, "init": "moment-descent:anchors=7"})
    assert len(initialize(plan).found["moment_descent"]["anchors"]) == 7


@pytest.mark.parametrize("method", ["odcl", "one-shot", "local-erm"])
def test_a_one_shot_method_is_its_own_initializer(method: str, linear):
    with pytest.raises(ConfigError, match="init has no meaning"):
        coterie.fit(linear, method, init="gaussian")


def test_a_misspelt_initializer_is_answered_with_the_nearest_one(linear):
    with pytest.raises(ConfigError, match="no initializer has this name: did you mean 'odcl'"):
        coterie.fit(linear, "ifca", init="odlc:clustering=convex")
