"""Agreement of groups against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from coterie.evaluate.metrics import agreement, weighted_rand_index


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=40))
def test_both_indices_are_those_of_scikit_learn(pairs):
    truth, found = (np.array(values, dtype=np.int64) for values in zip(*pairs, strict=True))
    agreed = agreement(truth, found)
    assert agreed["ari"] == pytest.approx(adjusted_rand_score(truth, found), rel=1e-12, abs=1e-12)
    assert agreed["nmi"] == pytest.approx(normalized_mutual_info_score(truth, found), rel=1e-9, abs=1e-12)


def test_many_clients_do_not_overflow():
    random = np.random.default_rng(0)
    truth, found = random.integers(0, 3, 200_000), random.integers(0, 4, 200_000)
    found[:150_000] = truth[:150_000]
    assert agreement(truth, found)["ari"] == pytest.approx(adjusted_rand_score(truth, found), rel=1e-12)


@pytest.mark.parametrize(("truth", "found"), [([0, 1, 2, 0], [5, 3, 0, 5]), ([1, 1], [0, 0]), ([0, 1], [1, 0])])
def test_equal_groups_agree_to_the_last_bit(truth, found):
    assert agreement(np.array(truth), np.array(found))["ari"] == 1.0


# ---- with weights --------------------------------------------------------------------------------------------------


def slow_index(one, other, weights):
    """The weighted index, pair by pair."""
    both = in_one = in_other = everywhere = 0.0
    for i in range(len(one)):
        for j in range(i):
            pair = weights[i] * weights[j]
            everywhere += pair
            in_one += pair * (one[i] == one[j])
            in_other += pair * (other[i] == other[j])
            both += pair * (one[i] == one[j] and other[i] == other[j])
    chance = in_one * in_other / everywhere if everywhere else 0.0
    most = (in_one + in_other) / 2
    return 1.0 if most == both else (both - chance) / (most - chance)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 800)), min_size=1, max_size=25))
def test_the_weighted_index_is_that_of_a_loop_over_pairs(rows):
    one, other, weights = (np.array(values, dtype=np.int64) for values in zip(*rows, strict=True))
    found = weighted_rand_index(one, other, weights.astype(float))
    assert found == pytest.approx(slow_index(one, other, weights), rel=1e-9, abs=1e-9)
    equal = weighted_rand_index(one, other, np.ones(len(one)))
    assert equal == pytest.approx(adjusted_rand_score(one, other), rel=1e-9, abs=1e-9)


def test_clients_with_little_weight_lower_the_index_little():
    one, other = np.array([0, 0, 1, 1, 0, 1]), np.array([0, 0, 1, 1, 1, 0])  # the last two disagree
    # pairs of weight 1: together in both 2, in each 6, of 15; by chance 6 * 6 / 15 = 2.4; (2 - 2.4) / (6 - 2.4)
    assert weighted_rand_index(one, other, np.ones(6)) == pytest.approx(-0.4 / 3.6)
    # weights 10, 10, 10, 10, 1, 1: in both 2 * 100, in each 200 + 4 * 10 = 240, of all 600 + 8 * 10 + 1 = 681
    chance = 240 * 240 / 681
    weights = np.array([10.0, 10, 10, 10, 1, 1])
    assert weighted_rand_index(one, other, weights) == pytest.approx((200 - chance) / (240 - chance))
