"""A method refuses senseless mixes, and its task survives the way to the client."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from coterie.tiers.method import Groups, Method

from coterie.client.tasks import LocalRound
from coterie.core.plain import from_plain, to_plain
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.learners.descent import LocalWork
from coterie.server.aggregate import Averaging
from coterie.tiers.assignment import Assigned, LowestLoss
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Fixed

HARD = Method("m", Conditional(), LowestLoss(), Fixed(2), LocalWork(steps=3), Averaging(), lr=0.5, lr_decay=0.5)


def test_assigned_weights_need_groups():
    with pytest.raises(ConfigError, match="m: assigned weights need groups"):
        replace(HARD, weights=Assigned())


def test_groups_need_assigned_weights():
    with pytest.raises(ConfigError, match="assigned weights need groups"):
        replace(HARD, groups=Groups("truth"))


@pytest.mark.parametrize("work", [LocalWork(steps=2), LocalWork(None, 1, 4), LocalWork(None, 2)])
def test_a_gradient_is_of_one_step(work):
    with pytest.raises(ConfigError, match="set local_steps=1"):
        replace(HARD, exchange="gradient", work=work)


@pytest.mark.parametrize("work", [LocalWork(1), LocalWork(1, None, 4), LocalWork(None, 1)])
def test_one_step_of_any_kind_gives_a_gradient(work):
    assert replace(HARD, exchange="gradient", work=work).exchange == "gradient"


def test_a_gradient_knows_no_proximal_term():
    with pytest.raises(ConfigError, match="use exchange=model"):
        replace(HARD, exchange="gradient", work=LocalWork(1, prox=0.1))


def test_the_step_size_decays_each_round():
    assert [HARD.rate(t) for t in range(3)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("work", [LocalWork(3), LocalWork(None, 2, 16, prox=0.25)])
@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_settings_survive_json(work, weight):
    method = replace(HARD, work=work, averaging=Averaging(client_weight=weight))
    task = method.task(seed=2**40)
    assert task.name == "local-round"
    back = from_plain(Task, json.loads(json.dumps(to_plain(task))))
    assert back == task == LocalRound(Conditional(), work, weight, 2**40, assignment=LowestLoss())


@pytest.mark.parametrize(
    ("work", "steps"),
    [(LocalWork(7), 7), (LocalWork(None, 3), 3), (LocalWork(7, None, 10), None), (LocalWork(None, 3, 10), None)],
)
def test_full_batch_steps_are_steps_or_passes_without_a_batch_size(work, steps):
    assert work.full_batch_steps == steps
