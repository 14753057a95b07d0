"""Keys are hashes of counters: equal counters give equal numbers, independently of the position of a client."""

from __future__ import annotations

import hashlib
from itertools import permutations as all_orders

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.keys import Purpose, fold, generator, hash_ids, key_for, keys_for_clients, permutations, shuffled

WORD = st.integers(0, 2**64 - 1)
MASK = 2**64 - 1


def plain_scramble(word: int) -> int:
    z = (word + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def plain_fold(key: int, *words: int) -> int:
    folded = plain_scramble(key)
    for word in words:
        folded = plain_scramble(folded ^ plain_scramble(word))
    return folded


def test_the_first_word_is_splitmix64s_published_first_output_for_seed_0():
    assert int(fold(0)) == 0xE220A8397B1DCDAF


@settings(max_examples=50, deadline=None)
@given(WORD, st.lists(WORD, max_size=4))
def test_fold_equals_plain_integer_arithmetic(key, words):
    assert int(fold(key, *words)) == plain_fold(key, *words)


def test_fold_of_arrays_is_fold_of_each_element():
    rows, columns = np.arange(3, dtype=np.uint64)[:, None], np.arange(4, dtype=np.uint64)[None]
    table = fold(5, rows, columns)
    assert table.shape == (3, 4)
    assert [[int(v) for v in row] for row in table] == [[plain_fold(5, r, c) for c in range(4)] for r in range(3)]


def test_the_order_of_the_words_matters():
    assert int(fold(1, 2, 3)) != int(fold(1, 3, 2))


def test_the_same_key_gives_the_same_numbers():
    key = key_for(7, Purpose.START, 1, 2)
    assert key == key_for(7, Purpose.START, 1, 2)
    assert np.array_equal(generator(key).standard_normal(5), generator(key).standard_normal(5))


def test_seed_purpose_round_and_client_each_change_the_key():
    hashes = hash_ids(["a", "b", "c"])
    keys = [
        int(k)
        for seed in (0, 1)
        for purpose in Purpose
        for round_ in range(5)
        for k in keys_for_clients(seed, purpose, round_, hashes)
    ]
    assert len(keys) == 2 * len(Purpose) * 5 * 3
    assert len(set(keys)) == len(keys)


def test_a_clients_key_does_not_depend_on_other_clients():
    hashes = hash_ids(["a", "b", "c", "d"])
    together = keys_for_clients(3, Purpose.BATCHES, 9, hashes)
    for place, client in enumerate("abcd"):
        alone = keys_for_clients(3, Purpose.BATCHES, 9, hash_ids([client]))
        assert int(alone[0]) == int(together[place])


def test_an_id_is_hashed_by_its_text_alone():
    expected = int.from_bytes(hashlib.blake2b(b"north", digest_size=8).digest(), "little")
    assert [int(h) for h in hash_ids(["south", "north"])][1] == expected
    assert hash_ids(["north"]).dtype == np.uint64


def test_ten_thousand_ids_have_distinct_words():
    assert len(np.unique(hash_ids([f"client-{i}" for i in range(10_000)]))) == 10_000


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(0, 5), st.integers(0, 3))
def test_a_row_is_a_permutation_of_the_samples_followed_by_padding(sizes, epoch, extra):
    width = max(sizes) + extra
    rows = permutations(hash_ids([f"c{i}" for i in range(len(sizes))]), np.array(sizes), width, epoch)
    assert rows.shape == (len(sizes), width)
    for row, size in zip(rows, sizes, strict=True):
        assert sorted(row[:size]) == list(range(size))
        assert list(row[size:]) == list(range(size, width))


def test_a_row_orders_samples_by_their_own_hash():
    keys = hash_ids(["x"])
    draws = [plain_fold(int(keys[0]), 4, column) >> 1 for column in range(10)]
    assert list(permutations(keys, np.array([10]), 10, 4)[0]) == sorted(range(10), key=draws.__getitem__)


def test_a_clients_order_depends_neither_on_its_place_nor_on_the_width():
    keys, sizes = hash_ids(["a", "b", "c"]), np.array([4, 9, 6])
    together = permutations(keys, sizes, 12, 1)
    for i in range(3):
        alone = permutations(keys[i : i + 1], sizes[i : i + 1], int(sizes[i]), 1)
        assert np.array_equal(alone[0], together[i, : sizes[i]])


def test_epochs_and_clients_have_different_orders():
    keys, sizes = hash_ids(["a", "b"]), np.array([30, 30])
    first, second = permutations(keys, sizes, 30, 0), permutations(keys, sizes, 30, 1)
    assert not np.array_equal(first[0], second[0])
    assert not np.array_equal(first[0], first[1])


def test_all_six_orders_of_three_samples_are_about_equally_frequent():
    m = 6000
    rows = permutations(hash_ids([f"c{i}" for i in range(m)]), np.full(m, 3), 3, 0)
    counts = np.array([(rows == np.array(order)).all(axis=1).sum() for order in all_orders(range(3))])
    assert counts.sum() == m
    chi2 = ((counts - m / 6) ** 2 / (m / 6)).sum()
    assert chi2 < 20.5  # 99.9 % quantile of chi-square with 5 degrees of freedom


@pytest.mark.parametrize("shift", [0, 30, 60])
def test_key_bits_are_about_uniform(shift):
    keys = keys_for_clients(0, Purpose.BATCHES, 0, hash_ids([f"c{i}" for i in range(16_000)]))
    counts = np.bincount(((keys >> np.uint64(shift)) & np.uint64(15)).astype(int), minlength=16)
    chi2 = ((counts - 1000) ** 2 / 1000).sum()
    assert chi2 < 37.7  # 99.9 % quantile of chi-square with 15 degrees of freedom


def test_shuffled_is_the_first_permutation_of_each_client_without_padding():
    keys, sizes = hash_ids(["a", "b", "c", "d"]), np.array([4, 1, 9, 6])
    padded = permutations(keys, sizes, 9, 0)
    expected = [sample for row, size in zip(padded, sizes, strict=True) for sample in row[:size]]
    assert shuffled(keys, sizes).tolist() == expected
