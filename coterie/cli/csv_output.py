"""Tables as CSV, to a file or to standard output."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TextIO

from coterie.training.runs.outputs import write_output

PRINTED = Path("-")
"""Name of the file that stands for standard output."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Letters that the formulas of spreadsheets begin with."""


def write_csv(to: Path | None, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write rows below a header to a file, or to standard output for None and `-`."""
    if to is None or to == PRINTED:
        _lines(sys.stdout, header, rows)
        return
    text = io.StringIO()
    _lines(text, header, rows)
    write_output(to, text.getvalue())


def _lines(file: TextIO, header: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(list(map(cell, header)))
    writer.writerows(list(map(cell, row)) for row in rows)


def cell(value: object) -> object:
    """Return the value as a spreadsheet may read it: a text that would be a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
