"""Rules that end a run before its last round because nothing has improved for a while."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

TOLERANCE = 1e-4
"""Default fraction of the best value by which a lower value must differ to count as an improvement."""


class Watch:
    """Follows one figure of the records, where lower is better, and counts measurements without improvement."""

    def __init__(self, figure: str, patience: int | None, first: int = 0, tolerance: float = TOLERANCE) -> None:
        self.figure = figure
        self.patience = patience
        """Number of consecutive measurements without improvement that end the run; None: the run never ends early."""
        self.first = first
        """First round that counts; rounds of a race come before it."""
        self.tolerance = tolerance
        """Fraction of the best value by which a lower value must differ to count as an improvement."""
        self.best = math.inf
        self.best_round: int | None = None
        self.waited = 0

    def see(self, record: Mapping[str, Any]) -> bool:
        """Process the next record, and return whether the figure has improved."""
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
        """Whether the patience is exhausted."""
        return self.patience is not None and self.waited >= self.patience


WINDOW = 10
"""Number of rounds whose mean loss is compared with that of as many rounds before them."""
SLIGHT = 0.01
"""A loss has settled if it fell between the two windows by less than this share of its total decrease."""
SETTLED = "settled"
"""Value of a record's `stopped`: the training loss settled, with rounds=auto."""


class Settling:
    """Follows the training loss until its present decrease is small compared with its total decrease.

    A change of the number of clusters restarts the comparison. Rounds with unknown loss do not count.
    """

    def __init__(self, least: int) -> None:
        self.least = least
        """Number of rounds before the loss may count as settled."""
        self.rounds = 0
        self.highest = -math.inf
        self.losses: list[float] = []
        """Losses of the rounds since the last change of the number of clusters."""

    def see(self, record: Mapping[str, Any]) -> None:
        """Process the next record."""
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
