"""Rotated images on a tiny stand-in for each data set: exact sizes, real rotations, shared tests, clear errors."""

from __future__ import annotations

import numpy as np
import pytest

from coterie import ConfigError, FederatedDataset, InputError, fit, scenario
from coterie.data.loaders import store
from coterie.data.scenarios.rotated_images import CIFAR_MEAN, CIFAR_SD
from tests.data.loaders.make import images

GREY = {"rotated-mnist": "mnist", "rotated-fashion-mnist": "fashion-mnist"}
MNIST, CIFAR = images("mnist", 40, 7), images("cifar10", 12, 3, (3, 32, 32))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_DATA", str(tmp_path))
    return tmp_path


@pytest.fixture
def data():
    for source in GREY.values():
        store.save(images(source, 40, 7), "test")
    store.save(CIFAR, "test")


def group(population: FederatedDataset, turn: int) -> tuple[np.ndarray, np.ndarray]:
    """All training images and labels of one rotation."""
    train, members = population.train, np.flatnonzero(population.truth == turn)
    rows = np.concatenate([np.arange(train.starts[i], train.stops[i]) for i in members])
    return train.x[rows].numpy(), train.y[rows].numpy()


def as_set(x: np.ndarray, y: np.ndarray) -> list[tuple]:
    return sorted((image.tobytes(), int(label)) for image, label in zip(x, y, strict=True))


@pytest.mark.parametrize("name", GREY)
def test_sizes_are_exact(data, name):
    found = scenario(name, clients=12)
    assert found.name == name
    # 40 images over 12 / 4 = 3 clients a rotation
    assert found.train.sizes.tolist() == [14, 13, 13] * 4
    assert found.test.sizes.tolist() == [7] * 12
    assert found.train.x.shape == (160, 28, 28)
    assert found.test.x.shape == (28, 28, 28)
    assert (found.train.x.dtype, found.train.y.dtype) == (found.test.x.dtype, found.test.y.dtype)
    assert str(found.train.x.dtype) == "torch.float32"
    assert np.bincount(found.truth).tolist() == [3] * 4
    assert found.options == {"clients": 12}
    assert found.group_names == ("0 degrees", "90 degrees", "180 degrees", "270 degrees")
    assert found.clients[3] == "turn090-00"


@pytest.mark.parametrize("turn", range(4))
def test_every_rotation_has_all_images_turned(data, turn):
    x = np.stack([np.rot90(image, turn) for image in MNIST.x_train]).astype(np.float32) / np.float32(255)
    assert as_set(*group(scenario("rotated-mnist", clients=12), turn)) == as_set(x, MNIST.y_train)


def test_the_test_images_are_turned_in_their_order_and_shared(data):
    test = scenario("rotated-mnist", clients=12).test
    for turn in range(4):
        rows = slice(7 * turn, 7 * turn + 7)
        expected = np.rot90(MNIST.x_test, turn, axes=(1, 2)) / np.float32(255)
        assert np.array_equal(test.x[rows].numpy(), expected)
        assert test.y[rows].tolist() == MNIST.y_test.tolist()
        assert set(test.starts[3 * turn : 3 * turn + 3]) == {7 * turn}


def test_cifar_is_turned_by_half_and_normalised_by_colour(data):
    found = scenario("rotated-cifar10", clients=4)
    assert found.train.sizes.tolist() == [6] * 4
    assert found.train.x.shape == (24, 3, 32, 32)
    assert found.group_names == ("0 degrees", "180 degrees")
    first = found.test.x[0].numpy()
    turned = found.test.x[3].numpy()
    assert np.array_equal(turned, first[:, ::-1, ::-1])
    for colour in range(3):
        expected = (CIFAR.x_test[0, colour] / 255 - CIFAR_MEAN[colour]) / CIFAR_SD[colour]
        assert np.allclose(first[colour], expected, atol=1e-6)


def test_train_images_takes_the_first_so_many(data):
    found = scenario("rotated-mnist", clients=4, train_images=10)
    assert found.train.sizes.tolist() == [10] * 4
    assert found.test.sizes.tolist() == [7] * 4
    assert found.options == {"clients": 4, "train_images": 10}
    x = MNIST.x_train[:10] / np.float32(255)
    assert as_set(*group(found, 0)) == as_set(x, MNIST.y_train[:10])


def test_the_same_seed_gives_the_same_data_and_another_seed_another_order(data):
    one = scenario("rotated-mnist", clients=4).fingerprint()
    assert one == scenario("rotated-mnist", clients=4).fingerprint()
    assert one != scenario("rotated-mnist", clients=4, seed=1).fingerprint()


def test_rotations_have_orders_of_their_own(data):
    found = scenario("rotated-mnist", clients=4)
    assert group(found, 0)[1].tolist() != group(found, 1)[1].tolist()


@pytest.mark.parametrize(("name", "source"), [*GREY.items(), ("rotated-cifar10", "cifar10")])
def test_missing_data_names_the_command(name, source, folder):
    with pytest.raises(InputError, match=f"{source} is not in {folder}: get it with 'coterie data get {source}'"):
        scenario(name)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("rotated-mnist", {"clients": 10}, "clients must be a multiple of 4, one share for each rotation; got 10"),
        ("rotated-cifar10", {"clients": 3}, "clients must be a multiple of 2, one share for each rotation; got 3"),
        ("rotated-mnist", {"clients": 164}, "40 samples cannot be cut into 41 clients a rotation .clients=164."),
        ("rotated-mnist", {"train_images": 41}, "train_images=41 but mnist has 40: choose at most 40"),
        ("rotated-mnist", {"train_images": 0}, "train_images must be a whole number at least 1, got 0"),
    ],
)
def test_options_that_cannot_be_are_refused(data, name, options, message):
    with pytest.raises(ConfigError, match=message):
        scenario(name, **options)


def test_a_run_on_cifar_changes_its_training_images(data):
    taken = fit(scenario("rotated-cifar10", clients=4), rounds=1, participation=1.0).config
    assert (taken["augment"], taken["batch_size"], taken["local_epochs"]) == ("flip,crop", 50, 5)
    assert fit(scenario("rotated-cifar10", clients=4), rounds=1, augment="none").config["augment"] == "none"


def test_a_run_takes_what_is_recommended(data):
    result = fit(scenario("rotated-mnist", clients=8), rounds=2)
    assert len(result.parameters) == 4
    assert result.config["learner"] == "mlp:hidden=200,l2=0.0"
    assert (result.config["local_steps"], result.config["lr"]) == (10, 0.1)
    assert np.isfinite(result.metrics["loss"])


def test_the_network_for_cifar_takes_its_images(data):
    result = fit(scenario("rotated-cifar10", clients=4), rounds=1, participation=1.0)
    assert result.config["learner"] == "cnn:channels=16,hidden=64"
    assert (result.config["local_epochs"], result.config["batch_size"]) == (5, 50)
