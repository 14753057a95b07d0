"""Mixed clients: the truth of every sample, shares of the concepts, and what follows when samples are held out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario
from coterie.core.validation import validation_split
from tests.data.scenarios.shifted import all_images, classes_of, digit_classes, samples


@cache
def digits(**options) -> FederatedDataset:
    return scenario("mixed-clients", **options)


def turned(y: np.ndarray, concepts: np.ndarray) -> np.ndarray:
    """Labels under each sample's concept: the first four go round."""
    return np.where(y < 4, (y + concepts) % 4, y)


def test_every_label_is_that_of_the_samples_concept():
    found = digits()
    y = classes_of(found.train.x.numpy(), digit_classes())
    assert found.sample_truth.shape == (1080,)
    assert found.sample_truth.dtype == np.int64
    assert np.array_equal(found.train.y, turned(y, found.sample_truth))


def test_held_out_labels_are_of_one_of_the_concepts():
    found = digits()
    y = classes_of(found.test.x.numpy(), digit_classes())
    steps = ((found.test.y.numpy() - y) % 4)[y < 4]
    assert set(steps) == {0, 1, 2}
    assert np.array_equal(found.test.y.numpy()[y >= 4], y[y >= 4])


def test_a_clients_truth_is_the_concept_of_most_of_its_samples():
    found = digits()
    for client, concept in enumerate(found.truth):
        counts = np.bincount(found.sample_truth[found.train.starts[client] : found.train.stops[client]], minlength=3)
        assert counts[concept] == counts.max()
        assert found.client_notes[client] == f"{counts[0]}/{counts[1]}/{counts[2]} by concept; original"


def test_mixing_goes_from_one_concept_to_all_alike():
    def largest(mixing: float) -> np.ndarray:
        truth = digits(mixing=mixing).sample_truth.reshape(30, 36)
        return np.array([np.bincount(row, minlength=3).max() for row in truth])

    assert np.median(largest(1e-3)) == 36
    assert largest(1e3).max() < 25  # of 36 about 12 each
    assert 20 < largest(0.4).mean() < 34


def test_newcomers_are_of_one_concept_each():
    found, known = digits(), digit_classes()
    for concept in range(3):
        x, y = samples(found.newcomers.query, concept)
        assert np.array_equal(y, turned(classes_of(x, known), np.full(len(y), concept)))


def test_no_image_is_used_twice():
    seen = all_images(digits())
    assert len(set(seen)) == len(seen)


def test_corruptions_are_described_next_to_the_shares():
    found = digits(corruptions=True)
    assert np.array_equal(found.train.y, digits().train.y)
    assert len({note.split("; ")[1] for note in found.client_notes}) > 10


def test_the_truth_of_samples_is_part_of_the_fingerprint_and_the_options_make_the_same_data():
    found = digits(seed=2)
    assert scenario("mixed-clients", seed=2, **found.options).fingerprint() == found.fingerprint()
    assert replace(found, sample_truth=None).fingerprint() != found.fingerprint()
    assert replace(found, sample_truth=found.sample_truth[::-1].copy()).fingerprint() != found.fingerprint()


def test_the_truth_stays_with_the_samples_when_some_are_held_out():
    cut = validation_split(digits(), 0.25, 0)
    y = classes_of(cut.train.x.numpy(), digit_classes())
    assert cut.sample_truth.shape == (27 * 30,)
    assert np.array_equal(cut.train.y, turned(y, cut.sample_truth))


def test_a_beta_too_small_is_refused():
    with pytest.raises(ConfigError, match=r"beta=0\.2 moves 2 of 10 labels"):
        scenario("mixed-clients", beta=0.2)
    with pytest.raises(ConfigError, match="mixing must be a number above 0, got 0"):
        scenario("mixed-clients", mixing=0)


def test_even_known_majorities_cannot_serve_all_samples():
    mixed = fit(digits(), method="oracle", rounds=30)
    pure = fit(digits(mixing=1e-3), method="oracle", rounds=30)
    assert pure.metrics["accuracy"] > mixed.metrics["accuracy"] + 0.05
