"""Counts and scales of the features of a column."""

from __future__ import annotations

import math

from coterie.data.settings import Scale
from coterie.data.summary import ColumnSummary, TableSummary


def is_of_clients(column: ColumnSummary, summary: TableSummary) -> bool:
    """Return whether a column is the same in all rows of each client, and not because clients have one row each."""
    return column.constant and summary.clients > 1 and column.present >= 2 * summary.clients


def marked(column: ColumnSummary) -> int:
    """Return the number of cells with a mark of a missing value, such as NA."""
    return sum(level.rows for level in column.marks or ())


def training_missing(column: ColumnSummary, marks: bool = True) -> int:
    """Return the number of training rows without a value.

    Args:
        column: Summary of the column.
        marks: Whether marks such as NA count as missing.
    """
    return column.training_missing + (sum(level.training for level in column.marks or ()) if marks else 0)


def with_indicator(own: tuple[Scale, ...], missing: int, training: int) -> tuple[Scale, ...]:
    """Return the scales of a column's features and of the indicator of missing values, if training rows have some.

    Args:
        own: Scales of the other features of the column.
        missing: Number of training rows without a value.
        training: Number of training rows.
    """
    return (*own, share_scale(missing, training)) if missing else own


def share_scale(count: int, training: int) -> Scale:
    """Return mean and standard deviation of a feature of zeros and ones."""
    share = count / training if training else 0.0
    return share, math.sqrt(share * (1 - share))
