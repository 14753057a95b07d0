"""Where the models come from before the first round."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from coterie.server.start import given_start, random_start
from coterie.tiers.method import Groups, Method

from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.local_training import FullBatch
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed

METHOD = Method("m", Conditional(), LowestLoss(), Fixed(3), FullBatch(steps=1), Averaging())
LINEAR = make_learner("linear:bias=true", Profile((4,), None))
MLP = make_learner("mlp:hidden=5", Profile((4,), 3))
CPU = torch.device("cpu")


def start(method: Method = METHOD, learner=LINEAR, seed: int = 0, dtype=torch.float64):
    return random_start(method, learner, seed, dtype, CPU)


def test_every_slot_has_a_model_of_its_own():
    clusters = start(replace(METHOD, restarts=2))
    assert (clusters.K, clusters.restarts, clusters.body, clusters.slots) == (3, 2, None, None)
    assert len({tuple(row) for row in clusters.params["weight"].tolist()}) == 6


def test_a_start_repeats_with_its_seed_only():
    assert torch.equal(start(seed=1).params["weight"], start(seed=1).params["weight"])
    assert not torch.equal(start(seed=1).params["weight"], start(seed=2).params["weight"])


def test_more_lanes_or_clusters_leave_the_first_models_as_they_were():
    more = start(replace(METHOD, procedure=Fixed(5)))
    assert torch.equal(more.params["weight"][:3], start().params["weight"])
    restarts = start(replace(METHOD, restarts=4))
    assert torch.equal(restarts.params["weight"][:3], start().params["weight"])


def test_assigned_clusters_start_as_copies_of_fedavgs_model():
    assigned = start(replace(METHOD, weights=Assigned(), groups=Groups("truth")))
    one = start(replace(METHOD, procedure=Fixed(1)))
    assert assigned.params["weight"].shape == (3, 4)
    for k in range(3):
        assert torch.equal(assigned.params["weight"][k], one.params["weight"][0])


def test_the_type_is_the_one_asked_for():
    assert start(dtype=torch.float32).params["weight"].dtype == torch.float32


MODELS = [{"weight": np.arange(4.0) + k, "bias": np.float64(k)} for k in range(3)]


def given_(models, method: Method = METHOD, learner=LINEAR):
    return given_start(method, learner, models, torch.float64, CPU)


def test_given_models_are_taken_in_order():
    clusters = given_(MODELS)
    assert clusters.params["weight"].tolist() == [[0, 1, 2, 3], [1, 2, 3, 4], [2, 3, 4, 5]]
    assert clusters.params["bias"].tolist() == [0, 1, 2]
    assert clusters.params["weight"].dtype == torch.float64


def test_a_wrong_number_of_models_is_refused():
    with pytest.raises(ConfigError, match="start has 2 models but clusters=3: give one model for each cluster"):
        given_(MODELS[:2])


def test_restarts_of_given_models_are_refused():
    with pytest.raises(ConfigError, match="restarts=2 needs random starts"):
        given_(MODELS, replace(METHOD, restarts=2))


@pytest.mark.parametrize(
    "odd",
    [{"weight": np.zeros(5), "bias": np.float64(0)}, {"weight": np.zeros(4)}, {**MODELS[0], "more": np.zeros(1)}],
    ids=["shape", "missing", "unknown"],
)
def test_a_model_that_does_not_fit_is_named_with_what_is_needed(odd):
    with pytest.raises(ConfigError) as caught:
        given_([MODELS[0], odd, MODELS[2]])
    assert "start model 1 has arrays" in str(caught.value)
    assert "linear" in str(caught.value)
    assert "'weight': (4,)" in str(caught.value)


def test_given_models_that_are_not_finite_are_refused():
    with pytest.raises(ConfigError):
        given_([MODELS[0], {"weight": np.full(4, np.nan), "bias": np.float64(0)}, MODELS[2]])


def test_shared_parameters_are_put_aside_once_a_lane():
    method = replace(METHOD, restarts=2, shared=("layer0",))
    whole, split = start(replace(method, shared=()), MLP), start(method, MLP)
    assert set(split.params) == {"layer1.weight", "layer1.bias"}
    assert set(split.shared) == {"layer0.weight", "layer0.bias"}
    # the body of a restart is that of its first model: slots 0 and 3
    assert torch.equal(split.shared["layer0.weight"], whole.params["layer0.weight"][[0, 3]])
    assert torch.equal(split.params["layer1.weight"], whole.params["layer1.weight"])


def test_several_prefixes_can_be_shared():
    deep = make_learner("mlp:hidden=5-6", Profile((4,), 3))
    split = start(replace(METHOD, shared=("layer0", "layer1.bias")), deep)
    assert set(split.shared) == {"layer0.weight", "layer0.bias", "layer1.bias"}


def test_a_prefix_of_nothing_is_refused_with_the_names_there_are():
    with pytest.raises(ConfigError, match=r"shared='conv' names no parameter: they are layer0\.bias, layer0\.weight"):
        start(replace(METHOD, shared=("layer0", "conv")), MLP)


def test_sharing_everything_is_refused():
    with pytest.raises(ConfigError, match="shared covers every parameter: leave at least one layer"):
        start(replace(METHOD, shared=("layer0", "layer1")), MLP)
