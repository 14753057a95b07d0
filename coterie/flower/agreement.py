"""Agreement of the nodes on one table schema, which the server fits to their summaries.

Where nodes differ, more than half of them decide; nodes that do not fit are left out with a reason. Without such a
majority the run does not start.
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
ADVICE = "leave out some of the nodes, or give the server the schema of a table (option schema)"


@dataclass(frozen=True)
class Agreement:
    """Schema of the nodes that fit, and the reasons why the others do not."""

    schema: Schema
    notes: tuple[ColumnNote, ...]
    """How each column is used."""
    unfit: Mapping[int, str]
    """Reasons by node, without the name of the node."""


def agree(offers: Mapping[int, Offer]) -> Agreement:
    """Return one schema for the tables of the nodes, and the nodes that do not fit it.

    Args:
        offers: Summary of the table of each node, by node.

    Returns:
        The schema, the use of each column, and the reasons why nodes were left out.

    Raises:
        InputError: if there is no majority where nodes differ, or no schema fits the tables.
    """
    fitting = dict(sorted(offers.items(), key=lambda each: min(each[1].clients)))  # sums depend on the order
    unfit: dict[int, str] = {}

    def leave_out(found: Mapping[int, str]) -> None:
        unfit.update(found)
        for node in found:
            del fitting[node]

    settings = _majority_settings({node: offer.settings for node, offer in fitting.items()}, "settings of their tables")
    leave_out({node: why for node, offer in fitting.items() if (why := _settings_difference(offer.settings, settings))})
    columns, partial = _majority_columns(fitting)
    leave_out(_missing_columns(fitting, columns))
    leave_out({node: why for node, offer in fitting.items() if (why := next(_value_faults(offer, columns), None))})
    for name in columns:
        leave_out(_kind_disagreements(name, {node: offer.summary.column(name) for node, offer in fitting.items()}))
    if not fitting:
        reasons = "; ".join(f"node {node} {why}" for node, why in unfit.items())
        raise InputError(f"no schema fits the table of any node: {reasons}")
    parts = [
        replace(offer.summary, columns=tuple(offer.summary.column(name) for name in columns))
        for offer in fitting.values()
    ]
    schema, notes = fit_schema(merge(parts), settings)
    absent = tuple(
        ColumnNote(name, "dropped", f"{count} of {len(offers)} nodes have it") for name, count in partial.items()
    )
    return Agreement(schema, (*notes, *absent), unfit)


def _majority_settings(values: Mapping[int, TableSettings], what: str) -> TableSettings:
    """Return the settings that more than half of the nodes have."""
    (value, count), *_ = Counter(values.values()).most_common(1)
    if 2 * count <= len(values):
        raise InputError(f"the nodes do not agree on the {what}: no value has a majority; {ADVICE}")
    return value


def _settings_difference(own: TableSettings, common: TableSettings) -> str | None:
    """Return how the settings of a node differ from those of the majority; None if they do not."""
    for field in fields(TableSettings):
        mine, theirs = getattr(own, field.name), getattr(common, field.name)
        if mine != theirs:
            return (
                f"reads its table with {field.name}={_setting_text(mine)}, but most nodes use {_setting_text(theirs)}"
            )
    return None


def _setting_text(value: object) -> str:
    return shown(", ".join(map(str, value))) if isinstance(value, tuple) else shown(value)


def _majority_columns(offers: Mapping[int, Offer]) -> tuple[list[str], dict[str, int]]:
    """Return the columns that most nodes have, in order of first appearance, and the counts of all other columns."""
    counts = Counter(column.name for offer in offers.values() for column in offer.summary.columns)
    odd = next((name for name, count in counts.items() if 2 * count == len(offers)), None)
    if odd is not None:
        raise InputError(f"column {shown(odd)} is missing at half of the nodes, so that no majority decides: {ADVICE}")
    return (
        [name for name, count in counts.items() if 2 * count > len(offers)],
        {name: count for name, count in counts.items() if 2 * count < len(offers)},
    )


def _missing_columns(offers: Mapping[int, Offer], columns: list[str]) -> dict[int, str]:
    """Return the nodes whose tables lack a column, with the reason."""
    found = {}
    for node, offer in offers.items():
        own = [column.name for column in offer.summary.columns]
        absent = [name for name in columns if name not in own]
        if absent:
            more = [name for name in own if name not in columns]
            instead = f", but {shown(more[0])}, which most nodes do not have" if more else ""
            found[node] = f"has no column {shown(absent[0])}{instead}"
    return found


def _value_faults(offer: Offer, columns: list[str]) -> Iterator[str]:
    """Yield a reason for each column whose values no schema accepts."""
    for name in columns:
        column = offer.summary.column(name)
        moments = [*column.numbers.readings, *column.dates.readings]
        if column.infinite:
            yield f"has {column.infinite} infinite values in column {shown(name)}"
        if any(max(abs(m.low), abs(m.high)) > LARGEST for m in moments):
            yield f"has absolute values above {LARGEST:g} in column {shown(name)}"
        missing = column.missing + sum(level.rows for level in column.marks or ()) * (not column.has_texts)
        if missing and offer.settings.missing == "refuse" and name != offer.settings.target:
            yield f"has {missing} missing values in column {shown(name)}, and missing='refuse'"


# ---- kinds of columns ------------------------------------------------------------------------------------------------


def _kind_disagreements(name: str, columns: Mapping[int, ColumnSummary]) -> dict[int, str]:
    """Return the nodes whose column cannot be read as it is read at most nodes.

    Whole numbers are read as categories where other nodes have texts, provided that all nodes together have few
    different ones.
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
        raise InputError(f"the nodes do not agree on column {shown(name)}: no majority has {common} in it; {ADVICE}")
    return {
        node: f"has {_kind_text(each)} in column {shown(name)}, but most nodes have {common}"
        for node, each in kinds.items()
        if common not in each
    }


def _kind_text(kinds: list[str]) -> str:
    return kinds[0] if kinds else "numbers or dates in several formats"


def _kinds(column: ColumnSummary, listed: bool) -> list[str]:
    """Return the kinds of values that a column can be read as, the usual one first.

    Args:
        column: Summary of the column at one node.
        listed: Whether numbers can be read as categories.
    """
    numbers, dates = column.numbers, column.dates
    if column.unreadable:
        return ["cells that cannot be read"]
    if column.has_texts or (numbers.rows and dates.rows):
        return [TEXTS]
    found = [_kind_name("dates", moments.reading) for moments in dates.readings]
    found += [_kind_name("numbers", moments.reading) for moments in numbers.readings]
    return [*found, TEXTS] if listed and column.codes is not None and numbers.rows else found


def _kind_name(what: str, reading: str) -> str:
    return what if reading == PLAIN.name else f"{what} such as {READINGS[reading].example}"
