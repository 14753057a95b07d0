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
"""File name that means standard output."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""Characters at the start of a spreadsheet formula."""


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
    """Return a value that is safe in a spreadsheet: an apostrophe is put before a text that would be a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
