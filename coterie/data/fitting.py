"""The schema of a table from its summary: which columns become features, how, and a note about every one of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coterie.core.readings import PLAIN, READINGS, date_text, number_text
from coterie.core.schema import Boolean, Category, Column, ColumnNote, Date, Number, Schema
from coterie.data.categories import MOST_FEATURES, fit_category
from coterie.data.copies import is_copy
from coterie.data.number_reading import LARGEST, number_moments, refuse_large_numbers
from coterie.data.presence import fit_presence
from coterie.data.remarks import (
    COPY,
    EMPTY_CLIENTS,
    FEW_ROWS,
    MISSING_CODES,
    NAME_OF_CODE,
    NEARLY_ALL,
    client_remarks,
    counted,
    date_remarks,
    is_suspicious,
    number_remarks,
)
from coterie.data.scales import is_of_clients, marked, share_scale, training_missing, with_indicator
from coterie.data.settings import DroppedError, FittedColumn, Missing, TableSettings, Task
from coterie.data.summary import ColumnSummary, Moments, TableSummary
from coterie.data.target_fitting import fit_target
from coterie.data.truth import is_boolean
from coterie.errors import InputError, shown

__all__ = [
    "LARGEST",
    "MISSING_CODES",
    "MOST_FEATURES",
    "Missing",
    "TableSettings",
    "Task",
    "client_remarks",
    "fit_schema",
    "is_suspicious",
]

ROW_NUMBERS = 100
"""Number of rows below which whole numbers are not taken for identifiers because of their values."""
MOST_VALUES = 12
"""Most different whole numbers of a column that the schema lists, so that other codes in later rows are noticed."""
DENSE = 2.0
"""Different whole numbers whose range is at most this many times the number of rows are numbers of rows."""
IDENTIFIER = re.compile(
    r"(?i:(^|[\W_])(id|ids|uuid|guid|key|code|nr|no|number|index|mrn|ssn|zip|zipcode|postcode|plz|fips)($|[\W_]))"
    r"|[a-z](ID|Id|Nr|No)$",
)
"""Names that identifiers often have."""
INTERCEPT = "intercept"
"""Name of the constant in tables of coefficients."""


def fit_schema(summary: TableSummary, settings: TableSettings) -> tuple[Schema, tuple[ColumnNote, ...]]:
    """Return the schema that all parties encode their tables by, and a note about every column.

    Args:
        summary: The summaries of all parties, merged.
        settings: Decisions of the user.

    Returns:
        The schema, and the notes in the order of the table.

    Raises:
        InputError: if the target or a named feature cannot be used, if a column may be read in two ways, if missing
            values are refused, or if no feature is left.
    """
    if summary.rows == 0:
        raise InputError("the table has no rows with a target: give at least two clients")
    target = fit_target(summary, settings)
    fitted: list[FittedColumn] = []
    notes = {settings.target: target.note}
    for column in summary.columns:
        if column.name != settings.target:
            notes[column.name] = _note(column, summary, settings, fitted)
    fitted = _in_order(fitted, settings.features)
    if not fitted:
        why = "; ".join(f"{note.column}: {note.detail}" for note in notes.values() if note.action == "dropped")
        raise InputError(
            f"no feature is left to predict from ({why or 'the table has no other columns'}): name features"
        )
    schema = Schema(
        tuple(each.column for each in fitted),
        tuple(scale if settings.standardize else (0.0, 1.0) for each in fitted for scale in each.scales),
        settings.target,
        target.classes,
        target.reading,
        settings.missing == "impute",
        target.scale,
    )
    _check_names(schema)
    return schema, tuple(notes[column.name] for column in summary.columns)


def _note(
    column: ColumnSummary, summary: TableSummary, settings: TableSettings, fitted: list[FittedColumn]
) -> ColumnNote:
    """Return the note about a column, which is added to the fitted ones if it is used."""
    if column.name in settings.drop or (settings.features is not None and column.name not in settings.features):
        return ColumnNote(column.name, "dropped", "not among the columns to use")
    try:
        found = _fit(column, summary, settings)
    except DroppedError as reason:
        if settings.features is not None:
            raise InputError(f"feature {column.name!r} cannot be used: {reason}") from None
        return ColumnNote(column.name, "dropped", str(reason))
    found.remarks.extend(_copies(column, summary, settings.target, fitted))
    fitted.append(found)
    return ColumnNote(column.name, "used", "; ".join(found.remarks))


def _copies(column: ColumnSummary, summary: TableSummary, target: str, fitted: Sequence[FittedColumn]) -> list[str]:
    """Return the remark on a column that is probably a copy of the target, or of a feature before it."""
    if is_copy(column, summary.column(target), fewest_levels=2):
        return [f"{COPY} the target {shown(target)}, which it counts or measures alike: leave it out if it is"]
    other = next((each.column.name for each in fitted if is_copy(column, summary.column(each.column.name))), None)
    if other is None:
        return []
    return [f"{COPY} {shown(other)}, perhaps in other units or words: effects of copies cannot be told apart"]


def _in_order(fitted: list[FittedColumn], features: tuple[str, ...] | None) -> list[FittedColumn]:
    """Return the columns; those that the user has named stand in the order of their names."""
    return fitted if features is None else sorted(fitted, key=lambda each: features.index(each.column.name))


def _check_names(schema: Schema) -> None:
    names = schema.feature_names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two columns would both become the feature {twice!r}: rename one of them")
    if INTERCEPT in names:
        raise InputError(
            f"column {INTERCEPT!r} has the name of the constant in tables of coefficients: rename it, or leave it out "
            f"(--drop {INTERCEPT})"
        )


# ---- features --------------------------------------------------------------------------------------------------------


def _fit(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> FittedColumn:
    """Return the column with its scales and remarks; raise DroppedError if it is not used."""
    if column.unreadable:
        raise DroppedError(column.unreadable)
    if column.present - marked(column) * (not column.has_texts) == 0:
        raise DroppedError("all values are missing")
    fitted = next(kind.fit(column, summary, settings) for kind in KINDS if kind.matches(column))
    fitted.remarks.extend(_missing_remarks(fitted, column, settings))
    if is_of_clients(column, summary) and fitted.column.own_features:
        fitted.remarks.append(
            "the same in all rows of each client, so its effect is not distinguished from differences between clients"
        )
    return fitted


def _missing_remarks(fitted: FittedColumn, column: ColumnSummary, settings: TableSettings) -> list[str]:
    """Return the remark on missing values; raise InputError if the user refuses them."""
    missing = _missing(fitted.column, column)
    if not missing:
        return []
    values = counted(missing, "missing value")
    if settings.missing == "refuse":
        raise InputError(
            f"column {column.name!r} has {values}: fill them in, leave the column out (--drop {column.name}), or "
            "choose --missing impute"
        )
    filled = "counted as the reference level" if isinstance(fitted.column, Category) else "replaced by the mean"
    if not fitted.column.own_features:
        filled = "marked"
    seen = ", with an indicator" if fitted.column.indicator else " (none in a training row)"
    nowhere = column.empty_clients
    at = f"; {counted(nowhere, 'client')} {'has' if nowhere == 1 else 'have'} no value at all, {EMPTY_CLIENTS}"
    return [f"{values} {filled}{seen}{at if nowhere else ''}"]


def _missing(column: Column, summary: ColumnSummary) -> int:
    """Return the number of cells that count as missing; marks such as NA are levels of a category."""
    return summary.missing + (marked(summary) if column.reads_marks else 0)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def _is_number(column: ColumnSummary) -> bool:
    return column.numbers.rows + column.infinite > 0 and not column.has_texts and not column.dates.rows


def _fit_number(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> FittedColumn:
    if column.infinite:
        raise InputError(
            f"column {column.name!r} has {column.infinite} infinite values: correct them, or leave the column out"
        )
    moments = number_moments(column, summary)
    refuse_large_numbers(column, moments)
    if moments.deviation == 0:
        everywhere = moments.low == moments.high and moments.reading == PLAIN.name
        return fit_presence(column, number_text(moments.mean), marks=True, everywhere=everywhere)
    remarks = [f"number: mean {moments.mean:.4g}, standard deviation {moments.deviation:.4g}"]
    if moments.reading != PLAIN.name:
        remarks.append(f"written with a {moments.reading}, such as {READINGS[moments.reading].example}")
    remarks += _identifier_remarks(_Whole.of(column, moments, summary), named=settings.features is not None)
    remarks += number_remarks(column, moments)
    missing = training_missing(column)
    made = Number(column.name, missing > 0, moments.mean, moments.reading, _few_values(column))
    return FittedColumn(made, with_indicator(((moments.mean, moments.deviation),), missing, column.training), remarks)


def _few_values(column: ColumnSummary) -> tuple[float, ...]:
    """Return the different values of a column of few whole numbers; none if there are many, or some are not listed."""
    codes = column.codes or ()
    listed = len(codes) <= MOST_VALUES and not column.unnamed.rows
    return tuple(sorted(float(level.text) for level in codes)) if listed else ()


@dataclass(frozen=True)
class _Whole:
    """Facts about whole numbers that may be identifiers."""

    rows: int
    unique: bool
    """Whether nearly every row has another number."""
    called: bool
    """Whether the column has the name of an identifier."""
    dense: bool
    """Whether the numbers are nearly consecutive."""
    of_clients: bool

    @classmethod
    def of(cls, column: ColumnSummary, moments: Moments, summary: TableSummary) -> _Whole | None:
        """Return the facts about a column; None if its numbers are not whole."""
        different, rows = column.distinct_numbers(), column.numbers.rows
        if different is None or rows == 0:
            return None
        return cls(
            rows,
            different >= NEARLY_ALL * rows,
            IDENTIFIER.search(column.name) is not None,
            moments.high - moments.low <= DENSE * rows,
            is_of_clients(column, summary),
        )


def _identifier_remarks(whole: _Whole | None, named: bool) -> list[str]:
    """Return remarks on whole numbers that may be identifiers; raise DroppedError for those that nearly surely are."""
    if whole is None:
        return []
    if named:
        odd = whole.unique and (whole.called or whole.dense)
        return ["nearly every row has another value, as in an identifier"] if odd else []
    _drop_identifiers(whole)
    if whole.called:
        return [f"its name {NAME_OF_CODE} or code; drop it if its size means nothing"]
    if whole.unique and whole.rows >= FEW_ROWS:
        return ["nearly every row has another whole number; drop it if it is an identifier"]
    return []


def _drop_identifiers(whole: _Whole) -> None:
    if whole.unique and (whole.called or (whole.dense and whole.rows >= ROW_NUMBERS)):
        raise DroppedError(
            "nearly every row has another whole number, so it looks like an identifier; name it among the features to "
            "use it"
        )
    if whole.of_clients and whole.called:
        raise DroppedError(
            "its name is that of an identifier, and it is the same in all rows of each client, so it looks like a code "
            "of the client; name it among the features to use it"
        )


# ---- dates, true and false -------------------------------------------------------------------------------------------


def _is_date(column: ColumnSummary) -> bool:
    return column.dates.rows > 0 and not column.has_texts and not column.numbers.rows + column.infinite


def _fit_date(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> FittedColumn:
    moments = _date_moments(column)
    if moments.deviation == 0:
        if training_missing(column):
            raise DroppedError(
                f"always {date_text(moments.mean)} or missing in training rows: to use whether it is missing, write "
                "yes and no"
            )
        raise DroppedError(f"constant: {date_text(moments.mean)} in all training rows")
    since, mean = moments.low, moments.mean - moments.low
    remarks = [
        f"date ({moments.reading}), as days since {date_text(since)}, the earliest: mean {mean:.4g}, standard "
        f"deviation {moments.deviation:.4g}",
        *date_remarks(moments),
    ]
    missing = training_missing(column)
    made = Date(column.name, missing > 0, mean, moments.reading, since)
    return FittedColumn(made, with_indicator(((mean, moments.deviation),), missing, column.training), remarks)


def _date_moments(column: ColumnSummary) -> Moments:
    """Return the moments of a column of dates; refuse one that may be read in two ways, or is written in two ways."""
    found = column.dates.reading("year-month-day")
    if found is not None:
        return found
    if len(column.dates.readings) == 1:
        return column.dates.readings[0]
    how = " or ".join(moments.reading for moments in column.dates.readings)
    problem = f"may be read as {how}" if how else "are written in different ways"
    raise InputError(
        f"the dates in column {column.name!r} {problem}: write them as 2024-12-31, or leave the column out "
        f"(--drop {column.name})"
    )


def _fit_boolean(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> FittedColumn:
    levels = column.texts or ()
    true = sum(level.training for level in levels if level.text.lower() == "true")
    known = sum(level.training for level in levels)
    scale = share_scale(true, known)
    missing = training_missing(column)
    if scale[1] == 0:
        return fit_presence(column, levels[0].text, marks=True, everywhere=len(levels) == 1)
    made = Boolean(column.name, missing > 0, scale[0])
    return FittedColumn(
        made, with_indicator((scale,), missing, column.training), [f"true or false: {scale[0]:.1%} are true"]
    )


# ---- kinds of columns ------------------------------------------------------------------------------------------------


def _fit_category(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> FittedColumn:
    return fit_category(column, summary, named=settings.features is not None)


@dataclass(frozen=True)
class _Kind:
    """A kind of feature column: which columns are of it, and how they are fitted."""

    matches: Callable[[ColumnSummary], bool]
    fit: Callable[[ColumnSummary, TableSummary, TableSettings], FittedColumn]


KINDS = (
    _Kind(_is_number, _fit_number),
    _Kind(_is_date, _fit_date),
    _Kind(is_boolean, _fit_boolean),
    _Kind(lambda column: True, _fit_category),
)
"""Kinds of feature columns; a column is of the first one that matches."""
