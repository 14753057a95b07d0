"""Guesses of the client and the target column of a table, as a suggestion to its user."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from coterie.data.columns import open_columns
from coterie.data.summary import ColumnSummary, summarize

CLIENTS = re.compile(
    r"client|site|hospital|clinic|cent(er|re)|store|shop|branch|school|station|meter|plant|region|country|customer|user|group",
    re.IGNORECASE,
)
TARGETS = re.compile(
    r"^(y|target|label|class|outcome|response|result|score|died|death|event|sales|price)$", re.IGNORECASE
)


@dataclass(frozen=True)
class Guess:
    """Columns of a table with those that may be its client and its target; empty: no guess."""

    columns: tuple[str, ...]
    client: str
    target: str


def guess_columns(source: object) -> Guess:
    """Return the columns of a table and guesses of the client and the target.

    Raises:
        InputError: if the table cannot be read.
    """
    columns = open_columns(source)
    parts = []
    for name in columns.names:
        values = columns.values(name)
        parts.append(summarize(name, values, np.ones(len(values), bool), np.zeros(len(values), np.int64)))
    possible = [part.name for part in parts if _may_be_client(part)]
    client = next((name for name in possible if CLIENTS.search(name)), possible[0] if possible else "")
    others = [name for name in columns.names if name != client]
    target = next((name for name in reversed(others) if TARGETS.search(name)), others[-1] if others else "")
    return Guess(columns.names, client, target)


def _may_be_client(column: ColumnSummary) -> bool:
    """Return whether a column is a text or a whole number with at least two rows for each value."""
    if column.missing or column.dates.rows or not column.whole:
        return False
    texts = None if column.texts is None else len(column.texts)
    different = None if texts is None else texts + (column.distinct_numbers() or 0)
    return different is not None and 2 <= different <= column.rows / 2
