"""FEMNIST: handwritten characters, every client is a real writer, and the groups are unknown."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Shard
from coterie.data.arrays import stack_shard
from coterie.data.loaders import load
from coterie.errors import ConfigError, InputError

RECOMMENDED: dict[str, object] = {"clusters": 3, "learner": "cnn:channels=16,hidden=64", "shared": "conv1,conv2,fc1"}
RECOMMENDED |= {"participation": 0.2, "batch_size": 20, "local_epochs": 1, "lr": 0.2, "rounds": 100}
RECOMMENDED |= {"evaluate_every": 5}


def femnist(*, writers: int | None = None, seed: int = 0) -> FederatedDataset:
    """A client is a writer with its own training and held-out images, 62 classes; the true groups are unknown.

    The published paper is 1 and ink is 0; both are inverted, as in MNIST. The data does not depend on the seed. Import
    your own copy with 'coterie data import femnist PATH'.
    """
    images = load("femnist")
    if images.writers is None:
        raise InputError("femnist has no writers: import it again with 'coterie data import femnist PATH'")
    ids = images.writers.ids
    if writers is not None and writers > len(ids):
        raise ConfigError(f"writers={writers} but femnist has {len(ids)} here: choose at most {len(ids)}")
    ids = ids[:writers]
    return FederatedDataset(
        "femnist",
        _by_writer(ids, images.x_train, images.y_train, images.writers.train),
        test=_by_writer(ids, images.x_test, images.y_test, images.writers.test),
        options={} if writers is None else {"writers": writers},
    )


def _by_writer(
    ids: tuple[str, ...], x: npt.NDArray[np.uint8], y: npt.NDArray[np.uint8], owner: npt.NDArray[np.int64]
) -> Shard:
    """Return the images of these writers, one writer after the other, each in the order of the file."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(ids))[: len(ids)]
    rows = order[: sizes.sum()]
    ink = (255 - x[rows]).astype(np.float32) / np.float32(255)
    return stack_shard(ids, ink, y[rows].astype(np.int64), sizes.tolist())
