"""When a run is done before its last round: nothing has improved for a while, or its caller says so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TOLERANCE = 1e-4
"""Default fraction of the best value by which a lower value must differ to count as an improvement."""


class Watch:
    """Follows one figure of the records, lower is better, and counts how often it was measured without improving."""

    def __init__(self, figure: str, patience: int | None, first: int = 0, tolerance: float = TOLERANCE) -> None:
        self.figure = figure
        self.patience = patience
        """Measurements in a row without improvement that end the run; None: it goes on whatever comes."""
        self.first = first
        """The first round that counts: those of a race come before it."""
        self.tolerance = tolerance
        """Fraction of the best value by which a lower value must differ to count as an improvement."""
        self.best = math.inf
        self.best_round: int | None = None
        self.waited = 0

    def see(self, record: Mapping[str, Any]) -> bool:
        """Take the next record into account; whether the figure has improved."""
        if self.figure not in record or record["round"] < self.first:
            return False
        value = math.inf if record[self.figure] is None else float(record[self.figure])
        if not value < self.best - (self.tolerance * abs(self.best) if math.isfinite(self.best) else 0):
            self.waited += 1
            return False
        self.best, self.best_round, self.waited = value, record["round"], 0
        return True

    @property
    def exhausted(self) -> bool:
        return self.patience is not None and self.waited >= self.patience


WINDOW = 10
"""Rounds whose mean loss is compared with that of as many rounds before them."""
SLIGHT = 0.01
"""A loss has settled if between the two it fell by less than this part of its fall so far."""
SETTLED = "settled"
"""In a record's `stopped`: the training loss had settled, and rounds=auto."""


class Settling:
    """Follows the training loss until it no longer falls: how far it falls now, next to how far it has fallen.

    A change of the number of clusters starts a new comparison. Rounds whose loss is not known do not count.
    """

    def __init__(self, least: int) -> None:
        self.least = least
        """Rounds before the loss may count as settled."""
        self.rounds = 0
        self.highest = -math.inf
        self.losses: list[float] = []
        """Of the rounds since the last change of the number of clusters."""

    def see(self, record: Mapping[str, Any]) -> None:
        """Take the next record into account."""
        self.rounds = record["round"] + 1
        if record.get("events"):
            self.losses = []
        loss = record.get("loss")
        if loss is not None:
            self.highest = max(self.highest, loss)
            self.losses.append(loss)

    @property
    def reached(self) -> bool:
        """Whether the loss has settled."""
        if self.rounds < self.least or len(self.losses) < 2 * WINDOW:
            return False
        before, now = (sum(part) / WINDOW for part in (self.losses[-2 * WINDOW : -WINDOW], self.losses[-WINDOW:]))
        return before - now <= SLIGHT * (self.highest - now)
