"""File of finished cells: one JSON object per line, to which lines are only appended."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import RunError
from coterie.experiments.reproduction import Cell, Figures, Found


@dataclass(frozen=True)
class Measured:
    """Return value of a worker process for a finished cell."""

    figures: Figures
    seconds: float
    """Duration of the measurement in this process."""
    resumed: bool = False
    """Whether an earlier process had done a part of the work, which `seconds` does not contain."""


@dataclass(frozen=True)
class Finished:
    """A finished cell, that is one line of the file."""

    reproduction: str
    """Name under which the reproduction stores its cells."""
    cell: str
    seed: int
    figures: Figures
    seconds: float
    """Duration of the run in seconds, or of its last part if it was resumed."""
    resumed: bool | None = None
    """Whether `seconds` is that of the last part only; None for lines of versions that did not store it."""
    version: str | None = None
    """Version of the code; None for lines of versions that did not store it."""
    machine: str | None = None
    """Processor and number of cores; None for lines of versions that did not store it."""


REQUIRED = {"reproduction", "cell", "seed", "figures", "seconds"}
ADDED_LATER = {"resumed", "version", "machine"}


def append(file: Path, reproduction: str, cell: Cell, measured: Measured, version: str) -> None:
    """Append a finished cell to the file; it is on the disk on return."""
    line = {
        "reproduction": reproduction,
        "cell": cell.name,
        "seed": cell.seed,
        "figures": measured.figures,
        "seconds": round(measured.seconds, 1),
        "resumed": measured.resumed,
        "version": version,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
        out.flush()
        os.fsync(out.fileno())


def read(file: Path, reproduction: str) -> Found:
    """Return the finished cells of one reproduction; if a cell occurs twice, the last line counts."""
    found: dict[str, dict[int, Figures]] = {}
    for line in read_lines(file):
        if line.reproduction == reproduction:
            found.setdefault(line.cell, {})[line.seed] = line.figures
    return found


def read_lines(file: Path) -> list[Finished]:
    """Return all finished cells in the order of the file; none if the file does not exist.

    Raises:
        RunError: if a line is damaged.
    """
    if not file.is_file():
        return []
    lines = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            missing = REQUIRED - line.keys()
        except (json.JSONDecodeError, AttributeError):
            missing = {"JSON"}
        if missing:
            raise RunError(
                f"{file}, line {number} is not a finished cell ({', '.join(sorted(missing))} missing): remove the line"
            )
        lines.append(Finished(**{name: line[name] for name in (REQUIRED | ADDED_LATER) & line.keys()}))
    return lines
