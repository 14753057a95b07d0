"""Differences between the figures of two runs of the same cell."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.experiments.reproduction import Figures

TOLERANCE = 1e-6
"""Largest relative difference between two figures that count as the same."""
OF_THE_MACHINE = frozenset({"seconds", "memory"})
"""Figures that depend on the machine, which are not compared."""


@dataclass(frozen=True)
class Difference:
    """The figure of a cell that differs most from the stored one."""

    figure: str
    stored: object
    now: object
    relative: float

    @property
    def same(self) -> bool:
        return self.relative <= TOLERANCE


def largest_difference(stored: Figures, now: Figures) -> Difference:
    """Return the figure that differs most; a stored figure that is missing now differs infinitely."""
    found = dict(_leaves("", now))
    differences = [
        Difference(name, value, found.get(name, "missing"), relative_difference(value, found.get(name, "missing")))
        for name, value in _leaves("", stored)
    ]
    return max(differences, key=lambda difference: difference.relative, default=Difference("", None, None, 0.0))


def relative_difference(stored: object, now: object) -> float:
    """Return |a - b| / max(|a|, |b|) of two numbers, 0 for equal values, infinity for other values that differ."""
    if stored == now:
        return 0.0
    if not (isinstance(stored, int | float) and isinstance(now, int | float)):
        return math.inf
    if math.isnan(stored) or math.isnan(now):
        return 0.0 if math.isnan(stored) and math.isnan(now) else math.inf
    return abs(stored - now) / max(abs(stored), abs(now))


def _leaves(name: str, value: Any) -> Iterator[tuple[str, object]]:
    """Yield every number, text or None in nested figures with its path, without figures of the machine."""
    if name.rpartition("/")[2] in OF_THE_MACHINE:
        return
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _leaves(f"{name}/{key}".lstrip("/"), inner)
    elif isinstance(value, list | tuple):
        yield f"{name}/length", len(value)
        for place, inner in enumerate(value):
            yield from _leaves(f"{name}/{place}", inner)
    else:
        yield name, value
