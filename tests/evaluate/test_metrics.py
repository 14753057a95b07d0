"""Figures that need no federation, by hand and against brute force."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.evaluate.metrics import agreement, parameter_error, worst_tenth


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_equal_groups_agree_whatever_their_names():
    found = agreement(ints(0, 0, 1, 1, 2), ints(2, 2, 0, 0, 1))
    assert found == {"ari": 1.0, "nmi": pytest.approx(1.0), "identity": 1.0}


def test_one_cluster_for_all_agrees_no_better_than_chance():
    assert agreement(ints(0, 0, 1, 1), ints(0, 0, 0, 0)) == {"ari": 0.0, "nmi": 0.0, "identity": 0.5}


def test_the_share_of_right_identities_by_hand():
    # clusters 0, 1, 2 hold (2 of group 0, 1 of group 1), (2 of group 1), (1 of group 0): group 0 is matched with
    # cluster 0 and group 1 with cluster 1, so 2 + 2 of 6 clients are right; matching both with cluster 0 is not allowed
    assert agreement(ints(0, 0, 1, 1, 1, 0), ints(0, 0, 0, 1, 1, 2))["identity"] == pytest.approx(4 / 6)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=12))
def test_right_identities_are_those_of_the_best_renaming(pairs):
    truth, found = (np.array(values, dtype=np.int64) for values in zip(*pairs, strict=True))
    best = max(np.mean(np.array(names)[found] == truth) for names in permutations(range(3)))
    assert agreement(truth, found)["identity"] == pytest.approx(best)


def test_the_adjusted_rand_index_by_hand():
    # truth 000111, found 001111. Pairs together: truth 6, found 1 + 6 = 7, both 1 + 3 = 4; of 15 pairs
    # expected 6 * 7 / 15 = 2.8; ARI = (4 - 2.8) / (6.5 - 2.8) = 1.2 / 3.7
    assert agreement(ints(0, 0, 0, 1, 1, 1), ints(0, 0, 1, 1, 1, 1))["ari"] == pytest.approx(1.2 / 3.7)


def test_one_cluster_for_each_client_agrees_no_better_than_chance_and_warns_of_nothing():
    truth = np.repeat(np.arange(3), 20)
    assert agreement(truth, np.arange(60))["ari"] == pytest.approx(0, abs=1e-12)


def test_the_worst_tenth_by_hand():
    values = np.arange(20.0)
    assert worst_tenth(values, higher_is_better=True) == 0.5  # mean of 0 and 1
    assert worst_tenth(values, higher_is_better=False) == 18.5  # mean of 19 and 18


def test_the_worst_of_few_is_one():
    assert worst_tenth(np.array([0.9, 0.2, 0.5]), True) == 0.2
    assert worst_tenth(np.array([0.7]), False) == 0.7


def test_parameter_error_by_hand():
    # true 0 and 10; found 9 and 2: crossed matching gives 2 and 1
    assert parameter_error(np.array([[0.0], [10.0]]), np.array([[9.0], [2.0]])) == 2


def test_the_matching_is_one_to_one():
    # both true models are nearest to the same one found, but only one may have it
    assert parameter_error(np.array([[0.0], [1.0]]), np.array([[0.5], [5.0]])) == 4


def test_the_largest_distance_of_the_best_matching_counts():
    # straight |0 - 3| = 3 and |3 + 2.5| = 5.5; crossed |0 + 2.5| = 2.5 and |3 - 3| = 0
    assert parameter_error(np.array([[0.0], [3.0]]), np.array([[3.0], [-2.5]])) == 2.5


def test_the_least_largest_distance_may_have_the_greater_sum():
    # true (0, 0), (3, 0); found (3, 0), (3, 4)
    # straight 3 and 4 (sum 7, largest 4); crossed 5 and 0 (sum 5, largest 5)
    assert parameter_error(np.array([[0.0, 0], [3, 0]]), np.array([[3.0, 0], [3, 4]])) == 4


@pytest.mark.parametrize("found", [[[0.5], [9.0], [100.0]], [[3.0]]])
def test_with_another_number_of_models_the_nearest_counts(found):
    true = np.array([[0.0], [10.0]])
    # three found: 0.5 and 1 -> 1; one found: 3 and 7 -> 7
    assert parameter_error(true, np.array(found)) == (1 if len(found) == 3 else 7)


def test_exact_models_in_any_order_have_no_error():
    models = np.random.default_rng(0).standard_normal((4, 3))
    assert parameter_error(models, models[[2, 0, 3, 1]]) == 0


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 5), st.integers(1, 3), st.integers(0, 10**6), st.booleans())
def test_parameter_error_equals_brute_force(k, d, seed, coarse):
    random = np.random.default_rng(seed)
    draw = (lambda: random.integers(0, 3, (k, d)).astype(float)) if coarse else (lambda: random.standard_normal((k, d)))
    true, found = draw(), draw()
    plain = min(max(np.linalg.norm(true[i] - found[p[i]]) for i in range(k)) for p in permutations(range(k)))
    assert parameter_error(true, found) == pytest.approx(plain, rel=1e-12, abs=1e-15)
