"""Whole diagnoses of small federations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.data import from_arrays
from coterie.diagnosis.advice import tuning_steps
from coterie.diagnosis.consequences import placing_probability
from coterie.diagnosis.diagnose import diagnose, diagnose_clients
from coterie.diagnosis.mixture import Mixture
from coterie.diagnosis.values import Diagnosis, Estimate, Gain
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError
from coterie.learners import make_learner
from tests.diagnosis.make import federation


@pytest.mark.parametrize("classes", [None, 2])
def test_groups_are_found_and_recommended(classes):
    data = federation(classes, groups=2)
    found = diagnose(data)
    assert found.shift.kind == "relation"
    assert (found.structure.kind, found.structure.clusters) == ("groups", 2)
    assert found.recommendation.settings() == {"clusters": 2, "restarts": 10}
    assert found.recommendation.arguments == ("--method", "ifca", "--clusters", "2", "--restarts", "10")
    assert not found.recommendation.do_not_cluster
    assert data.truth is not None
    sure = [
        (client.group, truth) for client, truth in zip(found.clients, data.truth, strict=True) if client.can_be_placed
    ]
    assert len(sure) > 18
    assert len(set(sure)) == 2
    assert 0 < found.gain.over_one.low < found.gain.over_one.value < found.gain.one_model
    assert found.clients[0].samples == 1
    assert found.warnings == ("1 client has a single sample, which enters the pooled model but no test.",)


def test_the_separation_and_the_effect_are_in_units_of_the_target():
    """Coefficients of a standard normal feature that differ by 1.5: predictions differ by 1.5, +-0.75 from the mean."""
    found = diagnose(federation(groups=2, clients=60))
    assert found.power.separation == pytest.approx(1.5, rel=0.1)
    assert found.shift.model.effect.value == pytest.approx(0.75, rel=0.15)
    assert found.gain.one_model == pytest.approx(0.25 + 0.75**2, rel=0.15)
    assert found.gain.over_one.value == pytest.approx(0.75**2, rel=0.15)


@pytest.mark.parametrize("classes", [None, 2])
def test_without_differences_one_model_is_recommended(classes):
    found = diagnose(federation(classes, distance=0, seed=1))
    assert found.shift.kind == "none"
    assert found.structure.kind == "one"
    assert found.recommendation.method == "fedavg"
    assert found.recommendation.do_not_cluster
    assert found.shift.model.effect.low == 0
    assert {client.group for client in found.clients} == {None}


def test_a_smooth_spread_is_not_cut_into_groups():
    found = diagnose(federation(smooth=True, clients=40))
    assert found.structure.kind == "continuum"
    assert found.recommendation.method == "fedavg"
    assert 5 <= found.recommendation.settings()["finetune"] <= 100


@pytest.mark.parametrize(
    ("classes", "effect", "personal", "steps"),
    [(None, 0.0, 0.0, 5), (None, 2.0, 2.0, 19), (None, 2.0, -1.0, 15), (None, 2.0, 4.0, 100), (2, 2.0, 0.0, 15)],
)
def test_steps_of_fine_tuning_follow_the_spread(classes, effect, personal, steps):
    """A variance of 4 and noise 4 - 2: r = 30 * (4 / 2) / 3 = 20, and 6 log(21) = 18.3; for classes, r = 10.

    If a model for each client does not help, noise is all of the loss: r = 10, 6 log(11) = 14.4.
    """
    nothing = Estimate(0, 0, 0)
    gain = Gain("loss", 4.0, nothing, nothing, 4.0, None, Estimate(personal, personal, personal))
    base = diagnose(federation(classes, clients=8))
    shift = replace(base.shift, model=replace(base.shift.model, effect=Estimate(effect, effect, effect)))
    assert tuning_steps(shift, gain, replace(base.facts, median=30, features=2)) == steps


def test_every_engine_and_cut_gives_the_same():
    data = federation(2, groups=2, clients=8)
    learner = make_learner("logistic", data.profile)
    group = ClientGroup.of(data, learner, torch.float64, torch.device("cpu"), None, 0, keeps=False)
    first, *others = (
        diagnose_clients(engine, data, seed=0)
        for engine in (Simulated(group), InShards(group, shards=5), Sequential(group))
    )
    for other in others:
        assert other.shift.model.p_value == first.shift.model.p_value
        assert other.structure.sizes == first.structure.sizes
        assert other.gain.over_one.value == pytest.approx(first.gain.over_one.value, rel=1e-8)


def test_a_diagnosis_is_the_same_after_json():
    found = diagnose(federation(groups=2))
    assert Diagnosis.from_json(found.to_json()) == found


def test_a_regression_takes_ten_exchanges_and_classes_at_most_twice_as_many():
    assert diagnose(federation(groups=2, clients=8)).cost.exchanges == 10
    assert 10 < diagnose(federation(2, groups=2, clients=8)).cost.exchanges <= 25


def test_classes_with_many_features_are_left_to_a_method_that_looks_at_the_trained_network():
    """Two groups of clients whose two classes are swapped; the 100 features are summarised."""
    random = np.random.default_rng(0)
    loadings = random.standard_normal((2, 100))
    arrays = []
    for i in range(24):
        factors = random.standard_normal((40, 2))
        x = factors @ loadings + 0.3 * random.standard_normal((40, 100))
        y = (3 * factors[:, 0] * (1 if i % 2 else -1) + random.logistic(size=40) > 0).astype(int)
        arrays.append((x, y))
    found = diagnose(from_arrays(arrays))
    assert (found.structure.kind, found.structure.clusters) == ("groups", 2)
    assert found.recommendation.method == "hcfl+"
    assert not found.recommendation.do_not_cluster
    assert found.recommendation.settings() == {}
    assert diagnose(from_arrays(arrays), network=False).recommendation.method == "ifca"


def test_too_few_clients_are_refused():
    with pytest.raises(ConfigError, match="needs at least 4 of them, got 3"):
        diagnose(from_arrays([(np.eye(2), np.arange(2.0))] * 3))


def test_something_else_than_data_is_refused():
    with pytest.raises(ConfigError, match="got list"):
        diagnose([1, 2])  # type: ignore[arg-type]


def test_the_probability_of_placing_against_simulation():
    """Two groups at -1/2 and 1/2 of one coefficient, noise 1, three samples with normal features."""
    mixture = Mixture(np.array([[-0.5], [0.5]]), np.array([0.5, 0.5]), np.zeros(1), np.ones((1, 2)), 0.0)
    random = np.random.default_rng(0)
    x = random.standard_normal((40_000, 3))
    y = 0.5 * x + random.standard_normal(x.shape)
    right = ((x * y).sum(axis=1) > 0).mean()
    assert placing_probability(mixture, 1.0, 3) == pytest.approx(right, abs=0.01)
