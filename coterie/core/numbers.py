"""Conversion of numbers for JSON, which has neither infinity nor NaN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, SupportsFloat

import numpy as np

PLAIN = (int, str, bool, type(None))
"""Types of values that stay as they are."""


def finite(value: SupportsFloat) -> float | None:
    """Return a number as a float, or None if it is infinite or NaN."""
    number = float(value)
    return number if math.isfinite(number) else None


def finite_numbers(value: Any) -> Any:
    """Return nested dicts, lists and arrays as plain values, with None for infinite numbers and NaN."""
    if type(value) in PLAIN:  # the most frequent case, as in a list with the cluster of each client
        return value
    if isinstance(value, Mapping):
        return {name: finite_numbers(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_numbers(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return finite_numbers(value.tolist())
    return finite(value) if isinstance(value, float) else value
