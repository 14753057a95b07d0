"""What a node with a table sends before a schema is agreed on, and the checks of it: a node may send anything."""

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
"""Columns of a table."""
LONGEST_COLUMN, LONGEST_LEVEL = 90, 100
"""Characters of the name of a column and of a level; a feature is named by both."""
ROUNDING = 1e-6
"""Relative error of a mean or a standard deviation that rounding may cause."""


@dataclass(frozen=True)
class Offer:
    """The clients of a node, and names, counts, means and levels of the columns of its table. No row."""

    clients: tuple[ClientId, ...]
    train: tuple[int, ...]
    """Number of training rows of each client."""
    test: tuple[int, ...]
    """Number of test rows of each client."""
    settings: TableSettings
    summary: TableSummary

    def plain(self) -> dict[str, Any]:
        """Return settings and summary as values that JSON can hold."""
        return {"settings": to_plain(self.settings), "summary": self.summary.plain()}

    @classmethod
    def read(
        cls, plain: Mapping[str, Any], clients: tuple[ClientId, ...], train: tuple[int, ...], test: tuple[int, ...]
    ) -> Offer:
        """Return the offer that `plain` described; raise an error for figures that no table has."""
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
    """Name what no table has, in the order of severity."""
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
            yield "a reason that is no short line"
        return
    listed = [levels for levels in (column.texts, column.marks, column.codes) if levels is not None]
    for levels in listed:
        yield from _level_faults(levels)
    cells, unnamed = (column.numbers, column.dates), column.unnamed
    rows = column.missing + column.infinite + unnamed.rows + sum(kind.rows for kind in cells)
    rows += _rows_of(column.texts) + _rows_of(column.marks)
    complete = column.texts is not None and column.marks is not None
    # whole numbers among texts may be unnamed, and are counted as numbers as well
    hidden = column.numbers.rows - _rows_of(column.codes) if column.codes is not None else 0
    least, most = column.rows if complete else 0, column.rows + min(hidden, unnamed.rows)
    if not least <= rows <= most:
        yield f"its cells are {rows}, but it has {column.rows} rows"
    if column.training_missing > min(column.missing, column.training) or column.training > column.rows:
        yield "more training rows than rows"
    if not unnamed.levels <= unnamed.rows or unnamed.training > min(unnamed.rows, column.training):
        yield "unnamed levels that no row holds"
    for kind in cells:
        if kind.training > min(kind.rows, column.training):
            yield "more training rows than rows"
        if len({moments.reading for moments in kind.readings}) != len(kind.readings):
            yield "a reading twice"
        for moments in kind.readings:
            yield from _moment_faults(moments, kind.training)


def _rows_of(levels: Levels) -> int:
    return sum(level.rows for level in levels or ())


def _level_faults(levels: tuple[Level, ...]) -> Iterator[str]:
    texts = check_texts((level.text for level in levels), "levels")
    if len(set(texts)) != len(texts):
        yield "a level twice"
    if any(not level.rows >= 1 or level.training > level.rows for level in levels):
        yield "levels that no row holds"


def _moment_faults(moments: Moments, training: int) -> Iterator[str]:
    spread = moments.high - moments.low
    if spread < 0 or moments.count != training or not math.isfinite(spread):
        yield "extremes or a count that no numbers have"
    slack = ROUNDING * max(abs(moments.low), abs(moments.high))
    inside = moments.low - slack <= moments.mean <= moments.high + slack
    if moments.count and (not inside or moments.deviation > spread / 2 + slack):
        yield "a mean or a standard deviation that no numbers between its extremes have"
