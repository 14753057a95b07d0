"""The reading by which a column of numbers is read, and numbers that are too large."""

from __future__ import annotations

from coterie.core.readings import COMMA, PLAIN, POINT
from coterie.data.summary import ColumnSummary, Moments, TableSummary
from coterie.errors import InputError

LARGEST = 1e100
"""Largest size of a value in a table; means and squares of such values are finite."""


def number_moments(column: ColumnSummary, summary: TableSummary) -> Moments:
    """Return the moments of a column of numbers by the reading that fits.

    Args:
        column: Summary of the column.
        summary: Summary of the table, whose other columns show which decimal mark is used.

    Raises:
        InputError: if the column may be read in two ways, or is written in two ways.
    """
    plain, point, comma = (column.numbers.reading(reading.name) for reading in (PLAIN, POINT, COMMA))
    if plain is not None:
        if comma is not None and _differ(plain, comma) and any(_only_comma(other) for other in summary.columns):
            raise _ambiguous(
                column, "a decimal point, or a point between thousands as other columns have decimal commas"
            )
        return plain
    if point is not None and comma is not None:
        raise _ambiguous(column, "a decimal comma, or a comma between thousands")
    found = point or comma
    if found is None:
        raise InputError(
            f"column {column.name!r} writes numbers in two ways, some with a decimal point and some with a decimal "
            f"comma: write all of them as 1234.5, or leave the column out (--drop {column.name})"
        )
    return found


def _differ(one: Moments, other: Moments) -> bool:
    return (one.mean, one.low, one.high) != (other.mean, other.low, other.high)


def _only_comma(column: ColumnSummary) -> bool:
    return [moments.reading for moments in column.numbers.readings] == [COMMA.name]


def _ambiguous(column: ColumnSummary, how: str) -> InputError:
    return InputError(
        f"the numbers in column {column.name!r} may have {how}: write them as 1234.5, or leave the column out "
        f"(--drop {column.name})"
    )


def refuse_large_numbers(column: ColumnSummary, moments: Moments) -> None:
    """Raise InputError if a column holds a number whose square is no finite number."""
    size = max(abs(moments.low), abs(moments.high))
    if size > LARGEST:
        raise InputError(
            f"column {column.name!r} holds {size:.3g}, but values must be at most {LARGEST:g} in size: rescale the "
            "column, or mark such values as missing"
        )
