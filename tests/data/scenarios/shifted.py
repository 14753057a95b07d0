"""Small stand-ins for data sets whose images tell which they are, and readers of populations made from them."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from coterie import FederatedDataset
from coterie.core.shard import Shard


def samples(shard: Shard, client: int) -> tuple[np.ndarray, np.ndarray]:
    rows = slice(int(shard.starts[client]), int(shard.stops[client]))
    return shard.x[rows].numpy(), shard.y[rows].numpy()


def digit_classes() -> dict[bytes, int]:
    """The class of every digit by its pixels; all 1797 are different."""
    source = load_digits()
    pixels = (source.images / 16).astype(np.float32)
    return {image.tobytes(): int(y) for image, y in zip(pixels, source.target, strict=True)}


def classes_of(x: np.ndarray, known: dict[bytes, int]) -> np.ndarray:
    return np.array([known[image.tobytes()] for image in x])


def all_images(population: FederatedDataset) -> list[bytes]:
    """Every image that anybody trains on, holds out or meets as a newcomer of the first concept."""
    found = [*population.train.x.numpy(), *population.test.x.numpy()]
    for shard in (population.newcomers.support, population.newcomers.query):
        found += list(samples(shard, 0)[0])
    return [image.tobytes() for image in found]
