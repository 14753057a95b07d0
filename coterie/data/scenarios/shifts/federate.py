"""Datasets with newcomers from images, their clients and their concepts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset, Newcomers
from coterie.core.keys import Purpose, generator, hash_ids, keys_for_clients
from coterie.data.arrays import client_ids, stack_shard
from coterie.data.scenarios.shifts.corruptions import CORRUPTIONS, SEVERITIES, corrupt
from coterie.data.scenarios.shifts.noise import flipped
from coterie.data.scenarios.shifts.pictures import Images, Pictures, View
from coterie.errors import ConfigError

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

CLIENTS, DIGITS_CLIENTS = 100, 30
HELD_OUT, DIGITS_HELD_OUT = 0.1, 0.25
"""Share of a client's samples that is held out; larger for digits, which has few samples."""
SUPPORT, QUERY = 100, 300
"""Number of images of each class for a newcomer; if there are fewer, a quarter of them is support."""
LOOKS, WRONG_LABELS = 0, 1
"""Counters of the clients' random keys, one for each purpose."""


@dataclass(frozen=True)
class Sizes:
    """Number of clients, and of samples of each."""

    clients: int
    train: int
    test: int

    @property
    def each(self) -> int:
        return self.train + self.test

    @property
    def options(self) -> dict[str, object]:
        return {"clients": self.clients, "samples": self.train, "test_samples": self.test}


def clients_of(dataset: str, clients: int | None) -> int:
    """Return the default number of clients."""
    return clients or (DIGITS_CLIENTS if dataset == "digits" else CLIENTS)


def settle_sizes(dataset: str, there: int, clients: int, samples: int | None, test_samples: int | None) -> Sizes:
    """Return sizes without None: by default all images are used, and a tenth (digits: a quarter) is held out."""
    share = DIGITS_HELD_OUT if dataset == "digits" else HELD_OUT
    if samples is not None:
        held_out = max(1, round(samples * share / (1 - share))) if test_samples is None else test_samples
        return Sizes(clients, samples, held_out)
    each = there // clients
    held_out = max(1, round(each * share)) if test_samples is None else test_samples
    if each <= held_out:
        raise ConfigError(
            f"{there} images give {each} for each of {clients} clients, too few with {held_out} held out: "
            "use fewer clients or test_samples"
        )
    return Sizes(clients, each - held_out, held_out)


def federate(
    source: Pictures,
    view: View,
    rows: Ints,
    maps: Ints,
    concepts: Ints,
    *,
    test_samples: int,
    corruptions: bool,
    seed: int,
    transition: Floats | None = None,
) -> FederatedDataset:
    """Return a dataset without name and options.

    rows: which training images each client holds, (m, each); the last `test_samples` of them are held out.
    maps: the map of labels of each concept, (concepts, C). concepts: of each sample, (m, each).
    corruptions: whether every client sees all its images under one corruption of one severity, each drawn uniformly.
    transition: (C, C), for wrong training labels.
    """
    ids, kept = client_ids(len(rows)), rows.shape[1] - test_samples
    hashes = hash_ids(ids)
    labels = maps[concepts, source.y_train[rows]]
    if transition is not None:
        for client, key in enumerate(keys_for_clients(seed, Purpose.SCENARIO, WRONG_LABELS, hashes)):
            labels[client, :kept] = flipped(labels[client, :kept], transition, generator(int(key)))
    x, notes = _seen(source, view, rows, keys_for_clients(seed, Purpose.SCENARIO, LOOKS, hashes), corruptions)
    truth = np.array([np.bincount(row).argmax() for row in concepts[:, :kept]])
    return FederatedDataset(
        "images",
        stack_shard(ids, _joined(x[:, :kept]), labels[:, :kept].reshape(-1), [kept] * len(ids)),
        test=stack_shard(ids, _joined(x[:, kept:]), labels[:, kept:].reshape(-1), [test_samples] * len(ids)),
        truth=truth,
        group_names=tuple(f"concept {c}" for c in range(len(maps))),
        client_notes=notes,
    )


def _seen(
    source: Pictures, view: View, rows: Ints, keys: npt.NDArray[np.uint64], corruptions: bool
) -> tuple[Images, tuple[str, ...]]:
    """Return the features of all samples, (m, each, ...), and a note for each client."""
    kinds = tuple(CORRUPTIONS)
    seen, notes = [], []
    for key, row in zip(keys, rows, strict=True):
        images, note = source.train(row), "original"
        if corruptions:
            random = generator(int(key))
            kind, severity = kinds[random.integers(len(kinds))], int(random.integers(1, SEVERITIES + 1))
            images = corrupt(images, kind, severity, random)
            note = kind if kind == "original" else f"{kind} {severity}"
        seen.append(view(images))
        notes.append(note)
    return np.stack(seen), tuple(notes)


def _joined(x: Images) -> Images:
    return np.ascontiguousarray(x).reshape(-1, *x.shape[2:])


def newcomers(source: Pictures, view: View, maps: Ints, random: np.random.Generator) -> Newcomers:
    """Return one newcomer for each concept: the same clean test images with its labels, equally many of each class."""
    of_class = [random.permutation(np.flatnonzero(source.y_test == c)) for c in range(source.classes)]
    there = min(SUPPORT + QUERY, *(len(found) for found in of_class))
    if there < 2:
        raise ConfigError("newcomers need two test images of every class or more: bring the whole data set")
    cut = max(1, there * SUPPORT // (SUPPORT + QUERY))
    ids = [f"concept-{c}" for c in range(len(maps))]
    shards = []
    for part in (slice(cut), slice(cut, there)):
        rows = random.permutation(np.concatenate([found[part] for found in of_class]))
        x, y = view(source.test(rows)), source.y_test[rows]
        copies = np.tile(x, (len(maps), *[1] * (x.ndim - 1)))
        shards.append(stack_shard(ids, copies, maps[:, y].reshape(-1), [len(rows)] * len(maps)))
    return Newcomers(*shards)


def finished(
    built: FederatedDataset, name: str, options: Mapping[str, object], recommended: Mapping[str, object]
) -> FederatedDataset:
    """Return the dataset with its name, its options and recommended run options."""
    kept = {option: value for option, value in options.items() if value is not None}
    return replace(built, name=name, options=kept, recommended=recommended)
