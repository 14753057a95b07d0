"""A composition of tiers refuses combinations that no round can run, and its task survives serialisation."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from coterie.client.tasks import LocalRound
from coterie.core.plain import from_plain, to_plain
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.learners.local_training import FullBatch, MiniBatch, PooledHeads, ProximalStep
from coterie.learners.optimizers import SGD, Adam
from coterie.learners.schedules import ExponentialDecay
from coterie.server.averaging import Averaging
from coterie.server.combine import Median
from coterie.tiers.assignment import Assigned, LowestLoss, SingleCluster
from coterie.tiers.composition import ONLY_SUMMED, SENT_SEPARATELY, Tiers
from coterie.tiers.distance import Prototypes, UpdateCosine
from coterie.tiers.objective import Conditional
from coterie.tiers.procedure import Procedure, RemoveUnclaimed, SplitByGap

HARD = Tiers(assignment=LowestLoss(), K=2, local=FullBatch(steps=3, lr=0.5, schedule=ExponentialDecay(0.5)))


def test_restarts_of_given_groups_are_refused():
    with pytest.raises(ConfigError, match="m: restarts=2 has no effect because the groups are given: leave it at 1"):
        replace(HARD, assignment=Assigned(), restarts=2).check("m")
    replace(HARD, assignment=Assigned()).check("m")
    replace(HARD, restarts=2).check("m")


@pytest.mark.parametrize(
    "local", [FullBatch(steps=2), MiniBatch(batch_size=4, epochs=1), MiniBatch(batch_size=4, steps=2)]
)
def test_a_gradient_is_of_one_step(local):
    with pytest.raises(ConfigError, match="set local_steps=1"):
        replace(HARD, exchange="gradient", local=local).check("m")


@pytest.mark.parametrize("local", [FullBatch(steps=1), MiniBatch(batch_size=4, steps=1)])
def test_one_step_of_any_kind_gives_a_gradient(local):
    replace(HARD, exchange="gradient", local=local).check("m")


@pytest.mark.parametrize("local", [ProximalStep(), PooledHeads()])
def test_training_without_gradient_steps_gives_no_gradient(local):
    with pytest.raises(ConfigError, match="exchange=gradient"):
        replace(HARD, exchange="gradient", local=local).check("m")


def test_a_gradient_has_no_proximal_term():
    with pytest.raises(ConfigError, match="use exchange=model"):
        replace(HARD, exchange="gradient", local=FullBatch(steps=1, prox=0.1)).check("m")


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), SGD(weight_decay=0.1), Adam()])
def test_a_gradient_has_no_local_optimizer(optimizer):
    with pytest.raises(ConfigError, match=f"cannot use optimizer {optimizer.name}: use exchange=model"):
        replace(HARD, exchange="gradient", local=FullBatch(steps=1, optimizer=optimizer)).check("m")


def test_the_learning_rate_decays_each_round():
    assert [HARD.local.rate(t, 3) for t in range(3)] == [0.5, 0.25, 0.125]


@pytest.mark.parametrize("local", [FullBatch(steps=3), MiniBatch(batch_size=16, epochs=2, prox=0.25)])
@pytest.mark.parametrize("weight", ["uniform", "samples"])
def test_settings_survive_json(local, weight):
    tiers = replace(HARD, local=local, averaging=Averaging(client_weight=weight))
    task = tiers.task(seed=2**40, rounds=5)
    assert task.name == "local-round"
    back = from_plain(Task, json.loads(json.dumps(to_plain(task))))
    expected = LocalRound(
        objective=Conditional(), assignment=LowestLoss(), work=local, client_weight=weight, seed=2**40
    )
    assert back == task == expected


def test_a_task_has_the_number_of_rounds_only_with_fresh_samples():
    assert HARD.task(0, 7).resample is None
    assert replace(HARD, resample=True).task(0, 7).resample == 7


@pytest.mark.parametrize(
    ("local", "steps"),
    [
        (FullBatch(steps=7), 7),
        (FullBatch(steps=7, augment="flip"), None),
        (MiniBatch(batch_size=10, steps=7), None),
        (MiniBatch(batch_size=10, epochs=3), None),
        (ProximalStep(), 1),
    ],
)
def test_full_batch_steps_are_steps_without_a_batch_size(local, steps):
    assert local.full_batch_steps == steps


def test_the_number_of_clusters_may_change_only_by_a_procedure():
    assert not HARD.adapts
    assert replace(HARD, procedure=Procedure((RemoveUnclaimed(),))).adapts


@pytest.mark.parametrize(
    ("changes", "sent"),
    [
        ({}, False),
        ({"procedure": Procedure((RemoveUnclaimed(),))}, False),
        ({"procedure": Procedure((SplitByGap(0.1),))}, True),
        ({"distance": UpdateCosine()}, True),
        ({"distance": Prototypes()}, False),
        ({"averaging": Averaging(combine=Median())}, True),
    ],
)
def test_updates_are_sent_separately_if_needed(changes, sent):
    tiers = replace(HARD, **changes)
    assert tiers.sends_each_change == sent
    assert ("change" in tiers.reveals()) == sent
    assert tiers.seen() == (SENT_SEPARATELY if sent else ONLY_SUMMED)


@pytest.mark.parametrize(
    ("tiers", "sent"),
    [
        (HARD, True),
        (replace(HARD, K=1), False),
        (replace(HARD, assignment=Assigned()), False),
        (replace(HARD, K=1, procedure=Procedure((SplitByGap(0.1),))), True),
        (Tiers(assignment=SingleCluster(), K=1), False),
    ],
)
def test_the_choice_is_sent_if_clients_choose(tiers, sent):
    assert tiers.sends_choice == sent


def test_values_that_depend_on_the_data_are_filled_in():
    open_ = replace(HARD, K=None, local=FullBatch(lr="auto"))
    assert open_.decided() == open_
    assert open_.decided(K=4).K == 4
    assert open_.decided(lr=0.25).local == FullBatch(lr=0.25)
