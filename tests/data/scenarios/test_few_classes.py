"""Few classes: every client holds its own few, all alike, and the newcomer holds all."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, fit, scenario
from tests.data.scenarios.shifted import all_images, classes_of, digit_classes, samples


@cache
def digits(**options) -> FederatedDataset:
    return scenario("few-classes", **options)


def own_classes(population: FederatedDataset, client: int) -> np.ndarray:
    """How many samples of each class, held-out ones too."""
    both = np.concatenate([samples(part, client)[1] for part in (population.train, population.test)])
    return np.bincount(both, minlength=10)


def test_two_classes_each_are_disjoint_pairs_and_the_true_groups():
    found = digits()
    sets = [tuple(np.flatnonzero(own_classes(found, client))) for client in range(30)]
    assert sorted(c for pair in set(sets) for c in pair) == list(range(10))
    assert np.bincount(found.truth).tolist() == [6] * 5
    for client, pair in enumerate(sets):
        assert found.group_names[found.truth[client]] == f"classes {pair[0]}, {pair[1]}" == found.client_notes[client]
    assert found.recommended["clusters"] == 5


def test_a_client_has_as_many_of_each_of_its_classes():
    for client in range(30):
        counts = own_classes(digits(), client)
        assert len(set(counts[counts > 0])) == 1


@pytest.mark.parametrize("each", [1, 3, 4, 10])
def test_other_numbers_of_classes(each):
    found = digits(classes_each=each, clients=20)
    held = np.stack([own_classes(found, client) > 0 for client in range(20)])
    assert held.sum(axis=1).tolist() == [each] * 20
    assert held.sum(axis=0).tolist() == [20 * each // 10] * 10
    groups = None if each in (3, 4) else len({row.tobytes() for row in held})
    assert (None if found.truth is None else found.truth.max() + 1) == groups


def test_labels_are_right_and_no_image_is_used_twice():
    found, known = digits(), digit_classes()
    for shard in (found.train, found.test, found.newcomers.support, found.newcomers.query):
        assert np.array_equal(shard.y, classes_of(shard.x.numpy(), known))
    seen = all_images(found)
    assert len(set(seen)) == len(seen)


def test_the_newcomer_holds_all_classes_alike():
    new = digits().newcomers
    assert new.query.ids == ("concept-0",)
    for shard in (new.support, new.query):
        assert len(set(np.bincount(shard.y))) == 1
        assert len(np.bincount(shard.y)) == 10


def test_sizes_that_are_asked_for():
    found = digits(samples=20, test_samples=5)
    assert set(found.train.sizes) == {20}
    assert set(found.test.sizes) == {5}
    for client in range(30):
        assert sorted(own_classes(found, client)[own_classes(found, client) > 0]) == [12, 13]


def test_the_options_make_the_same_data_again():
    found = digits(classes_each=4, pool=2, seed=2)
    assert found.train.x.shape[1:] == (4, 4)
    assert scenario("few-classes", seed=2, **found.options).fingerprint() == found.fingerprint()
    assert digits(classes_each=4, pool=2, seed=3).fingerprint() != found.fingerprint()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"classes_each": 11}, "classes_each must be at most 10, the classes there are; got 11"),
        ({"samples": 60}, "samples of 2 classes are too many, there are 4"),
        ({"clients": 2000}, "use fewer clients or test_samples"),
        ({"samples": 1, "test_samples": 1, "classes_each": 4}, "2 samples cannot be cut into 4 classes"),
    ],
)
def test_options_that_cannot_be_are_refused(options, words):
    with pytest.raises(ConfigError) as caught:
        scenario("few-classes", **options)
    assert words in str(caught.value)


def test_a_run_finds_own_classes_easier_than_all():
    result = fit(digits(), method="oracle", rounds=20)
    assert result.metrics["accuracy"] > 0.9
    x, y = samples(digits().newcomers.query, 0)
    assert (result.predict(x, cluster=0) == y).mean() <= 0.2  # a model of two classes knows two of ten
