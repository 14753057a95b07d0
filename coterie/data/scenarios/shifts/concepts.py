"""Concept shift: the meaning of a label. A concept is a map of the C labels, one row of an array (concepts, C)."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError

Ints = npt.NDArray[np.int64]

ROUNDING = 1e-9
"""Tolerance for rounding: 0.29 of 100 classes is 28.999999999999996 in floating point, but means 29."""


def label_swap(classes: int, concepts: int, beta: float) -> Ints:
    """Return maps of labels (concepts, classes): concept c maps y < C_beta to (y + c) mod C_beta and keeps others.

    C_beta = floor(beta C). Concepts differ from each other only if there are at most C_beta of them.
    """
    moved = math.floor(beta * classes + ROUNDING)
    if concepts > max(moved, 1):
        needed = f"choose a beta of at least {math.ceil(1000 * concepts / classes) / 1000:g}"
        raise ConfigError(
            f"beta={beta:g} moves {moved} of {classes} labels, which makes {max(moved, 1)} different concepts, not "
            f"{concepts}: {needed if concepts <= classes else f'there can be at most {classes}'}"
        )
    labels = np.arange(classes)
    return np.stack([np.where(labels < moved, (labels + c) % max(moved, 1), labels) for c in range(concepts)])


def label_reverse(classes: int) -> Ints:
    """Return two maps of labels (2, classes): labels as they are, and y to C - 1 - y."""
    labels = np.arange(classes)
    return np.stack([labels, labels[::-1]])
