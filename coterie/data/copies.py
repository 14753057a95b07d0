"""Columns that are probably copies of another one, found from the summary of a table.

Two columns of which one is a linear function of the other, such as a temperature in two units, have the same extremes
in standard deviations from the mean. Two columns that name the same things differently have
levels with the same counts.
"""

from __future__ import annotations

from coterie.data.summary import ColumnSummary, Level, Moments

CLOSE = 1e-7
"""Largest difference of the extremes of two copies, in standard deviations."""
FEWEST_ROWS = 100
"""Training rows below which extremes and counts may agree by chance."""
FEWEST_LEVELS = 4
"""Levels with the same counts below which two features may agree by chance; a feature and the target seldom do."""


def is_copy(one: ColumnSummary, other: ColumnSummary, fewest_levels: int = FEWEST_LEVELS) -> bool:
    """Return whether two columns are probably the same up to units or names.

    Args:
        one: Summary of a column.
        other: Summary of another column of the same rows.
        fewest_levels: Number of levels from which equal counts are no chance.
    """
    if (one.missing, one.training_missing) != (other.missing, other.training_missing):
        return False
    if min(one.training, other.training) - one.training_missing < FEWEST_ROWS:
        return False
    return _same_extremes(one, other) or _same_counts(one, other, fewest_levels)


def _same_extremes(one: ColumnSummary, other: ColumnSummary) -> bool:
    mine, theirs = _scaled(one), _scaled(other)
    if mine is None or theirs is None or mine[0] != theirs[0]:
        return False
    turned = [-value for value in reversed(theirs[1])]
    return any(
        all(abs(a - b) <= CLOSE * (1 + abs(a)) for a, b in zip(mine[1], each, strict=True))
        for each in (theirs[1], turned)
    )


def _scaled(column: ColumnSummary) -> tuple[int, list[float]] | None:
    """Training rows, and the two least and two greatest values in standard deviations; None with too few values."""
    readings: tuple[Moments, ...] = column.numbers.readings or column.dates.readings
    if not readings or column.has_texts:
        return None
    found = readings[0]
    values = [found.low, found.next_low, found.next_high, found.high]
    if not found.deviation or not values[0] < values[1] < values[2] < values[3]:
        return None
    return found.count, [(value - found.mean) / found.deviation for value in values]


def _same_counts(one: ColumnSummary, other: ColumnSummary, fewest: int) -> bool:
    mine, theirs = _counts(one), _counts(other)
    return mine == theirs and len(mine) >= fewest and len(set(mine)) > 1


def _counts(column: ColumnSummary) -> list[tuple[int, int]]:
    """Return the counts of each level in all rows and in training rows; empty if levels are not all listed."""
    levels: tuple[Level, ...] | None = None
    if column.texts is not None and column.marks is not None and not column.unnamed.levels:
        levels = (*column.texts, *column.marks, *(column.codes or ())) if column.codes is not None else None
    return sorted((level.rows, level.training) for level in levels or ())
