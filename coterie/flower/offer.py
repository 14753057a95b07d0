"""Summary of a node's table, which the node sends before the nodes agree on a schema, and the server's checks of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from coterie.core.plain import from_plain, to_plain
from coterie.core.shard import ClientId
from coterie.data.fitting import TableSettings
from coterie.data.summary import ColumnSummary, Level, Levels, Moments, TableSummary
from coterie.flower.untrusted import check_texts, one_line, shown

MOST_COLUMNS = 2_000
"""Largest number of columns of a table."""
LONGEST_COLUMN, LONGEST_LEVEL = 90, 100
"""Largest number of characters of the name of a column and of a level; names of features contain both."""
ROUNDING = 1e-6
"""Relative error of a mean or a standard deviation that rounding may cause."""


@dataclass(frozen=True)
class Offer:
    """Clients of a node, with names, counts, means and levels of the columns of its table, but no rows."""

    clients: tuple[ClientId, ...]
    train: tuple[int, ...]
    """Number of training rows of each client."""
    test: tuple[int, ...]
    """Number of test rows of each client."""
    settings: TableSettings
    summary: TableSummary

    def plain(self) -> dict[str, Any]:
        """Return settings and summary as JSON values."""
        return {"settings": to_plain(self.settings), "summary": self.summary.plain()}

    @classmethod
    def read(
        cls, plain: Mapping[str, Any], clients: tuple[ClientId, ...], train: tuple[int, ...], test: tuple[int, ...]
    ) -> Offer:
        """Return the offer that `plain` returned.

        Raises:
            ValueError: if a value cannot come from a table.
        """
        if len(plain["summary"]["columns"]) > MOST_COLUMNS:
            raise ValueError(f"a table may have at most {MOST_COLUMNS} columns, got {len(plain['summary']['columns'])}")
        settings = from_plain(TableSettings, plain["settings"], "settings of a table")
        summary = TableSummary.of_plain(plain["summary"])
        offer = cls(clients, train, test, settings, summary)
        wrong = next(_faults(offer), None)
        if wrong is not None:
            raise ValueError(wrong)
        return offer


def _faults(offer: Offer) -> Iterator[str]:
    """Yield the values that cannot come from a table, the most serious first."""
    summary, settings = offer.summary, offer.settings
    names = [column.name for column in summary.columns]
    named = (settings.target, *(settings.features or ()), *settings.drop, *names)
    for name in check_texts(named, "names of columns"):
        if len(name) > LONGEST_COLUMN:
            yield f"names of columns may have at most {LONGEST_COLUMN} characters, got {shown(name)}"
    if settings.target not in names or set(settings.features or ()) - set(names):
        yield "the summary lacks the target or a feature"
    training, rows = sum(offer.train), sum(offer.train) + sum(offer.test)
    if summary.rows != rows or summary.clients != len(offer.clients):
        yield f"the summary has {summary.rows} rows of {summary.clients} clients, but the clients have {rows} rows"
    for column in summary.columns:
        if column.rows != rows or column.training != training:
            yield f"column {shown(column.name)} has {shown(column.rows)} rows, but the table has {rows}"
        yield from (f"column {shown(column.name)}: {fault}" for fault in _column_faults(column))
        if column.name == settings.target and column.unnamed.levels:
            yield f"target {shown(column.name)} must name all its classes"


def _column_faults(column: ColumnSummary) -> Iterator[str]:
    if column.unreadable:  # there is no cell to count
        if one_line(column.unreadable) != column.unreadable:
            yield "a reason that is not one short line"
        return
    for levels in (column.texts, column.marks, column.codes):
        if levels is not None:
            yield from _level_faults(levels)
    yield from _row_faults(column)
    for kind in (column.numbers, column.dates):
        if kind.training > min(kind.rows, column.training):
            yield "more training rows than rows"
        if len({moments.reading for moments in kind.readings}) != len(kind.readings):
            yield "a format that is listed twice"
        for moments in kind.readings:
            yield from _moment_faults(moments, kind.training)


def _row_faults(column: ColumnSummary) -> Iterator[str]:
    """Yield counts of cells that contradict the number of rows."""
    unnamed = column.unnamed
    rows = column.missing + column.infinite + unnamed.rows + column.numbers.rows + column.dates.rows
    rows += _rows_of(column.texts) + _rows_of(column.marks)
    complete = column.texts is not None and column.marks is not None
    # whole numbers among texts may be unnamed, and are counted as numbers as well
    hidden = column.numbers.rows - _rows_of(column.codes) if column.codes is not None else 0
    least, most = column.rows if complete else 0, column.rows + min(hidden, unnamed.rows)
    if not least <= rows <= most:
        yield f"it has {rows} cells, but {column.rows} rows"
    if column.training_missing > min(column.missing, column.training) or column.training > column.rows:
        yield "more training rows than rows"
    if not unnamed.levels <= unnamed.rows or unnamed.training > min(unnamed.rows, column.training):
        yield "unnamed levels that no row has"


def _rows_of(levels: Levels) -> int:
    return sum(level.rows for level in levels or ())


def _level_faults(levels: tuple[Level, ...]) -> Iterator[str]:
    texts = check_texts((level.text for level in levels), "levels")
    if len(set(texts)) != len(texts):
        yield "a level that is listed twice"
    if any(not level.rows >= 1 or level.training > level.rows for level in levels):
        yield "levels that no row has"


def _moment_faults(moments: Moments, training: int) -> Iterator[str]:
    spread = moments.high - moments.low
    if spread < 0 or moments.count != training or not math.isfinite(spread):
        yield "an impossible minimum, maximum or count"
    slack = ROUNDING * max(abs(moments.low), abs(moments.high))
    inside = moments.low - slack <= moments.mean <= moments.high + slack
    if moments.count and (not inside or moments.deviation > spread / 2 + slack):
        yield "a mean or a standard deviation that is impossible between its minimum and maximum"
