"""Columns of true and false."""

from __future__ import annotations

from coterie.core.schema import TRUTHS
from coterie.data.summary import ColumnSummary


def is_boolean(column: ColumnSummary) -> bool:
    """Return whether a column holds `true` and `false`, or marks of missing values, and nothing else."""
    others = column.numbers.rows + column.dates.rows + column.infinite + column.unnamed.rows
    return bool(column.texts) and not others and {level.text.lower() for level in column.texts or ()} <= TRUTHS.keys()
