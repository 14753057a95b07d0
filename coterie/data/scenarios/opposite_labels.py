"""Two classes of images that two groups label in opposite ways: the experiments on real data of ODCL, section 5.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.arrays import client_ids, group_tests, stack_shard
from coterie.data.loaders import load
from coterie.data.scenarios.rotated_digits import upright_digits
from coterie.data.scenarios.rotated_images import Upright
from coterie.errors import ConfigError

CLASSES = {"digits": (1, 2), "mnist": (1, 2), "cifar10": (0, 1)}
"""Classes by data set: group 0 labels the first one 1 and the second one 0, group 1 the other way round."""
SAMPLES = {"digits": 4, "mnist": 4, "cifar10": 40}
RECOMMENDED: dict[str, object] = {"clusters": 2, "learner": "logistic:l2=0.01,bias=false", "rounds": 200}
RECOMMENDED |= {"local_steps": 10, "lr": 0.1}
CIFAR_LR = 0.005
"""Learning rate for cifar10, where the largest curvature of a client is 275: steps above 0.007 diverge."""

Flags = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]


def opposite_labels(
    *,
    dataset: str = "digits",
    clients: int = 100,
    samples: int | None = None,
    noise: float = 0.0,
    noise_kind: str = "exact",
    seed: int = 0,
) -> FederatedDataset:
    """Digits 1 and 2, or airplanes and automobiles for cifar10; the label 1 of one group is the label 0 of the other.

    A client has equally many images of both classes; no image occurs twice in a group. The features are the pixels in
    [0, 1] and a last one that is always 1: so the intercept is penalised as well, and the model of a client whose
    labels are all the same stays finite. Test images are shared by a group and labelled in its way.

    `noise` is the share of wrong training labels; test labels have none. With noise_kind=exact every client has the
    same number of them, the nearest whole one (20 % of 4 labels are 1), at random places; with iid each label
    is wrong with that probability. The images do not depend on it. Download the data with 'coterie data get mnist' or
    'coterie data get cifar10'; digits come with scikit-learn.
    """
    samples = SAMPLES[dataset] if samples is None else samples
    _check_even("clients", clients, "group")
    _check_even("samples", samples, "class")
    random = generator(key_for(seed, Purpose.SCENARIO))
    images = _two_classes(dataset, random)
    truth = random.permutation(np.repeat(np.arange(2), clients // 2))
    rows = _dealt(dataset, images.y_train, truth, samples, random)
    right = images.y_train[rows] == truth[:, None]
    labels = (right ^ _wrong(random, rows.shape, noise, noise_kind)).astype(np.int64)
    ids = client_ids(clients)
    return FederatedDataset(
        "opposite-labels",
        stack_shard(ids, _features(images.x_train[rows.reshape(-1)]), labels.reshape(-1), [samples] * clients),
        test=group_tests(
            ids,
            np.tile(_features(images.x_test), (2, 1)),
            np.concatenate([images.y_test == group for group in range(2)]).astype(np.int64),
            truth,
            len(images.y_test),
        ),
        truth=truth,
        options={
            "dataset": dataset,
            "clients": clients,
            "samples": samples,
            "noise": noise,
            "noise_kind": noise_kind,
        },
        recommended={"lr": CIFAR_LR} if dataset == "cifar10" else {},
        group_names=tuple(f"class {number} is labelled 1" for number in CLASSES[dataset]),
    )


def _check_even(name: str, value: int, part: str) -> None:
    if value % 2:
        raise ConfigError(f"{name} must be a multiple of 2, one half for each {part}; got {value}")


def _two_classes(dataset: str, random: np.random.Generator) -> Upright:
    """Return the images of the two classes; y is 0 for the first class and 1 for the second."""
    source = upright_digits(random) if dataset == "digits" else load(dataset)
    train, test = (np.isin(y, CLASSES[dataset]) for y in (source.y_train, source.y_test))
    second = CLASSES[dataset][1]
    white = np.float32(1 if dataset == "digits" else 255)
    return Upright(
        source.x_train[train].astype(np.float32) / white,
        (source.y_train[train] == second).astype(np.int64),
        source.x_test[test].astype(np.float32) / white,
        (source.y_test[test] == second).astype(np.int64),
    )


def _features(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return features (n, pixels + 1): the pixels in a row, then 1."""
    return np.column_stack([x.reshape(len(x), -1), np.ones(len(x), np.float32)])


def _dealt(dataset: str, y: Ints, truth: Ints, samples: int, random: np.random.Generator) -> Ints:
    """Return the images of each client, (m, n): half of each class, no image twice in a group."""
    half, members = samples // 2, len(truth) // 2
    there = np.bincount(y, minlength=2).min()
    if members * half > there:
        raise ConfigError(
            f"clients={len(truth)} with samples={samples} need {members * half} images of each class in a group, but "
            f"{dataset} has {there}: use fewer clients or samples"
        )
    rows = np.empty((len(truth), 2, half), dtype=np.int64)
    for group in range(2):
        for place in range(2):
            rows[truth == group, place] = random.choice(np.flatnonzero(y == place), (members, half), replace=False)
    return rows.reshape(len(truth), samples)


def _wrong(random: np.random.Generator, shape: tuple[int, ...], noise: float, kind: str) -> Flags:
    """Return a mask of the labels that are exchanged, (m, n)."""
    lots = random.random(shape)
    if kind == "iid":
        return lots < noise
    count = int(noise * shape[1] + 0.5)
    if noise > 0 and count == 0:
        raise ConfigError(
            f"noise={noise} of {shape[1]} labels is less than half a label, so none would be wrong: "
            "use more noise or samples, or noise_kind=iid"
        )
    return np.argsort(np.argsort(lots, axis=1), axis=1) < count
