"""Agreement of groups against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from coterie.evaluate.metrics import agreement


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
