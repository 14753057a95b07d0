"""Wrong labels: transition matrices T (C, C), T[c, d] the probability that label c becomes d."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def pair_flips(classes: int, rate: float) -> Floats:
    """Return the transition matrix in which a wrong label is the next class, cyclically."""
    right = np.eye(classes)
    return (1 - rate) * right + rate * np.roll(right, 1, axis=1)


def symmetric_flips(classes: int, rate: float) -> Floats:
    """Return the transition matrix in which all other classes are equally probable wrong labels."""
    right = np.eye(classes)
    return (1 - rate) * right + rate / (classes - 1) * (1 - right)


def flipped(labels: Ints, transition: Floats, random: np.random.Generator) -> Ints:
    """Return labels (n,) drawn independently by the transition matrix."""
    lots = random.random(len(labels))
    bounds = np.cumsum(transition, axis=1)[labels]
    # the last bound is 1 up to rounding; a lot above it must not become class C
    return np.asarray(np.minimum((lots[:, None] >= bounds).sum(axis=1), len(transition) - 1))
