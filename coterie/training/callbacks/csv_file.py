"""Tracking in a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from coterie.core.registry import register
from coterie.files import write_atomically
from coterie.training.callbacks.base import TrainingRun
from coterie.training.callbacks.tracking import Identity, Outcome, Session, Tracker

FILE = "rounds.csv"
"""Name of the file unless a path is given."""


@register("csv")
@dataclass
class CSVLogger(Tracker):
    """Write the figures of every round to a CSV file with one row per round.

    An existing file is replaced, unless the run is resumed; then the rows before the first repeated round are kept.

    Args:
        path: The file. Missing folders are created. By default rounds.csv in the run folder, or in the current folder
            if the run has no folder.

    Example:
        >>> from coterie.callbacks import CSVLogger
        >>> tracker = CSVLogger("rounds.csv")
    """

    path: str | None = None
    """Path of the file; None for rounds.csv in the run folder."""

    def open(self, run: TrainingRun, known: Identity | None) -> Session:
        """Create the file, or read the rows of the rounds before the first one of a resumed run."""
        path = (run.folder or Path()) / FILE if self.path is None else Path(self.path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return CSVSession(path, run.first_round)


class CSVSession(Session):
    """An open CSV file."""

    def __init__(self, path: Path, first_round: int) -> None:
        self.path = path
        self.rows = [row for row in _rows_of(path) if int(row["round"]) < first_round] if first_round else []
        self.columns: dict[str, None] = dict.fromkeys(["round", *(name for row in self.rows for name in row)])
        """Names of the columns in order; figures that are measured only in some rounds are added later."""
        self._rewrite()

    def log(self, figures: Mapping[str, float], step: int) -> None:
        row = {"round": str(step)} | {name: repr(value).removesuffix(".0") for name, value in figures.items()}
        self.rows.append(row)
        if row.keys() <= self.columns.keys():
            with open(self.path, "ab") as file:
                file.write(self._text([row]))
        else:
            self.columns |= dict.fromkeys(row)
            self._rewrite()

    def close(self, outcome: Outcome) -> None:
        """Do nothing, because every row is already in the file."""

    def _rewrite(self) -> None:
        write_atomically(self.path, self._text([dict(zip(self.columns, self.columns, strict=True)), *self.rows]))

    def _text(self, rows: list[dict[str, str]]) -> bytes:
        text = io.StringIO()
        csv.DictWriter(text, list(self.columns), restval="", lineterminator="\n").writerows(rows)
        return text.getvalue().encode()


def _rows_of(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file that a session has written, without an incomplete last row."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    return list(csv.DictReader(line for line in lines if line.endswith("\n")))
