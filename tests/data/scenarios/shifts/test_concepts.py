"""What labels mean, and which are wrong: maps and transition matrices by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import ConfigError
from coterie.core.keys import generator
from coterie.data.scenarios.shifts.concepts import label_reverse, label_swap
from coterie.data.scenarios.shifts.noise import flipped, pair_flips, symmetric_flips


def test_swaps_turn_the_first_labels_round():
    assert label_swap(6, 3, 0.67).tolist() == [[0, 1, 2, 3, 4, 5], [1, 2, 3, 0, 4, 5], [2, 3, 0, 1, 4, 5]]


@pytest.mark.parametrize(("classes", "concepts", "beta"), [(10, 3, 0.3), (10, 10, 1.0), (100, 29, 0.29), (10, 3, 0.4)])
def test_concepts_are_different_and_keep_all_labels(classes, concepts, beta):
    maps = label_swap(classes, concepts, beta)
    assert len({tuple(row) for row in maps}) == concepts
    assert all(sorted(row) == list(range(classes)) for row in maps)


@pytest.mark.parametrize("beta", [0.0, 0.05, 1.0])
def test_one_concept_is_the_labels_themselves(beta):
    assert label_swap(10, 1, beta).tolist() == [list(range(10))]


@pytest.mark.parametrize(
    ("classes", "concepts", "beta", "words"),
    [
        (
            10,
            3,
            0.2,
            "beta=0.2 moves 2 of 10 labels, which makes 2 different concepts, not 3: choose a beta of at least 0.3",
        ),
        (
            10,
            2,
            0.1,
            "beta=0.1 moves 1 of 10 labels, which makes 1 different concepts, not 2: choose a beta of at least 0.2",
        ),
        (10, 2, 0.0, "beta=0 moves 0 of 10 labels, which makes 1 different concepts, not 2"),
        (10, 11, 1.0, "there can be at most 10"),
        (7, 3, 0.2, "choose a beta of at least 0.429"),
    ],
)
def test_a_beta_too_small_for_the_concepts_is_refused(classes, concepts, beta, words):
    with pytest.raises(ConfigError) as caught:
        label_swap(classes, concepts, beta)
    assert words in str(caught.value)


def test_the_beta_that_an_error_names_is_enough():
    assert len(label_swap(7, 3, 0.429)) == 3


def test_reverse_turns_the_order():
    assert label_reverse(4).tolist() == [[0, 1, 2, 3], [3, 2, 1, 0]]


def test_pair_flips_go_to_the_next_class():
    assert np.allclose(pair_flips(3, 0.2), [[0.8, 0.2, 0], [0, 0.8, 0.2], [0.2, 0, 0.8]], atol=1e-12)


def test_symmetric_flips_go_to_every_other_class():
    assert np.allclose(symmetric_flips(3, 0.4), [[0.6, 0.2, 0.2], [0.2, 0.6, 0.2], [0.2, 0.2, 0.6]], atol=1e-12)


@pytest.mark.parametrize("flips", [pair_flips, symmetric_flips])
def test_labels_are_flipped_with_their_probabilities(flips):
    transition, each = flips(5, 0.4), 4000
    labels = np.repeat(np.arange(5), each)
    found = flipped(labels, transition, generator(1))
    assert found.dtype == np.int64
    shares = np.stack([np.bincount(found[labels == c], minlength=5) for c in range(5)]) / each
    # standard errors below sqrt(0.24 / 4000) = 0.008
    assert np.abs(shares - transition).max() < 5 * 0.008
    assert (shares[transition == 0] == 0).all()


def test_nothing_is_flipped_without_noise_and_all_with_certainty():
    labels = np.arange(10).repeat(50)
    assert np.array_equal(flipped(labels, pair_flips(10, 0.0), generator(0)), labels)
    assert np.array_equal(flipped(labels, pair_flips(10, 1.0), generator(0)), (labels + 1) % 10)
