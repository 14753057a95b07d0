"""Random selection of participants."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.keys import hash_ids
from coterie.core.sampling import choose

IDS = [f"c{i}" for i in range(40)]
HASHES = hash_ids(IDS)


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 40), st.floats(0.001, 1.0), st.integers(0, 50))
def test_the_count_is_exact_and_no_client_is_drawn_twice(m, share, round_):
    asked = choose(HASHES[:m], share, 3, round_)
    assert len(asked) == max(1, round(share * m))
    assert sorted(set(asked.tolist())) == asked.tolist()
    assert asked.min() >= 0
    assert asked.max() < m


@pytest.mark.parametrize(
    ("m", "share", "count"), [(40, 1.0, 40), (40, 0.25, 10), (10, 0.01, 1), (3, 0.5, 2), (1, 0.1, 1)]
)
def test_counts_by_hand(m, share, count):
    assert len(choose(HASHES[:m], share, 0, 0)) == count


def test_the_sample_depends_on_ids_and_not_on_their_order():
    turned = np.random.default_rng(0).permutation(40)
    there = {IDS[i] for i in choose(HASHES, 0.3, 7, 2)}
    back = {IDS[turned[i]] for i in choose(HASHES[turned], 0.3, 7, 2)}
    assert there == back


def test_samples_vary_by_round_and_seed_and_repeat():
    samples = {(s, t): tuple(choose(HASHES, 0.3, s, t)) for s in range(3) for t in range(5)}
    assert len(set(samples.values())) == 15
    assert tuple(choose(HASHES, 0.3, 2, 4)) == samples[2, 4]


def test_all_clients_are_drawn_about_equally_often():
    counts = np.bincount(np.concatenate([choose(HASHES, 0.25, 1, t) for t in range(2000)]), minlength=40)
    # each count has mean 500 and standard deviation sqrt(2000 * 0.25 * 0.75) = 19.4
    assert np.abs(counts - 500).max() < 5 * 19.4
