"""Rotated digits: scikit-learn's 8x8 digits, every group sees them turned by another multiple of 90 degrees."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from coterie.core.keys import Purpose, generator, key_for
from coterie.core.population import Population
from coterie.errors import ConfigError
from coterie.scenarios.arrays import group_tests, stack_shard
from coterie.scenarios.partition import equal_parts

TURNS = (0, 90, 180, 270)
TRAIN = 1440


def rotated_digits(*, clients: int = 60, seed: int = 0) -> Population:
    """1440 images train, the other 357 test. Every rotation gets all 1440, cut into clients/4 clients (60: 96 each).

    Nobody tells the server a client's rotation. All clients of a rotation share its 357 test images.
    """
    if clients % len(TURNS):
        raise ConfigError(f"clients must be a multiple of {len(TURNS)}, one share for each rotation; got {clients}")
    digits = load_digits()
    random = generator(key_for(seed, Purpose.SCENARIO))
    order = random.permutation(len(digits.images))
    images, labels = (digits.images / 16).astype(np.float32)[order], digits.target.astype(np.int64)[order]
    sizes = equal_parts(TRAIN, clients // len(TURNS), f"clients a rotation (clients={clients})")
    x, y, ids = [], [], []
    for turn in range(len(TURNS)):
        shuffled = random.permutation(TRAIN)
        x.append(np.rot90(images[:TRAIN][shuffled], turn, axes=(1, 2)))
        y.append(labels[:TRAIN][shuffled])
        ids += [f"turn{TURNS[turn]:03d}-{index:02d}" for index in range(len(sizes))]
    truth = np.repeat(np.arange(len(TURNS)), len(sizes))
    turned = np.concatenate([np.rot90(images[TRAIN:], turn, axes=(1, 2)) for turn in range(len(TURNS))])
    train = stack_shard(ids, np.concatenate(x), np.concatenate(y), sizes * len(TURNS))
    return Population(
        "rotated-digits",
        train,
        test=group_tests(ids, turned, np.tile(labels[TRAIN:], len(TURNS)), truth, len(labels) - TRAIN),
        truth=truth,
        options={"clients": clients},
        recommended={
            "clusters": 4,
            "learner": "mlp:hidden=64",
            "rounds": 40,
            "local_steps": 10,
            "lr": 0.5,
            "restarts": 5,
            "race": 5,
        },
        group_names=tuple(f"{turn} degrees" for turn in TURNS),
    )
