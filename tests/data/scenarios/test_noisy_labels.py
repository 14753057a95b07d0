"""Noisy labels: wrong ones only in training, as often as asked, and nothing else changes."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario
from tests.data.scenarios.shifted import all_images, classes_of, digit_classes, samples


@cache
def digits(**options) -> FederatedDataset:
    return scenario("noisy-labels", **options)


def test_one_group_and_the_same_images_as_without_noise():
    found, right = digits(), digits(noise=0.0)
    assert found.truth.tolist() == [0] * 30
    assert found.newcomers.support.ids == ("concept-0",)
    for part in ("train", "test"):
        assert np.array_equal(getattr(found, part).x, getattr(right, part).x)
    assert np.array_equal(found.test.y, right.test.y)
    assert np.array_equal(found.newcomers.query.y, right.newcomers.query.y)


def test_without_noise_labels_are_right_everywhere():
    found, known = digits(noise=0.0, corruptions=False), digit_classes()
    for shard in (found.train, found.test, found.newcomers.support, found.newcomers.query):
        assert np.array_equal(shard.y, classes_of(shard.x.numpy(), known))


def test_images_are_those_of_diverse_shift():
    other = scenario("diverse-shift", concepts=1)
    assert np.array_equal(digits(noise=0.0).train.x, other.train.x)
    assert np.array_equal(digits(noise=0.0).train.y, other.train.y)


@pytest.mark.parametrize(("kind", "noise"), [("pair", 0.1), ("pair", 0.2), ("symmetric", 0.2), ("symmetric", 0.4)])
def test_training_labels_are_wrong_with_the_given_frequency(kind, noise):
    found, right = digits(noise_kind=kind, noise=noise).train.y, digits(noise=0.0).train.y
    wrong = (found != right).numpy()
    # 1080 labels
    assert wrong.mean() == pytest.approx(noise, abs=5 * (noise * (1 - noise) / 1080) ** 0.5)
    steps = ((found - right) % 10).numpy()[wrong]
    assert set(steps) == ({1} if kind == "pair" else set(range(1, 10)))


def test_clients_draw_their_wrong_labels_apart():
    wrong = (digits().train.y != digits(noise=0.0).train.y).numpy().reshape(30, 36)
    assert len({row.tobytes() for row in wrong}) == 30


def test_no_image_is_used_twice():
    seen = all_images(digits(corruptions=False))
    assert len(set(seen)) == len(seen)


def test_the_options_make_the_same_data_again():
    found = digits(noise_kind="symmetric", pool=2, seed=3)
    assert found.train.x.shape[1:] == (4, 4)
    assert scenario("noisy-labels", seed=3, **found.options).fingerprint() == found.fingerprint()
    assert digits(noise_kind="symmetric", pool=2, seed=4).fingerprint() != found.fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"noise": 1.2}, "noise must be a number at least 0 and at most 1, got 1.2"),
        ({"noise_kind": "pairs"}, "did you mean 'pair'"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError, match=words):
        scenario("noisy-labels", **options)


def test_a_run_is_measured_on_right_labels():
    result = fit(digits(), method="fedavg", rounds=20)
    found = result.predict(samples(digits().newcomers.query, 0)[0], cluster=0)
    assert (found == samples(digits().newcomers.query, 0)[1]).mean() > 0.6
