"""Rotated images: each group sees the same images turned by a different multiple of 90 degrees.

The image experiments of Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import group_tests, stack_shard
from coterie.data.loaders import load
from coterie.data.sizes import equal_parts
from coterie.errors import ConfigError

QUARTERS = (0, 90, 180, 270)
HALVES = (0, 180)

CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_SD = (0.2470, 0.2435, 0.2616)
"""Means and standard deviations of the red, green and blue training pixels, divided by 255."""

MNIST_RECOMMENDED = {"clusters": 4, "learner": "mlp:hidden=200", "rounds": 300, "local_steps": 10, "lr": 0.1} | {
    "restarts": 5,
    "race": 5,
}
CIFAR_RECOMMENDED = {
    "clusters": 2,
    "learner": "cnn:channels=16,hidden=64",
    "rounds": 200,
    "participation": 0.1,
    "batch_size": 50,
    "local_epochs": 5,
    "augment": "flip,crop",
    "lr": 0.1,
    "lr_decay": 0.99,
    "evaluate_every": 5,
}


@dataclass(frozen=True)
class Upright:
    """Images before rotation."""

    x_train: npt.NDArray[np.float32]
    """Square training images, (n, ..., H, W)."""
    y_train: npt.NDArray[np.int64]
    x_test: npt.NDArray[np.float32]
    y_test: npt.NDArray[np.int64]


def rotated_mnist(*, clients: int = 1200, train_images: int | None = None, seed: int = 0) -> FederatedDataset:
    """60000 images train. Every rotation gets all of them, cut into clients/4 clients (1200: 200 each).

    All clients of a rotation share the 10000 test images, turned alike. Pixels are in [0, 1], ink is 1.
    Download the data with 'coterie data get mnist'.
    """
    return _from_grey("rotated-mnist", "mnist", clients, train_images, seed)


def rotated_fashion_mnist(*, clients: int = 1200, train_images: int | None = None, seed: int = 0) -> FederatedDataset:
    """60000 images train. Every rotation gets all of them, cut into clients/4 clients (1200: 200 each).

    All clients of a rotation share the 10000 test images, turned alike. Pixels are in [0, 1].
    Download the data with 'coterie data get fashion-mnist'.
    """
    return _from_grey("rotated-fashion-mnist", "fashion-mnist", clients, train_images, seed)


def rotated_cifar10(*, clients: int = 200, train_images: int | None = None, seed: int = 0) -> FederatedDataset:
    """50000 images train. Both rotations, 0 and 180, get all of them, cut into clients/2 clients (200: 500 each).

    All clients of a rotation share the 10000 test images, turned alike. Each colour has mean 0 and deviation 1 over the
    training pixels. The paper's "tau = 5, batch 50" is read as 5 epochs of batches of 50. Download the data with
    'coterie data get cifar10'.
    """
    upright = _upright("cifar10", train_images)
    mean, sd = (np.array(v, np.float32).reshape(3, 1, 1) for v in (CIFAR_MEAN, CIFAR_SD))
    for x in (upright.x_train, upright.x_test):  # in place: a copy would cost 600 MB
        x -= mean
        x /= sd
    return rotated(
        "rotated-cifar10",
        upright,
        HALVES,
        clients,
        generator(key_for(seed, Purpose.SCENARIO)),
        options=_options(clients, train_images),
    )


def rotated(
    name: str,
    upright: Upright,
    turns: Sequence[int],
    clients: int,
    random: np.random.Generator,
    *,
    options: Mapping[str, object],
) -> FederatedDataset:
    """Return all images once for each rotation, shuffled and cut into equal clients, which share the test images."""
    sizes = equal_parts(
        len(upright.y_train), _clients_a_turn(clients, turns), f"clients a rotation (clients={clients})"
    )
    x_train, y_train = _turned(upright.x_train, upright.y_train, turns, random)
    x_test, y_test = _turned(upright.x_test, upright.y_test, turns, None)
    ids = [f"turn{turn:03d}-{index:02d}" for turn in turns for index in range(len(sizes))]
    truth = np.repeat(np.arange(len(turns)), len(sizes))
    return FederatedDataset(
        name,
        stack_shard(ids, x_train, y_train, sizes * len(turns)),
        test=group_tests(ids, x_test, y_test, truth, len(upright.y_test)),
        truth=truth,
        options=options,
        group_names=tuple(f"{turn} degrees" for turn in turns),
    )


def _clients_a_turn(clients: int, turns: Sequence[int]) -> int:
    if clients % len(turns):
        raise ConfigError(f"clients must be a multiple of {len(turns)}, one share for each rotation; got {clients}")
    return clients // len(turns)


def _turned(
    x: npt.NDArray[np.float32], y: npt.NDArray[np.int64], turns: Sequence[int], random: np.random.Generator | None
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Return the images turned by each angle, one angle after the other; shuffled for each if `random` is given."""
    count = len(y)
    all_x, all_y = np.empty((len(turns) * count, *x.shape[1:]), x.dtype), np.tile(y, len(turns))
    for index, turn in enumerate(turns):
        rows = slice(index * count, (index + 1) * count)
        order = slice(None) if random is None else random.permutation(count)
        all_x[rows] = np.rot90(x[order], turn // 90, axes=(-2, -1))
        all_y[rows] = y[order]
    return all_x, all_y


def _from_grey(name: str, source: str, clients: int, train_images: int | None, seed: int) -> FederatedDataset:
    return rotated(
        name,
        _upright(source, train_images),
        QUARTERS,
        clients,
        generator(key_for(seed, Purpose.SCENARIO)),
        options=_options(clients, train_images),
    )


def _options(clients: int, train_images: int | None) -> dict[str, object]:
    given = {"clients": clients, "train_images": train_images}
    return {name: value for name, value in given.items() if value is not None}


def _upright(source: str, train_images: int | None) -> Upright:
    """Return the first `train_images` images, and all test images, as float32 in [0, 1]."""
    images = load(source)
    there = len(images.y_train)
    if train_images is not None and train_images > there:
        raise ConfigError(f"train_images={train_images} but {source} has {there}: choose at most {there}")
    kept = slice(train_images)
    return Upright(
        _unit(images.x_train[kept]),
        images.y_train[kept].astype(np.int64),
        _unit(images.x_test),
        images.y_test.astype(np.int64),
    )


def _unit(x: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    return x.astype(np.float32) / np.float32(255)
