"""The file of finished cells: one JSON object a line, appended and never rewritten."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.experiments.reproduction import Cell, Figures, Found


def append(file: Path, reproduction: str, cell: Cell, figures: Figures, seconds: float) -> None:
    """Add a finished cell; it is on the disk when this returns."""
    line = {
        "reproduction": reproduction,
        "cell": cell.name,
        "seed": cell.seed,
        "figures": figures,
        "seconds": round(seconds, 1),
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as out:
        out.write(json.dumps(line) + "\n")
        out.flush()
        os.fsync(out.fileno())


def read(file: Path, reproduction: str) -> Found:
    """The finished cells of one reproduction; of a cell that is there twice, the last counts."""
    found: dict[str, dict[int, Figures]] = {}
    for line in _lines(file):
        if line["reproduction"] == reproduction:
            found.setdefault(line["cell"], {})[int(line["seed"])] = line["figures"]
    return found


def _lines(file: Path) -> list[dict[str, Any]]:
    if not file.is_file():
        return []
    lines = []
    for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            line = json.loads(text)
            missing = {"reproduction", "cell", "seed", "figures"} - line.keys()
        except (json.JSONDecodeError, AttributeError):
            missing = {"JSON"}
        if missing:
            raise RunError(
                f"{file}, line {number}: no finished cell, {', '.join(sorted(missing))} missing; remove the line"
            )
        lines.append(line)
    return lines
