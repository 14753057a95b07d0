"""A method refuses senseless mixes, and its task survives the way to the client."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coterie.errors import ConfigError
from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.method import Averaging, Groups, Method, RoundSettings
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed

HARD = Method("m", Conditional(), LowestLoss(), Fixed(2), FullBatch(steps=3), Averaging(), lr=0.5, lr_decay=0.5)


def test_assigned_weights_need_groups():
    with pytest.raises(ConfigError, match="m: assigned weights need groups"):
        replace(HARD, weights=Assigned())


def test_groups_need_assigned_weights():
    with pytest.raises(ConfigError, match="assigned weights need groups"):
        replace(HARD, groups=Groups("truth"))


@pytest.mark.parametrize("work", [FullBatch(steps=2), MiniBatch(batch_size=4, epochs=1)])
def test_a_gradient_is_of_one_step(work):
    with pytest.raises(ConfigError, match="set local_steps=1"):
        replace(HARD, exchange="gradient", work=work)


@pytest.mark.parametrize(
    "work", [FullBatch(steps=1), MiniBatch(batch_size=4, steps=1), FullBatch(steps=1, augment="flip")]
)
def test_one_step_of_any_kind_gives_a_gradient(work):
    assert replace(HARD, exchange="gradient", work=work).exchange == "gradient"


def test_a_gradient_knows_no_proximal_term():
    with pytest.raises(ConfigError, match="use exchange=model"):
        replace(HARD, exchange="gradient", work=FullBatch(steps=1, prox=0.1))


def test_the_step_size_decays_each_round():
    assert [HARD.rate(t) for t in range(3)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("work", [FullBatch(steps=3), MiniBatch(batch_size=16, epochs=2, prox=0.25)])
@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_settings_survive_json(work, weight):
    method = replace(HARD, work=work, averaging=Averaging(client_weight=weight))
    task = method.task(seed=2**40)
    assert task.name == "local-round"
    back = RoundSettings.read(json.loads(json.dumps(task.settings)))
    assert back == RoundSettings(Conditional(), LowestLoss(), work, weight, 2**40)


@pytest.mark.parametrize(
    ("work", "steps"),
    [
        (FullBatch(steps=7), 7),
        (FullBatch(steps=7, augment="flip"), None),
        (MiniBatch(batch_size=10, steps=7), None),
        (MiniBatch(batch_size=10, epochs=3), None),
    ],
)
def test_full_batch_steps_are_those_on_one_and_the_same_batch(work, steps):
    assert work.full_batch_steps == steps
