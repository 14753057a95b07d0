"""Splits by tests on held-out halves: figures by hand, the rate of false splits, groups found, what is recorded."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.client.resample import halves, held_out_sizes
from coterie.core.state import AGE
from coterie.core.state_array import Age, StateArray
from coterie.errors import ConfigError
from coterie.methods import CFL, HCFL, ICFL, FullBatch, HCFLPlus
from coterie.methods.trials import FOR_LINEAR, REFINEMENTS, RoundTrials, _Rows
from coterie.tiers import RemoveUnclaimed, SplitByGap, SplitByNorm, SplitBySpectrum, SplitByTest
from coterie.tiers.split_test import HeldOut, gain_test, sign_flip_p, split_test, trial_number
from coterie.tiers.view import View
from coterie.training.fitting import initialize
from coterie.training.planning import prepare

SIZES = {"a": 12, "b": 2, "c": 3, "d": 4, "e": 7}
NO_CLIENTS = np.zeros(0, dtype=np.int64)


def regressions(seed: int, groups: int, clients: int = 12, samples: int = 24) -> coterie.FederatedDataset:
    """Clients with linear data in three dimensions, in groups with slopes of opposite signs."""
    random = np.random.default_rng(seed)
    slopes = random.standard_normal((groups, 3)) * (2 if groups > 1 else 1)
    held = {}
    for i in range(clients):
        x = random.standard_normal((samples, 3))
        held[f"c{i}"] = (x, x @ slopes[i % groups] + 0.5 * random.standard_normal(samples))
    return coterie.from_arrays(held, truth=[i % groups for i in range(clients)])


def digits(seed: int, turned: int = 8) -> coterie.FederatedDataset:
    """Clients with upright digits, and the given number of clients with digits rotated by 90 degrees."""
    source = coterie.scenario("rotated-digits", clients=32, seed=seed)
    rows = {c: (source.train.x[a:b].numpy(), source.train.y[a:b].numpy()) for c, a, b in _spans(source)}
    upright = [c for c in rows if c.startswith("turn000")]
    chosen = upright + [c for c in rows if c.startswith("turn090")][:turned]
    return coterie.from_arrays({c: rows[c] for c in chosen}, truth=[int(c not in upright) for c in chosen])


def test_figures_of_two_clients_by_hand():
    # gains 1 and 3 of equal clients: mean 2, squared deviations 1 and 1, so that the standard error is
    # sqrt((1/4 + 1/4) * 2 / 1) = 1 and t = 2 with one degree of freedom: p = 1/2 - atan(2) / pi
    losses = np.array([[5.0, 4.0], [6.0, 3.0]])
    found = gain_test(0, (NO_CLIENTS, NO_CLIENTS), losses, np.array([10.0, 10.0]), 0.2)
    assert (found.gain, found.error, found.loss) == pytest.approx((2, 1, 5.5))
    # both gains are positive, which random signs make with probability 1/4; the smaller of both counts twice
    assert found.p == pytest.approx(2 * (0.5 - math.atan(2) / math.pi))
    assert not found.accepted
    assert gain_test(0, (NO_CLIENTS, NO_CLIENTS), losses, np.array([10.0, 10.0]), 0.3).accepted


def test_random_signs_of_three_gains_by_hand():
    # all three positive: only one of eight signs gives as large a sum
    assert sign_flip_p(np.array([1.0, 2.0, 3.0])) == pytest.approx(1 / 8)
    assert sign_flip_p(np.array([1.0, 2.0, -3.0])) == 1.0
    # two equal gains and a loss of the same size: min over s of cosh(s)^3 exp(-s), where tanh(s) = 1/3:
    # cosh(s) = 1 / sqrt(1 - 1/9) and exp(-s) = sqrt((1 - 1/3) / (1 + 1/3))
    bound = (8 / 9) ** -1.5 * math.sqrt(0.5)
    assert sign_flip_p(np.array([1.0, 1.0, -1.0])) == pytest.approx(bound, rel=1e-4)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_is_never_below_the_probability_of_all_signs(seed):
    random = np.random.default_rng(seed)
    gains = random.standard_normal(10) * random.lognormal(0, 1, 10) + 0.8
    signs = 1 - 2 * ((np.arange(1024)[:, None] >> np.arange(10)) & 1)
    exact = float(np.mean(signs @ np.abs(gains) >= gains.sum() - 1e-12))
    assert exact <= sign_flip_p(gains) <= max(20 * exact, 0.05) if gains.sum() > 0 else sign_flip_p(gains) == 1


def test_a_few_large_clients_do_not_reduce_the_power_of_the_test():
    # 20 clients, two of which have nearly all samples: the t-test counts about two clients
    samples = np.array([400.0, 400.0] + [4.0] * 18)
    losses = np.column_stack([np.full(20, 2.0), np.full(20, 1.0) - np.linspace(0, 0.5, 20)])
    found = gain_test(0, (NO_CLIENTS, NO_CLIENTS), losses, samples, 1e-4)
    assert found.p == pytest.approx(2 * 0.5**20)
    assert found.accepted


def test_clients_count_by_their_samples():
    # shares 3/4 and 1/4: mean 3/4 * 1 + 1/4 * 3 = 1.5; effective clients 1 / (9/16 + 1/16) = 1.6
    # error^2 = (9/16 * 1/4 + 1/16 * 9/4) * 1.6 / 0.6 = 0.75
    losses = np.array([[5.0, 4.0], [6.0, 3.0]])
    found = gain_test(0, (NO_CLIENTS, NO_CLIENTS), losses, np.array([30.0, 10.0]), 0.05)
    assert (found.gain, found.error) == pytest.approx((1.5, math.sqrt(0.75)))


FOUR = np.arange(4)
PARTS = (np.array([0, 1]), np.array([2, 3]))


def held_out(losses: list[list[float]], on_all: list[list[float]] | None = None) -> HeldOut:
    """Two parts of two members each; losses under the common, the own and the other model."""
    return HeldOut(PARTS, FOUR, np.array(losses), np.array(losses if on_all is None else on_all))


def test_how_far_members_agree_with_their_parts_by_hand():
    # preferences for the first part's model: 3 and 1 in the first part, -2 and 0 in the second one
    one = held_out([[5, 1, 4], [5, 2, 3], [5, 4, 6], [5, 3, 3]])
    # mean preference (3 + 1 - 2 - 0) / 4 = 0.5: agreement 2.5, 0.5, 2.5, 0.5
    assert one.agreement(np.ones(4)).tolist() == [2.5, 0.5, 2.5, 0.5]
    # gains 4, 3, 1, 2; own models are better than the others by 3, 1, 2, 0, in halves of the members: 1.5 / 4
    assert one.expected_gain(np.ones(4)) == pytest.approx((2.5 + 1.5 / 4) / 2)
    found = split_test(7, [one], dict.fromkeys(range(4), 10), 0.1)
    assert found is not None
    assert (found.cluster, found.clients, found.gain, found.expected) == pytest.approx((7, 4, 2.5, (2.5 + 0.375) / 2))
    assert found.p == gain_test(0, PARTS, np.array([[2.5, 0], [0.5, 0], [2.5, 0], [0.5, 0]]), np.ones(4), 0.1).p


def test_figures_of_several_halvings_are_means_over_them():
    one, two = held_out([[4, 1, 4]] * 4), held_out([[4, 3, 4]] * 4)
    found = split_test(0, [one, two], dict.fromkeys(range(4), 10), 0.1)
    assert found is not None
    assert found.gain == 2
    assert found.p == pytest.approx(2 / 16)  # all four agree with their parts


def test_a_model_that_suits_all_members_is_no_evidence_for_a_split():
    # the first part's model is better for all members: they do not differ
    found = split_test(0, [held_out([[3, 1, 2], [3, 1, 2], [3, 2, 1], [3, 2, 1]])], dict.fromkeys(range(4), 1), 0.9)
    assert found is not None
    assert found.gain == 1.5
    assert found.p == 1.0


def test_a_split_needs_an_expected_gain():
    # members agree with their parts, but both models are worse than the common one
    found = split_test(0, [held_out([[0, 4, 5]] * 4)], dict.fromkeys(range(4), 1), 0.5)
    assert found is not None
    assert found.p < found.level
    assert not found.accepted


def test_members_move_to_the_model_that_fits_all_their_samples():
    losses = [[0, 1, 2]] * 4
    assert [part.tolist() for part in held_out(losses).placed()] == [[0, 1], [2, 3]]
    five = HeldOut((np.array([0, 1, 4]), PARTS[1]), np.arange(5), np.zeros((5, 3)), np.array([*losses, [0, 3, 2]]))
    assert [part.tolist() for part in five.placed()] == [[0, 1], [2, 3, 4]]
    # a part of one member would be too small
    assert held_out(losses, [*losses[:3], [0, 3, 2]]).placed() is PARTS


def test_trials_become_rarer_while_nothing_changes():
    plan = initialize(prepare(regressions(0, 1), CFL(), "linear", {"rounds": 1}))
    run = plan.plan.run

    def number(age: int, round_: int) -> int | None:
        state = plan.state.with_arrays({AGE: StateArray(torch.tensor([age]), ("cluster",), Age())})
        return trial_number(View(replace(state, round=round_), run.federation.clients, FOUR, run.federation.hashes), 5)

    old = 10**6
    numbers = {round_ + 1: number(old, round_) for round_ in range(100)}
    assert {at: found for at, found in numbers.items() if found} == {5: 1, 10: 2, 20: 3, 40: 4, 80: 5}
    assert [number(age, 72) for age in (0, 4, 5, 10, 15)] == [None, None, 1, 2, None]


def test_equal_losses_are_no_reason_to_split():
    assert gain_test(0, (NO_CLIENTS, NO_CLIENTS), np.ones((5, 2)), np.full(5, 8.0), 0.5).p == 1.0


def test_halves_are_disjoint_and_drawn_anew_in_every_round():
    data = coterie.from_arrays({"a": (np.arange(7.0)[:, None], np.arange(7.0)), "b": (np.ones((2, 1)), np.ones(2))})
    shard = data.compact().train
    first, second = halves(shard, 3, 0)
    assert first.sizes.tolist() == second.sizes.tolist() == [3, 1]
    one, other = set(first.y[:3].tolist()), set(second.y[:3].tolist())
    assert len(one | other) == 6
    again, _ = halves(shard, 3, 0)
    assert again.y.tolist() == first.y.tolist()
    assert any(set(halves(shard, 3, t)[0].y[:3].tolist()) != one for t in range(1, 5))


def test_the_second_part_may_be_smaller():
    data = coterie.from_arrays({c: (np.arange(n)[:, None] * 1.0, np.arange(n) * 1.0) for c, n in SIZES.items()})
    shard = data.compact().train
    first, second = halves(shard, 3, 0, held_out=1 / 3)
    assert first.sizes.tolist() == [8, 1, 2, 2, 4]
    assert second.sizes.tolist() == [4, 1, 1, 1, 2] == held_out_sizes(shard.sizes, 1 / 3).tolist()
    assert set(first.y[:8].tolist()) | set(second.y[:4].tolist()) == set(range(12))


def test_the_expected_gain_depends_on_the_samples_that_trained_the_models():
    # models of all samples instead of 2/3 have 2/3 of the noise: 2/3 of the gain 2.5, and 1/3 of 1.5 / 4
    one = replace(held_out([[5, 1, 4], [5, 2, 3], [5, 4, 6], [5, 3, 3]]), trained=2 / 3)
    assert one.expected_gain(np.ones(4)) == pytest.approx(2 / 3 * 2.5 + 1 / 3 * 1.5 / 4)


def test_clients_without_groups_are_rarely_split():
    """At most 5 % of tests at level 5 % may be wrong; of 120, more than 12 would be with a probability below 0.5 %."""
    method = CFL(test_every=2, local=FullBatch(steps=3, lr=0.1))
    least = []
    for seed in range(120):
        result = coterie.fit(regressions(seed, 1), method, rounds=2, seed=seed, evaluate_every=2)
        least += [test["value"] for test in result.records[-1].tests]  # no test if a part would have one member
    assert len(least) > 100
    assert sum(p < 0.05 for p in least) <= 12


@pytest.mark.parametrize("method", [CFL(), ICFL(), HCFL(backbone="fedem")], ids=lambda method: method.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_groups_are_found_without_a_threshold(method, seed):
    result = coterie.fit(digits(seed), method, learner="logistic", rounds=20, lr=0.5, seed=seed, evaluate_every=20)
    assert result.metrics["ari"] == 1.0
    assert result.records[-1]["K"] == 2


def test_hcfl_plus_chooses_a_network_and_finds_groups():
    result = coterie.fit(digits(0), "hcfl+", rounds=20, lr=0.3, evaluate_every=20)
    assert result.config["learner"].startswith("mlp")
    assert result.metrics["ari"] == 1.0


def _spans(data):
    return zip(data.clients, data.train.starts, data.train.stops, strict=True)


def test_a_threshold_enables_the_rule_of_the_paper():
    assert isinstance(CFL().tiers().procedure.steps[0], SplitByTest)
    assert CFL(eps1=0.2).tiers().procedure.steps == (SplitByNorm(0.2, 1.6),)
    assert CFL(eps2=1.0, warmup=3).tiers().procedure.steps == (SplitByNorm(0.4, 1.0, warmup=3),)
    assert ICFL(alpha0=0.85).tiers().procedure.steps == (SplitBySpectrum(0.85),)
    assert HCFLPlus(rho=0.3).tiers().procedure.steps == (RemoveUnclaimed(2), SplitByGap(0.3))
    with pytest.raises(ConfigError, match="gate applies to splits by norms only: set eps1 and eps2 too"):
        CFL(gate=0.5).tiers()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"method": "cfl", "test_every": 2}, "gain of a split"),
        ({"method": "cfl", "eps1": 1e-9, "eps2": 1e9, "warmup": 0}, "mean update"),
        ({"method": "icfl", "alpha0": 0.999}, "alpha"),
        ({"method": "hcfl+", "rho": 1.9, "learner": "mlp:hidden=4"}, "gap"),
    ],
    ids=lambda value: "",
)
def test_a_run_that_never_split_says_what_came_closest(options, text):
    from coterie.report.descent import answer

    result = coterie.fit(digits(0, turned=0), rounds=4, evaluate_every=4, **options)
    said = answer(result.records)
    assert said.startswith("1 cluster from the first round to the last: never split or merged; closest after round ")
    assert text in said
    tests = [test for record in result.records for test in record.tests]
    assert all({"cluster", "statistic", "value", "threshold", "fires"} <= test.keys() for test in tests)


def test_bytes_include_trials():
    data = regressions(0, 2)
    options = {"rounds": 2, "local_steps": 1, "evaluate_every": 2}
    plain = coterie.fit(data, CFL(eps1=1e-9), **options)
    tried = coterie.fit(data, CFL(test_every=2), **options)
    assert tried.records[0]["bytes_up"] == plain.records[0]["bytes_up"]
    # for each halving, 12 clients send a change of 3 numbers, and losses on both halves: of both parts' models in two
    # partings at every refinement, and in the end of these and of the cluster's model
    each = 3 + 2 * (REFINEMENTS * 4 + 5)
    assert tried.records[1]["bytes_up"] - plain.records[1]["bytes_up"] == 12 * 8 * FOR_LINEAR.halvings * each


def test_clients_with_one_sample_do_not_take_part():
    data = regressions(0, 2)
    rows = {c: (data.train.x[a:b].numpy(), data.train.y[a:b].numpy()) for c, a, b in _spans(data)}
    rows["tiny"] = (np.ones((1, 3)), np.ones(1))
    result = coterie.fit(coterie.from_arrays(rows), CFL(test_every=2), rounds=6, lr=0.1, local_steps=5)
    first = next(record.tests[0] for record in result.records if record.tests)
    assert first["clients"] == 12
    assert "tiny" in result.assignments


def test_clients_that_have_one_sample_each_are_never_tested():
    rows = {f"c{i}": (np.full((1, 3), float(i)), np.ones(1)) for i in range(6)}
    result = coterie.fit(coterie.from_arrays(rows), CFL(test_every=1), rounds=2, lr=0.01)
    assert [record.tests for record in result.records] == [[], []]


@pytest.mark.filterwarnings("ignore::coterie.errors.DivergenceWarning")
@pytest.mark.parametrize("lr", [1e3, 1e150])
def test_a_training_that_diverges_ends_as_one_that_diverged(lr):
    """Infinite losses are not evidence; the run reports its divergence and does not fail in a test."""
    result = coterie.fit(regressions(0, 2), CFL(test_every=1), rounds=4, lr=lr, local_steps=20)
    assert result.metrics["diverged"]


@pytest.mark.parametrize("lost", ["held-out", "all"])
def test_trials_whose_models_diverge_split_and_merge_nothing(monkeypatch, lost):
    """Clients with infinite losses send no rows; here no client sends any, for the last task or for all of them."""
    ask = RoundTrials._ask

    def silent(trials, task, *arguments):
        return _Rows({}, {}) if lost == "all" or task.name == "half-losses" else ask(trials, task, *arguments)

    monkeypatch.setattr(RoundTrials, "_ask", silent)
    data = coterie.scenario("rotated-digits", clients=12)
    result = coterie.fit(data, HCFL(test_every=1), learner="logistic", rounds=3)
    assert len(result.models) == 1
