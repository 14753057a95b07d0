"""Learning-rate schedules by hand and against the schedulers of torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from coterie.core.plain import from_plain, from_text, to_plain, to_text
from coterie.errors import ConfigError
from coterie.learners.schedules import Constant, Cosine, ExponentialDecay, Schedule, StepDecay


def rates(schedule: Schedule, lr: float, rounds: int) -> list[float]:
    return [schedule.rate(lr, round_, rounds) for round_ in range(rounds)]


def test_constant():
    assert rates(Constant(), 0.3, 3) == [0.3, 0.3, 0.3]


def test_exponential_decay_by_hand():
    # 0.8, 0.8 * 0.5 = 0.4, 0.8 * 0.25 = 0.2
    assert rates(ExponentialDecay(0.5), 0.8, 3) == [0.8, 0.4, 0.2]


def test_step_decay_by_hand():
    # rounds 0 and 1: 1; rounds 2 and 3: 1/2; round 4: 1/4
    assert rates(StepDecay(every=2, factor=0.5), 1.0, 5) == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_cosine_by_hand():
    # (1 + cos(pi t / 4)) / 2 for t = 0..3: 1, (1 + sqrt(1/2)) / 2, 1/2, (1 - sqrt(1/2)) / 2
    root = 0.5**0.5
    assert rates(Cosine(), 2.0, 4) == pytest.approx([2.0, 1 + root, 1.0, 1 - root], rel=1e-12)


def test_cosine_ends_at_its_floor():
    # halfway: 0.2 + 0.8 / 2 = 0.6; after the last planned round the rate stays at the floor
    schedule = Cosine(floor=0.2)
    assert schedule.rate(1.0, 5, 10) == pytest.approx(0.6, rel=1e-12)
    assert schedule.rate(1.0, 10, 10) == schedule.rate(1.0, 25, 10) == pytest.approx(0.2, rel=1e-12)


def test_warm_up_by_hand():
    # 4 rounds of warm-up: 1/4, 2/4, 3/4, 4/4 of 0.8; then the decay counts from 0: 1, 1/2
    schedule = ExponentialDecay(0.5, warmup=4)
    assert rates(schedule, 0.8, 6) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.4], rel=1e-12)


def test_the_cosine_is_over_the_rounds_after_the_warm_up():
    # 6 rounds, 2 of warm-up: 1/2, 1, then (1 + cos(pi t / 4)) / 2 for t = 0..3
    assert rates(Cosine(warmup=2), 1.0, 6) == pytest.approx([0.5, 1.0, *rates(Cosine(), 1.0, 4)], rel=1e-12)


def test_a_run_within_the_warm_up():
    assert rates(Cosine(warmup=4), 1.0, 2) == [0.25, 0.5]
    assert Cosine(warmup=4).rate(1.0, 4, 2) == 1.0


TORCH = {
    "exponential": (ExponentialDecay(0.9), lambda o, rounds: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
    "step": (StepDecay(3, 0.2), lambda o, rounds: torch.optim.lr_scheduler.StepLR(o, 3, 0.2)),
    "cosine": (Cosine(), lambda o, rounds: torch.optim.lr_scheduler.CosineAnnealingLR(o, rounds)),
    "cosine with a floor": (
        Cosine(floor=0.1),
        lambda o, rounds: torch.optim.lr_scheduler.CosineAnnealingLR(o, rounds, eta_min=0.1 * 0.3),
    ),
}


@pytest.mark.parametrize("name", TORCH)
def test_rates_are_those_of_torch(name):
    schedule, build = TORCH[name]
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.3)
    theirs, rounds = build(optimizer, 11), 11
    for round_ in range(rounds):
        assert schedule.rate(0.3, round_, rounds) == pytest.approx(theirs.get_last_lr()[0], rel=1e-9)
        optimizer.step()
        theirs.step()


SCHEDULES = st.one_of(
    st.builds(Constant, warmup=st.integers(0, 5)),
    st.builds(ExponentialDecay, st.floats(0.01, 1), warmup=st.integers(0, 5)),
    st.builds(StepDecay, st.integers(1, 9), st.floats(0.01, 1), warmup=st.integers(0, 5)),
    st.builds(Cosine, st.floats(0, 1), warmup=st.integers(0, 5)),
)


@given(SCHEDULES, st.integers(0, 40), st.integers(1, 40))
def test_a_rate_is_never_above_the_full_one_and_after_the_warm_up_never_rises(schedule, round_, rounds):
    now, then = schedule.rate(0.5, round_, rounds), schedule.rate(0.5, round_ + 1, rounds)
    assert 0 <= now <= 0.5
    assert then <= now if round_ >= schedule.warmup else then >= min(now, 0.5)


@given(SCHEDULES)
def test_a_schedule_survives_its_plain_form_and_its_text(schedule):
    assert from_plain(Schedule, to_plain(schedule)) == schedule
    assert from_text(Schedule, to_text(schedule)) == schedule


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Constant(warmup=-1), "constant: warmup must be at least 0 rounds, got -1"),
        (lambda: ExponentialDecay(0.0), "exponential-decay: factor must be above 0 and at most 1, got 0.0"),
        (lambda: ExponentialDecay(1.5), "factor must be above 0 and at most 1, got 1.5"),
        (lambda: ExponentialDecay(float("nan")), "factor must be above 0 and at most 1, got nan"),
        (lambda: StepDecay(0, 0.5), "step-decay: every must be at least 1 round, got 0"),
        (lambda: Cosine(1.1), "cosine: floor must be between 0 and 1, got 1.1"),
        (lambda: Cosine(0.1, warmup=-2), "cosine: warmup must be at least 0 rounds, got -2"),
    ],
)
def test_impossible_schedules_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()
