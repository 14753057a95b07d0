"""How often a run is evaluated by default: in every round unless that takes too much of the time."""

import numpy as np
import pytest

import coterie
from coterie.training.planning import prepare

METHOD = {"clusters": 2, "restarts": 1, "lr": 0.1, "learner": "linear"}


def samples(counts, seed):
    random = np.random.default_rng(seed)
    return [(random.standard_normal((count, 2)), random.standard_normal(count)) for count in counts]


def plan(tested, **options):
    data = coterie.from_arrays(samples([10, 10], 0), test=samples([tested, tested], 1))
    options = METHOD | options
    return prepare(data, "ifca", options.pop("learner"), options)


def evaluated(plan):
    return [after for after in range(1, plan.rounds + 1) if plan.evaluates_after(after)]


def test_a_cheap_evaluation_follows_every_round():
    # 20 predictions in an evaluation; 20 samples x (2 predictions + 2 x 10 steps) = 440 in a round
    assert evaluated(plan(10, rounds=30)) == list(range(1, 31))


def test_an_expensive_evaluation_takes_a_twentieth_of_the_time():
    # 44 predictions in an evaluation; 20 samples x (2 predictions + 2 x 1 step) = 80 in a round: 44 / 80 / 0.05 = 11
    found = evaluated(plan(22, rounds=40, local_steps=1))
    assert found == [*range(1, 11), 11, 22, 33, 40]


def test_restarts_and_participation_count():
    assert evaluated(plan(22, rounds=24, local_steps=1, restarts=11)) == list(range(1, 25))
    assert evaluated(plan(22, rounds=44, local_steps=1, participation=0.5))[10:] == [22, 44]


@pytest.mark.parametrize("every", [1, 7])
def test_the_user_can_choose_the_interval(every):
    assert evaluated(plan(1000, rounds=20, local_steps=1, evaluate_every=every)) == [*range(every, 20, every), 20]


def test_patience_with_validation_is_evaluated_in_every_round():
    given = {"rounds": 20, "local_steps": 1, "validation": 0.2}
    assert len(evaluated(plan(1000, **given))) < 20
    assert len(evaluated(plan(1000, patience=3, **given))) == 20
