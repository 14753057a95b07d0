"""Which classes clients hold: nothing twice, exact counts, exhausted classes, and the two Dirichlet conventions."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import ConfigError
from coterie.core.keys import generator
from coterie.data.scenarios.shifts.labels import (
    classes_per_client,
    deal,
    deal_classes,
    dirichlet_prior,
    dirichlet_symmetric,
    draw_counts,
    most_of_classes,
    no_label_shift,
    take,
)

LABELS = np.arange(1000) % 10


def held(rows: np.ndarray, labels: np.ndarray = LABELS) -> np.ndarray:
    """How many samples of each class each client has, (m, C)."""
    return np.stack([np.bincount(labels[row], minlength=labels.max() + 1) for row in rows])


def slow_counts(each: int, shares: np.ndarray, left: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """One sample after the other; an exhausted class gets share 0."""
    counts = np.zeros_like(left)
    for _ in range(each):
        q = np.where(counts < left, shares, 0)
        counts[random.choice(len(left), p=q / q.sum())] += 1
    return counts


@pytest.mark.parametrize("shares", [dirichlet_prior(1.0), dirichlet_symmetric(0.3), no_label_shift])
def test_all_samples_are_dealt_out_once(shares):
    rows = deal(LABELS, 20, 50, shares, generator(1))
    assert rows.shape == (20, 50)
    assert sorted(rows.ravel()) == list(range(1000))


def test_samples_of_a_client_are_in_random_order():
    (row,) = deal(LABELS, 1, 1000, no_label_shift, generator(1))
    assert np.abs(np.diff(LABELS[row])).sum() > 2000  # sorted by class it would be 9
    assert row.tolist() != sorted(row)


def test_take_gives_exactly_what_is_counted():
    counts = np.array([[3, 0, 1], [0, 4, 0], [2, 1, 1]])
    labels = np.repeat(np.arange(3), 5)
    rows = take(labels, counts, generator(2))
    assert held(rows, labels).tolist() == counts.tolist()
    assert len(set(rows.ravel())) == 12


def test_an_exhausted_class_gives_its_share_to_the_rest():
    # 2 of class 0 are left; class 2 has no share
    for key in range(20):
        counts = draw_counts(10, np.array([0.9, 0.1, 0.0]), np.array([2, 20, 20]), generator(key))
        assert counts[2] == 0
        assert counts[0] <= 2
        assert counts.sum() == 10


def test_where_no_share_is_left_the_rest_is_taken_in_proportion():
    found = np.sum(
        [draw_counts(5, np.array([1.0, 0, 0]), np.array([2, 30, 10]), generator(k)) for k in range(400)], axis=0
    )
    assert found[0] == 2 * 400
    # 3 of 40 each time, three in four of class 1: 900 of 1200 with a standard deviation below 15
    assert found[1] == pytest.approx(900, abs=75)


def test_counts_are_distributed_as_if_drawn_one_by_one():
    shares, left = np.array([0.6, 0.3, 0.1]), np.array([3, 4, 9])
    fast, slow = (
        np.stack([draw(8, shares, left, generator(1000 * start + k)) for k in range(4000)])
        for start, draw in ((1, draw_counts), (2, slow_counts))
    )
    for c in range(3):
        for count in range(9):
            p, q = (fast[:, c] == count).mean(), (slow[:, c] == count).mean()
            assert abs(p - q) < 5 * np.sqrt(2 * max(p * (1 - p), 1e-4) / 4000)


def test_the_prior_spreads_alpha_over_the_classes():
    # Dir(0.1, ..., 0.1): the variance of a share is 0.1 * 0.9 / 2
    left = np.full(10, 100)
    draws = np.stack([dirichlet_prior(1.0)(left, generator(k)) for k in range(4000)])
    assert draws.var(axis=0) == pytest.approx(np.full(10, 0.045), rel=0.2)
    # Dir(1, ..., 1): 0.1 * 0.9 / 11
    draws = np.stack([dirichlet_symmetric(1.0)(left, generator(k)) for k in range(4000)])
    assert draws.var(axis=0) == pytest.approx(np.full(10, 0.09 / 11), rel=0.2)


def test_the_prior_follows_what_is_left():
    left = np.array([60, 30, 10, 0])
    draws = np.stack([dirichlet_prior(2.0)(left, generator(k)) for k in range(4000)])
    assert (draws[:, 3] == 0).all()
    # standard error of the first: sqrt(0.6 * 0.4 / 3 / 4000) = 0.0045
    assert draws.mean(axis=0) == pytest.approx([0.6, 0.3, 0.1, 0], abs=0.025)
    symmetric = np.stack([dirichlet_symmetric(2.0)(left, generator(k)) for k in range(2000)])
    assert (symmetric[:, 3] == 0).all()
    assert symmetric.mean(axis=0) == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0], abs=0.025)


def test_a_large_alpha_is_nearly_even_and_a_small_one_is_nearly_one_class():
    even = held(deal(LABELS, 5, 100, dirichlet_symmetric(1e6), generator(3)))
    assert even.max() < 25
    alone = held(deal(LABELS, 5, 50, dirichlet_symmetric(1e-3), generator(3)))
    assert alone.max(axis=1).min() > 40


def test_too_few_samples_are_refused():
    with pytest.raises(ConfigError, match="11 clients with 100 samples each need 1100, but there are 1000: use fewer"):
        deal(LABELS, 11, 100, no_label_shift, generator(0))


def test_two_classes_are_disjoint_pairs():
    chosen = classes_per_client(10, 2, 100, generator(4))
    pairs, uses = np.unique(chosen, axis=0, return_counts=True)
    assert sorted(pairs.ravel()) == list(range(10))
    assert uses.tolist() == [20] * 5
    assert len({tuple(classes_per_client(10, 2, 5, generator(k)).ravel()) for k in range(5)}) == 5


@pytest.mark.parametrize(
    ("classes", "each", "clients"), [(10, 4, 100), (10, 3, 7), (7, 2, 9), (10, 10, 3), (10, 1, 25)]
)
def test_other_numbers_of_classes_are_used_equally_often(classes, each, clients):
    chosen = classes_per_client(classes, each, clients, generator(5))
    assert chosen.shape == (clients, each)
    assert all(len(set(own)) == each for own in chosen)
    uses = np.bincount(chosen.ravel(), minlength=classes)
    assert uses.max() - uses.min() <= 1


def test_more_classes_than_there_are_are_refused():
    with pytest.raises(ConfigError, match="classes_each must be at most 10, the classes there are; got 11"):
        classes_per_client(10, 11, 5, generator(0))


def test_clients_get_their_classes_in_equal_parts():
    chosen = classes_per_client(10, 4, 15, generator(6))  # 60 uses: every class 6 times
    assert most_of_classes(LABELS, chosen) == 4 * (100 // 6)
    rows = deal_classes(LABELS, chosen, 30, generator(6))
    counts = held(rows)
    assert len(set(rows.ravel())) == 450
    for own, count in zip(chosen, counts, strict=True):
        assert np.flatnonzero(count).tolist() == own.tolist()
        assert sorted(count[own]) == [7, 7, 8, 8]


def test_more_of_the_classes_than_there_is_is_refused():
    chosen = classes_per_client(10, 4, 15, generator(6))
    deal_classes(LABELS, chosen, 64, generator(6))
    with pytest.raises(
        ConfigError, match="15 clients with 68 samples of 4 classes are too many, there are 64 for each"
    ):
        deal_classes(LABELS, chosen, 68, generator(6))
