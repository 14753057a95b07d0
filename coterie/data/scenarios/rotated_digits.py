"""Rotated digits: scikit-learn's 8x8 digits, which each group sees turned by a different multiple of 90 degrees."""

from __future__ import annotations

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, generator, key_for
from coterie.data.scenarios.rotated_images import QUARTERS, Upright, rotated

TRAIN = 1440
RECOMMENDED = {"clusters": 4, "learner": "mlp:hidden=64", "rounds": 40, "local_steps": 10, "lr": 0.5}


def rotated_digits(*, clients: int = 60, seed: int = 0) -> FederatedDataset:
    """1440 images train, the other 357 test. Every rotation gets all 1440, cut into clients/4 clients (60: 96 each).

    The server does not know the rotation of a client. All clients of a rotation share its 357 test images.
    """
    random = generator(key_for(seed, Purpose.SCENARIO))
    return rotated("rotated-digits", upright_digits(random), QUARTERS, clients, random, options={"clients": clients})


def upright_digits(random: np.random.Generator) -> Upright:
    """Return all 1797 digits in random order, the first 1440 to train; pixels (8, 8) in [0, 1]."""
    from sklearn.datasets import load_digits  # slow to import

    digits = load_digits()
    order = random.permutation(len(digits.images))
    images, labels = (digits.images / 16).astype(np.float32)[order], digits.target.astype(np.int64)[order]
    return Upright(images[:TRAIN], labels[:TRAIN], images[TRAIN:], labels[TRAIN:])
