"""Rotated digits: exact sizes, real rotations, every image once a rotation."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from sklearn.datasets import load_digits

from coterie import ConfigError, FederatedDataset, scenario


@cache
def digits(clients: int = 60, seed: int = 0) -> FederatedDataset:
    return scenario("rotated-digits", clients=clients, seed=seed)


def group(population: FederatedDataset, turn: int) -> tuple[np.ndarray, np.ndarray]:
    """All training images and labels of one rotation."""
    train = population.train
    rows = np.concatenate(
        [np.arange(train.starts[i], train.stops[i]) for i in np.flatnonzero(population.truth == turn)]
    )
    return train.x[rows].numpy(), train.y[rows].numpy()


def as_set(images: np.ndarray, labels: np.ndarray) -> list[tuple]:
    return sorted((*map(float, image.flatten()), int(label)) for image, label in zip(images, labels, strict=True))


def test_sizes_are_exact():
    train, test = digits().train, digits().test
    assert test is not None
    assert len(train) == 60
    assert train.sizes.tolist() == [96] * 60
    assert test.sizes.tolist() == [357] * 60
    assert train.x.shape == (5760, 8, 8)
    assert test.x.shape == (4 * 357, 8, 8)
    assert np.bincount(digits().truth).tolist() == [15] * 4


@pytest.mark.parametrize("turn", [1, 2, 3])
def test_each_rotation_has_the_same_images_turned(turn):
    upright, labels = group(digits(), 0)
    turned, turned_labels = group(digits(), turn)
    expected = np.stack([np.rot90(image, turn) for image in upright])
    assert as_set(turned, turned_labels) == as_set(expected, labels)


def test_training_and_test_images_are_all_digits_once():
    source = load_digits()
    images, labels = group(digits(), 0)
    test = digits().test
    every = as_set(np.concatenate([images, test.x[:357].numpy()]) * 16, np.concatenate([labels, test.y[:357].numpy()]))
    assert len(images) == 1440
    assert every == as_set(source.images, source.target)


def test_test_images_are_turned_as_the_clients_own():
    test = digits().test
    upright = test.x[:357].numpy()
    for client in (0, 15, 30, 45, 59):
        turn = int(digits().truth[client])
        own = test.x[test.starts[client] : test.stops[client]].numpy()
        assert np.array_equal(own, np.rot90(upright, turn, axes=(1, 2)))
        assert np.array_equal(test.y[test.starts[client] : test.stops[client]].numpy(), test.y[:357].numpy())


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data():
    again = scenario("rotated-digits", seed=0)
    assert again.fingerprint() == digits().fingerprint()
    assert scenario("rotated-digits", seed=1).fingerprint() != digits().fingerprint()


def test_clients_of_a_rotation_share_no_order_with_another_rotation():
    first, second = group(digits(), 0)[1], group(digits(), 1)[1]
    assert not np.array_equal(first, second)


def test_uneven_sizes_differ_by_one():
    # 1440 images over 28 / 4 = 7 clients: 5 of 206 and 2 of 205
    sizes = digits(28).train.sizes[:7].tolist()
    assert sizes == [206] * 5 + [205] * 2


def test_values_are_between_zero_and_one():
    x = digits().train.x
    assert (float(x.min()), float(x.max())) == (0, 1)


def test_ids_are_unique_and_tell_the_rotation():
    assert len(set(digits().clients)) == 60
    assert digits().clients[15] == "turn090-00"
    assert digits().group_names == ("0 degrees", "90 degrees", "180 degrees", "270 degrees")


def test_options_say_how_to_make_it_again():
    assert digits(8).options == {"clients": 8}


@pytest.mark.parametrize("clients", [6, 61])
def test_a_number_that_is_no_multiple_of_four_is_refused(clients):
    with pytest.raises(ConfigError, match=f"multiple of 4, one share for each rotation; got {clients}"):
        scenario("rotated-digits", clients=clients)


def test_too_many_clients_are_refused():
    with pytest.raises(ConfigError, match="1440 samples cannot be cut into 1441 clients"):
        scenario("rotated-digits", clients=4 * 1441)


def test_too_few_clients_and_unknown_names_are_refused():
    with pytest.raises(ConfigError, match="clients must be a whole number at least 4, got 0"):
        scenario("rotated-digits", clients=0)
    with pytest.raises(ConfigError, match="unknown scenario 'rotated-digit': did you mean 'rotated-digits'"):
        scenario("rotated-digit")
    with pytest.raises(ConfigError, match="did you mean 'clients'"):
        scenario("rotated-digits", client=8)
