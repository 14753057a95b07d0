"""One schema for the tables of all nodes, fitted to their summaries; nodes that do not fit are named and left out.

Nobody knows which node is right where two differ. What more than half of the nodes have decides, and without such a
majority the run does not begin.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import reduce

from coterie.core.readings import PLAIN, READINGS
from coterie.core.schema import ColumnNote, Schema
from coterie.data.fitting import LARGEST, MOST_FEATURES, TableSettings, fit_schema
from coterie.data.summary import ColumnSummary, merge
from coterie.errors import InputError
from coterie.flower.offer import Offer
from coterie.flower.untrusted import shown

TEXTS = "texts"
INSTEAD = "leave some of them out, or give the server the schema of a table (schema)"


@dataclass(frozen=True)
class Agreement:
    """The schema of all nodes that fit, and why the others do not."""

    schema: Schema
    notes: tuple[ColumnNote, ...]
    """What became of each column."""
    unfit: Mapping[int, str]
    """Sentences without the name of the node."""


def agree(offers: Mapping[int, Offer]) -> Agreement:
    """Return one schema for the tables of the nodes, and the nodes that do not fit it.

    Args:
        offers: What each node sent, by node.

    Raises:
        InputError: if there is no majority where nodes differ, or no schema fits the tables.
    """
    fitting = dict(sorted(offers.items(), key=lambda each: min(each[1].clients)))  # sums depend on the order
    unfit: dict[int, str] = {}

    def leave_out(found: Mapping[int, str]) -> None:
        unfit.update(found)
        for node in found:
            del fitting[node]

    settings = _common({node: offer.settings for node, offer in fitting.items()}, "settings of their tables")
    leave_out({node: why for node, offer in fitting.items() if (why := _other_settings(offer.settings, settings))})
    columns, partial = _common_columns(fitting)
    leave_out(_lacking(fitting, columns))
    leave_out({node: why for node, offer in fitting.items() if (why := next(_faults(offer, columns), None))})
    for name in columns:
        leave_out(_of_another_kind(name, {node: offer.summary.column(name) for node, offer in fitting.items()}))
    if not fitting:
        raise InputError(f"no node is left: {'; '.join(f'node {node} {why}' for node, why in unfit.items())}")
    parts = [
        replace(offer.summary, columns=tuple(offer.summary.column(name) for name in columns))
        for offer in fitting.values()
    ]
    schema, notes = fit_schema(merge(parts), settings)
    absent = tuple(
        ColumnNote(name, "dropped", f"{count} of {len(offers)} nodes have it") for name, count in partial.items()
    )
    return Agreement(schema, (*notes, *absent), unfit)


def _common(values: Mapping[int, TableSettings], what: str) -> TableSettings:
    """Return the value that more than half of the nodes have."""
    (value, count), *_ = Counter(values.values()).most_common(1)
    if 2 * count <= len(values):
        raise InputError(f"the nodes do not agree on the {what}: no majority has the same; {INSTEAD}")
    return value


def _other_settings(own: TableSettings, common: TableSettings) -> str | None:
    """Say how the settings of a node differ from those of the others; None: they do not."""
    for field in fields(TableSettings):
        mine, theirs = getattr(own, field.name), getattr(common, field.name)
        if mine != theirs:
            return f"reads its table with {field.name}={_plain(mine)}, but most nodes with {_plain(theirs)}"
    return None


def _plain(value: object) -> str:
    return shown(", ".join(map(str, value))) if isinstance(value, tuple) else shown(value)


def _common_columns(offers: Mapping[int, Offer]) -> tuple[list[str], dict[str, int]]:
    """The columns that most nodes have, in the order of the first that has one, and the others with their counts."""
    counts = Counter(column.name for offer in offers.values() for column in offer.summary.columns)
    odd = next((name for name, count in counts.items() if 2 * count == len(offers)), None)
    if odd is not None:
        raise InputError(f"column {shown(odd)} is in the tables of half of the nodes: {INSTEAD}")
    return (
        [name for name, count in counts.items() if 2 * count > len(offers)],
        {name: count for name, count in counts.items() if 2 * count < len(offers)},
    )


def _lacking(offers: Mapping[int, Offer], columns: list[str]) -> dict[int, str]:
    """The nodes whose tables lack a column."""
    found = {}
    for node, offer in offers.items():
        own = [column.name for column in offer.summary.columns]
        absent = [name for name in columns if name not in own]
        if absent:
            more = [name for name in own if name not in columns]
            instead = f", but {shown(more[0])}, which most nodes do not have" if more else ""
            found[node] = f"has no column {shown(absent[0])}{instead}"
    return found


def _faults(offer: Offer, columns: list[str]) -> Iterator[str]:
    """Name the values of a node that no schema can take."""
    for name in columns:
        column = offer.summary.column(name)
        moments = [*column.numbers.readings, *column.dates.readings]
        if column.infinite:
            yield f"has {column.infinite} infinite values in column {shown(name)}"
        if any(max(abs(m.low), abs(m.high)) > LARGEST for m in moments):
            yield f"has values above {LARGEST:g} in size in column {shown(name)}"
        missing = column.missing + sum(level.rows for level in column.marks or ()) * (not column.has_texts)
        if missing and offer.settings.missing == "refuse" and name != offer.settings.target:
            yield f"has {missing} missing values in column {shown(name)}, and missing='refuse'"


# ---- kinds of columns ------------------------------------------------------------------------------------------------


def _of_another_kind(name: str, columns: Mapping[int, ColumnSummary]) -> dict[int, str]:
    """Return the nodes whose column cannot be read as most nodes' can.

    Whole numbers are levels of a category where other nodes have texts, if all nodes together have few of them.
    """
    filled = {
        node: column
        for node, column in columns.items()
        if column.unreadable or column.has_texts or column.numbers.rows + column.dates.rows
    }
    numbers = [column for column in filled.values() if column.numbers.rows]
    codes = reduce(lambda one, other: one + other, numbers).codes if numbers else None
    listed = codes is not None and len(codes) <= MOST_FEATURES
    kinds = {node: _kinds(column, listed) for node, column in filled.items()}
    counts = Counter(kind for each in kinds.values() for kind in each)
    if not counts or max(counts.values()) == len(kinds):
        return {}
    common, count = counts.most_common(1)[0]
    if 2 * count <= len(kinds):
        raise InputError(f"the nodes do not agree on column {shown(name)}: no majority has {common} in it; {INSTEAD}")
    return {
        node: f"has {_some(each)} in column {shown(name)}, but most nodes have {common}"
        for node, each in kinds.items()
        if common not in each
    }


def _some(kinds: list[str]) -> str:
    return kinds[0] if kinds else "numbers or dates that are written in several ways"


def _kinds(column: ColumnSummary, listed: bool) -> list[str]:
    """Return the ways in which a column can be read, the usual one first.

    Args:
        column: Summary of the column at one node.
        listed: Whether numbers can be levels.
    """
    numbers, dates = column.numbers, column.dates
    if column.unreadable:
        return ["cells that cannot be read"]
    if column.has_texts or (numbers.rows and dates.rows):
        return [TEXTS]
    found = [_written("dates", moments.reading) for moments in dates.readings]
    found += [_written("numbers", moments.reading) for moments in numbers.readings]
    return [*found, TEXTS] if listed and column.codes is not None and numbers.rows else found


def _written(what: str, reading: str) -> str:
    return what if reading == PLAIN.name else f"{what} such as {READINGS[reading].example}"
