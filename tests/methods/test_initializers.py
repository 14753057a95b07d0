"""Initializers: where the models come from before the first round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.methods import GaussianInit, Initializer, NearTruth, RandomInit, Run
from coterie.methods.initializers import GivenModels, as_clusters
from coterie.methods.settings import RunSettings
from coterie.testing.checks import small_federation
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.composition import Tiers
from coterie.training.planning import prepare

TIERS = Tiers(assignment=LowestLoss(), K=3)
LINEAR = make_learner("linear:bias=true", Profile((4,), None))
MLP = make_learner("mlp:hidden=5", Profile((4,), 3))
FEDERATION = prepare(small_federation("linear"), "fedavg", "linear", {}).federation


def run_of(tiers: Tiers = TIERS, learner=LINEAR, seed: int = 0, dtype: str = "float64") -> Run:
    return Run(small_federation("linear"), learner, FEDERATION, RunSettings(seed=seed, dtype=dtype), tiers, 1)


def start(tiers: Tiers = TIERS, learner=LINEAR, seed: int = 0, dtype="float64", init: Initializer | None = None):
    first = (init or RandomInit()).first_models(run_of(tiers, learner, seed, dtype))
    assert first.K == tiers.K
    assert first.labels is None
    return as_clusters(first.params, tiers)


def test_every_slot_has_a_model_of_its_own():
    clusters = start(replace(TIERS, restarts=2))
    assert (clusters.K, clusters.restarts, clusters.body, clusters.slots) == (3, 2, None, None)
    assert len({tuple(row) for row in clusters.params["weight"].tolist()}) == 6


def test_a_start_repeats_with_its_seed_only():
    assert torch.equal(start(seed=1).params["weight"], start(seed=1).params["weight"])
    assert not torch.equal(start(seed=1).params["weight"], start(seed=2).params["weight"])


def test_more_restarts_or_clusters_leave_the_first_models_as_they_were():
    more = start(replace(TIERS, K=5))
    assert torch.equal(more.params["weight"][:3], start().params["weight"])
    restarts = start(replace(TIERS, restarts=4))
    assert torch.equal(restarts.params["weight"][:3], start().params["weight"])


def test_assigned_clusters_start_as_copies_of_fedavgs_model():
    assigned = start(replace(TIERS, assignment=Assigned()))
    one = start(replace(TIERS, K=1))
    assert assigned.params["weight"].shape == (3, 4)
    for k in range(3):
        assert torch.equal(assigned.params["weight"][k], one.params["weight"][0])


def test_the_dtype_is_the_requested_one():
    assert start(dtype="float32").params["weight"].dtype == torch.float32


MODELS = [{"weight": np.arange(4.0) + k, "bias": np.float64(k)} for k in range(3)]


def given_(models, tiers: Tiers = TIERS) -> Clusters:
    return start(tiers, init=GivenModels(models))


def test_given_models_are_taken_in_order():
    clusters = given_(MODELS)
    assert clusters.params["weight"].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert clusters.params["bias"].tolist() == [0, 1, 2]
    assert clusters.params["weight"].dtype == torch.float64


def test_a_wrong_number_of_models_is_refused():
    with pytest.raises(ConfigError, match="init has 2 models but clusters=3: give one model for each cluster"):
        given_(MODELS[:2])


def test_restarts_of_given_models_are_refused():
    with pytest.raises(
        ConfigError, match="restarts=2 needs random initial models: leave restarts at 1 with init=given"
    ):
        GivenModels(MODELS).with_restarts(2)
    assert GivenModels(MODELS).with_restarts(1) == GivenModels(MODELS)
    with pytest.raises(ConfigError, match="restarts=2 needs random initial models"):
        coterie.fit(small_federation("linear"), "ifca", clusters=2, init=MODELS[:2], restarts=2)


@pytest.mark.parametrize(
    "odd",
    [{"weight": np.zeros(5), "bias": np.float64(0)}, {"weight": np.zeros(4)}, {**MODELS[0], "more": np.zeros(1)}],
    ids=["shape", "missing", "unknown"],
)
def test_a_model_that_does_not_fit_is_named_with_what_is_needed(odd):
    with pytest.raises(ConfigError) as caught:
        given_([MODELS[0], odd, MODELS[2]])
    assert "model 1 of init has arrays" in str(caught.value)
    assert "linear" in str(caught.value)
    assert "'weight': (4,)" in str(caught.value)


def test_given_models_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError, match="model 1 of init has values that are not finite"):
        given_([MODELS[0], {"weight": np.full(4, np.nan), "bias": np.float64(0)}, MODELS[2]])


def test_shared_parameters_are_stored_once_per_restart():
    method = replace(TIERS, restarts=2, shared=("layer0",))
    whole, split = start(replace(method, shared=()), MLP), start(method, MLP)
    assert set(split.params) == {"layer1.weight", "layer1.bias"}
    assert set(split.shared) == {"layer0.weight", "layer0.bias"}
    # the body of a restart is that of its first model: slots 0 and 3
    assert torch.equal(split.shared["layer0.weight"], whole.params["layer0.weight"][[0, 3]])
    assert torch.equal(split.params["layer1.weight"], whole.params["layer1.weight"])


def test_several_prefixes_can_be_shared():
    deep = make_learner("mlp:hidden=5-6", Profile((4,), 3))
    split = start(replace(TIERS, shared=("layer0", "layer1.bias")), deep)
    assert set(split.shared) == {"layer0.weight", "layer0.bias", "layer1.bias"}


def test_an_unknown_prefix_is_refused_with_the_existing_names():
    with pytest.raises(ConfigError, match=r"shared='conv' names no parameter: they are layer0\.bias, layer0\.weight"):
        start(replace(TIERS, shared=("layer0", "conv")), MLP)


def test_sharing_everything_is_refused():
    with pytest.raises(ConfigError, match="shared covers every parameter: leave at least one layer"):
        start(replace(TIERS, shared=("layer0", "layer1")), MLP)


# ---- drawn from a normal distribution, or near the truth -------------------------------------------------------------


def test_gaussian_models_have_the_requested_standard_deviation():
    wide = make_learner("linear", Profile((4000,), None))
    for sd in (1.0, 3.0):
        models = start(replace(TIERS, restarts=2), wide, init=GaussianInit(sd=sd, restarts=2)).params["weight"]
        assert models.shape == (6, 4000)
        assert float(models.std()) == pytest.approx(sd, rel=0.03)
        assert float(models.mean()) == pytest.approx(0, abs=0.05 * sd)
    assert torch.equal(start(init=GaussianInit(sd=2)).params["bias"], 2 * start(init=GaussianInit()).params["bias"])


def test_gaussian_models_without_spread_need_assigned_clients():
    zero = GaussianInit(sd=0)
    with pytest.raises(ConfigError, match="makes all clusters equal, so they never separate"):
        start(init=zero)
    for tiers in (replace(TIERS, K=1), replace(TIERS, assignment=Assigned())):
        assert not start(tiers, init=zero).params["weight"].any()


def test_models_near_the_truth_are_between_the_two_distances():
    data = coterie.scenario("mixed-regression", clients=12, groups=3, dimension=6, samples="4", separation=2.0)
    plan = prepare(data, "ifca", "linear", {"clusters": 3, "init": "near-truth:low=0.1,high=0.2", "restarts": 4})
    found = plan.method.initializer.first_models(plan.run).params["weight"].reshape(4, 3, 6).numpy()
    true = data.true_models
    nearest = min(np.linalg.norm(true[i] - true[j]) for i in range(3) for j in range(i))
    lengths = np.linalg.norm(found - true, axis=2) / nearest
    assert lengths.min() >= 0.1
    assert lengths.max() <= 0.2
    assert len(np.unique(lengths)) == 12


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"clusters": 2}, "near-truth needs one true model for each cluster, but there are 3 and clusters=2"),
        ({"clusters": 3, "init": "near-truth:low=0.5,high=0.1"}, "near-truth: low=0.5 is above high=0.1"),
        ({"clusters": 3, "learner": "linear:bias=true"}, "near-truth needs a scenario with known true models"),
    ],
)
def test_near_truth_needs_true_models_that_fit(options, message):
    data = coterie.scenario("mixed-regression", clients=12, groups=3, dimension=6, samples="4", separation=2.0)
    with pytest.raises(ConfigError, match=message):
        coterie.fit(data, "ifca", **{"init": "near-truth", "rounds": 1} | options)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        (RandomInit, {"restarts": 0}, "restarts must be a whole number at least 1, or auto, got 0"),
        (RandomInit, {"restarts": 1.5}, "restarts must be a whole number at least 1, or auto, got 1.5"),
        (GaussianInit, {"sd": -1}, "sd must be a number at least 0, got -1"),
        (GaussianInit, {"sd": float("nan")}, "sd must be a number at least 0, got nan"),
        (NearTruth, {"low": "near"}, "low must be a number at least 0, got 'near'"),
    ],
)
def test_settings_out_of_range_are_refused_by_the_constructor(kind, values, message):
    with pytest.raises(ConfigError, match=message):
        kind(**values)
