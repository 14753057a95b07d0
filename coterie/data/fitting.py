"""The schema of a table from its summary: which columns become features, how, and a note about every one of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from coterie.core.readings import (
    COMMA,
    PLAIN,
    POINT,
    READINGS,
    date_text,
    is_whole,
    may_be_missing,
    number_text,
    odd_spelling,
    same_name,
)
from coterie.core.schema import (
    OTHER,
    TRUTHS,
    Boolean,
    Category,
    Column,
    ColumnNote,
    Date,
    Label,
    Number,
    Presence,
    Schema,
)
from coterie.data.copies import is_copy
from coterie.data.summary import MOST_LEVELS, ColumnSummary, Level, Moments, TableSummary
from coterie.errors import InputError, shown

Task = Literal["classification", "regression"]
Missing = Literal["impute", "refuse"]
Scale = tuple[float, float]

MOST_FEATURES = 20
"""Number of levels of a category that are kept; the others are pooled."""
RARE_SHARE, RARE_ROWS, RARE_SHARE_OF_FEW = 0.01, 10, 0.05
"""A level is rare in fewer than 1 % of the rows or fewer than 10 rows; below 200 rows, in fewer than 5 % of them."""
NEARLY_ALL = 0.9
"""Share of rows with different values from which a column may be an identifier."""
FEW_ROWS, ROW_NUMBERS = 20, 100
"""Columns of texts with fewer rows, and of whole numbers, are not taken for identifiers because of their values."""
DENSE = 2.0
"""Different whole numbers whose range is at most this many times the number of rows are numbers of rows."""
MOST_CLASSES, ROWS_A_CLASS = 10, 5
"""A numeric target with at most 10 different whole numbers, each in 5 rows on average, might be meant as classes."""
LARGEST = 1e100
"""Largest size of a value in a table; means and squares of such values are finite."""
IDENTIFIER = re.compile(r"(^|[\W_])(id|ids|uuid|guid|key|code|nr|no|number|index|mrn|ssn)($|[\W_])|[a-z](ID|Id|Nr|No)$")
"""Names that identifiers often have."""
MISSING_CODES = frozenset({-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0})
"""Numbers that often stand for a missing value."""
FAR, DOMINANT = 8.0, 0.1
"""A value that is more standard deviations from the mean, and makes up more of the variance, dominates its column."""
RAREST = 0.02
"""Share of the rarer one of two values from which a column may be one of two classes."""
TWO_VALUES = 0.05
"""Relative difference between the variance of a column and that of one with two values, up to which it may be one."""
MOST_LISTED, LONGEST_LISTED = 6, 30
"""Number of levels that a note lists, and of letters of each."""

COPY = "may be a copy of"
"""Part of a remark on two columns."""
SEPARATE, REPEATED = 0.5, 3
"""A least or greatest value may be a code for missing values if it is farther from all others than this share of their
range, and that many training rows hold it."""
FEWEST_VALUES = 5
"""Different whole numbers below which a column may hold codes of its own."""
MANY_CLASSES, ROWS_OF_A_CLASS = 20, 10
"""More classes, and classes in fewer rows, are worth a remark."""
MOST_COPIES = 0.02
"""Share of copied rows from which a note warns of them."""
COPIES_HELD_OUT = "a copy that is held out makes scores too good"
"""Part of a remark on rows."""
SAME_DIGITS = 1e-10
"""Relative deviation below which the numbers of a column differ in their last digits only."""
ALIKE = "are probably the same name and count as two"
"""Part of a remark on two texts."""
MARKS_MISSING, DOMINATES = "often marks a missing value", "so that it dominates the column"
"""Parts of remarks on numbers."""
STANDS_APART = "as a code for missing values would"
"""Part of a remark on an extreme number or date."""
SUSPICIONS = (
    MARKS_MISSING,
    DOMINATES,
    STANDS_APART,
    COPY,
    COPIES_HELD_OUT,
    ALIKE,
    "looks like",
    "look like",
    "only: ",
    "last digits",
)
"""Parts of remarks on columns that a user should look at."""
ONE_KIND = "make them of one kind"
"""Part of the reason why a column of several kinds is dropped."""


def is_suspicious(note: ColumnNote) -> bool:
    """Return whether a user should look at a column."""
    return any(part in note.detail for part in (*SUSPICIONS, ONE_KIND))


@dataclass(frozen=True)
class TableSettings:
    """What a user decides about a table."""

    target: str
    features: tuple[str, ...] | None = None
    """Feature columns; None: all that can be used."""
    drop: tuple[str, ...] = ()
    """Columns that are left out."""
    task: Task | None = None
    """None: inferred from the target."""
    missing: Missing = "impute"
    """Whether missing values of features are filled in or refused."""
    standardize: bool = True
    """Whether features are scaled to mean 0 and standard deviation 1 over the training rows."""


class _DroppedError(Exception):
    """The column cannot or should not be used; the message says why."""


@dataclass(frozen=True)
class _Fitted:
    """A column with the scales of its features and what is worth knowing about it."""

    column: Column
    scales: tuple[Scale, ...]
    remarks: list[str] = field(default_factory=list)


def fit_schema(summary: TableSummary, settings: TableSettings) -> tuple[Schema, tuple[ColumnNote, ...]]:
    """Return the schema that all parties encode their tables by, and a note about every column.

    Args:
        summary: The summaries of all parties, merged.
        settings: The user's decisions.

    Raises:
        InputError: if the target or a named feature cannot be used, if a column may be read in two ways, if missing
            values are refused, or if no feature is left.
    """
    if summary.rows == 0:
        raise InputError("the table has no rows with a target: give at least two clients")
    classes, target_reading, target_note = _fit_target(summary, settings)
    fitted: list[_Fitted] = []
    notes = {settings.target: target_note}
    for column in summary.columns:
        if column.name == settings.target:
            continue
        if column.name in settings.drop or (settings.features is not None and column.name not in settings.features):
            notes[column.name] = ColumnNote(column.name, "dropped", "not among the columns to use")
            continue
        try:
            found = _fit(column, summary, settings)
        except _DroppedError as reason:
            if settings.features is not None:
                raise InputError(f"feature {column.name!r} cannot be used: {reason}") from None
            notes[column.name] = ColumnNote(column.name, "dropped", str(reason))
            continue
        found.remarks.extend(_copies(column, summary, settings.target, fitted))
        fitted.append(found)
        notes[column.name] = ColumnNote(column.name, "used", "; ".join(found.remarks))
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
        classes,
        target_reading,
        settings.missing == "impute",
    )
    _check_names(schema)
    return schema, tuple(notes[column.name] for column in summary.columns)


def _copies(column: ColumnSummary, summary: TableSummary, target: str, fitted: Sequence[_Fitted]) -> list[str]:
    """Remarks on a column that is probably a copy of the target, or of a feature before it."""
    if is_copy(column, summary.column(target), fewest_levels=2):
        return [f"{COPY} the target {shown(target)}, which it counts or measures alike: leave it out if it is"]
    other = next((each.column.name for each in fitted if is_copy(column, summary.column(each.column.name))), None)
    if other is None:
        return []
    return [f"{COPY} {shown(other)}, perhaps in other units or words: effects of copies cannot be told apart"]


def _in_order(fitted: list[_Fitted], features: tuple[str, ...] | None) -> list[_Fitted]:
    """Features that were named stand in the order of their names."""
    return fitted if features is None else sorted(fitted, key=lambda each: features.index(each.column.name))


def _check_names(schema: Schema) -> None:
    names = schema.feature_names
    if len(set(names)) != len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InputError(f"two columns would both become the feature {twice!r}: rename one of them")


# ---- the target ------------------------------------------------------------------------------------------------------


def _fit_target(summary: TableSummary, settings: TableSettings) -> tuple[tuple[Label, ...], str, ColumnNote]:
    """Class labels (none for a regression), the reading of numbers, and the note."""
    column = summary.column(settings.target)
    name = f"target {column.name!r}"
    if column.unreadable:
        raise InputError(f"{name} cannot be used: {column.unreadable}")
    gone = summary.without_target
    left_out = f"; {_counted(gone, 'row')} without a target {'is' if gone == 1 else 'are'} left out" if gone else ""
    if column.infinite:
        raise InputError(f"{name} has {column.infinite} infinite values: correct them, or drop those rows")
    if column.dates.rows and not (column.texts or column.numbers.rows):
        raise InputError(f"{name} holds dates: convert it to a number, such as days since a date, or to classes")
    numeric = column.numbers.rows > 0 and not column.has_texts
    labels = _labels(column, numeric)
    if settings.task == "regression" and not numeric:
        raise InputError(
            f"{name} holds texts such as {_example(column)}, so it cannot be regressed: use classification"
        )
    if numeric and settings.task != "classification" and not (settings.task is None and labels and len(labels) == 2):
        moments = _number_moments(column, summary)
        if moments.low == moments.high:
            raise InputError(f"{name} is {number_text(moments.low)} in every row: there is nothing to predict")
        _refuse_large(column, moments)
        hint = ""
        if (
            settings.task is None
            and labels
            and len(labels) <= MOST_CLASSES
            and len(labels) * ROWS_A_CLASS <= column.rows
        ):
            hint = f"; it has {len(labels)} different whole numbers: if they are classes, choose --task classification"
        if settings.task is None and not labels and column.rows >= FEW_ROWS and _has_two_values(moments):
            two = f"{number_text(moments.low)} and {number_text(moments.high)}"
            hint = f"; it seems to hold {two} only: if they are classes, write them as texts or as 0 and 1 (--task)"
        detail = f"regression: mean {moments.mean:.4g}, standard deviation {moments.deviation:.4g}"
        detail += "".join(f"; {remark}" for remark in _suspicions(column, moments))
        return (), moments.reading, ColumnNote(column.name, "target", detail + hint + left_out)
    if labels is None:
        if column.numbers.rows and column.texts:
            raise InputError(
                f"{name} holds {_mixture(column)}: leave cells empty that are missing, or make all of them texts"
            )
        what = (
            "numbers that are not whole, or too many of them" if numeric else f"more than {MOST_LEVELS} different texts"
        )
        raise InputError(f"{name} holds {what}, so it has no classes: choose --task regression, or another target")
    if len(labels) < 2:
        raise InputError(f"{name} is {shown(labels[0])} in every row: there is nothing to predict")
    texts = [str(label) for label in labels]
    spelled = "" if numeric or settings.task == "classification" else odd_spelling(texts)
    if spelled:
        raise InputError(
            f"{name} holds texts such as {shown(texts[0])}, which look like {spelled}; choose --task classification "
            "if they are classes"
        )
    if not numeric and column.rows >= FEW_ROWS and len(labels) >= NEARLY_ALL * column.rows:
        raise InputError(
            f"{name} has another text in nearly every row, as an identifier has: there is nothing to predict; choose "
            "another target"
        )
    chosen = "" if settings.task or not numeric else "; choose --task regression to predict the number"
    detail = f"classification: {len(labels)} classes ({_some(texts)})"
    detail += "".join(f"; {remark}" for remark in _class_remarks(column, texts))
    return labels, PLAIN.name, ColumnNote(column.name, "target", detail + chosen + left_out)


def _class_remarks(column: ColumnSummary, labels: Sequence[str]) -> list[str]:
    """Remarks on classes that are not what they seem, or too rare."""
    alike = two_alike(labels)
    found = [alike] if alike else []
    found += [f"class {shown(text)} {MARKS_MISSING}: leave such cells empty" for text in labels if may_be_missing(text)]
    found += [f"class {text} {MARKS_MISSING}" for text in labels if _is_missing_code(text)]
    levels = _texts_of(column)
    rare = sorted((level for level in levels if level.rows < ROWS_OF_A_CLASS), key=lambda level: level.rows)
    if len(labels) > MANY_CLASSES:
        found.append(f"{len(labels)} classes in {column.present} rows only: is it a class?")
    elif rare and column.present >= FEW_ROWS:
        found.append(f"class {shown(rare[0].text)} is in {_counted(rare[0].rows, 'row')} only: little is known of it")
    return found


def _is_missing_code(text: str) -> bool:
    value = PLAIN.read(text)
    return value is not None and value in MISSING_CODES


def client_remarks(ids: Sequence[str], rows: int, copies: int) -> list[str]:
    """Return remarks on clients that are not what they seem.

    Args:
        ids: The clients.
        rows: Number of their rows.
        copies: Number of rows that equal an earlier row of their client.
    """
    alike = two_alike(ids)
    found = [alike] if alike else []
    odd = [text for text in ids if may_be_missing(text) or _is_missing_code(text)]
    found += [f"client {shown(text)} {MARKS_MISSING}: leave out its rows if it does" for text in odd[:MOST_LISTED]]
    if copies > MOST_COPIES * rows:
        equal = "1 row equals" if copies == 1 else f"{copies} rows equal"
        found.append(f"{equal} an earlier row of the client, and {COPIES_HELD_OUT}: take out rows that are copies")
    numbers = [PLAIN.read(text) for text in ids]
    if sum(value is not None and not is_whole(value) and abs(value) < 2**53 for value in numbers) > len(ids) / 2:
        found.append("the clients look like measurements, not like names: is it the client column?")
    if len(ids) > rows / 2 and rows >= FEW_ROWS:
        found.append(f"{len(ids)} clients in {rows} rows only: is it the client column?")
    return found


def _labels(column: ColumnSummary, numeric: bool) -> tuple[Label, ...] | None:
    """The classes of a target in sorted order; None if they are not known."""
    if numeric:
        return None if column.codes is None else tuple(sorted(int(level.text) for level in column.codes))
    if column.texts is None or column.marks is None or column.codes is None or column.dates.rows:
        return None
    if _is_boolean(column):
        return tuple(sorted({level.text.lower() == "true" for level in column.texts}))
    return tuple(sorted(level.text for level in (*column.texts, *column.marks, *column.codes)))


# ---- features --------------------------------------------------------------------------------------------------------


def _fit(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> _Fitted:
    """Return the column with its scales and remarks; raise _DroppedError if it is not used."""
    if column.unreadable:
        raise _DroppedError(column.unreadable)
    if column.present - _marked(column) * (not column.has_texts) == 0:
        raise _DroppedError("all values are missing")
    if column.numbers.rows + column.infinite and not column.has_texts and not column.dates.rows:
        fitted = _fit_number(column, summary, settings)
    elif column.dates.rows and not column.has_texts and not column.numbers.rows + column.infinite:
        fitted = _fit_date(column, settings)
    elif _is_boolean(column):
        fitted = _fit_boolean(column)
    else:
        fitted = _fit_category(column, summary, settings)
    missing = _missing(fitted.column, column)
    if missing:
        if settings.missing == "refuse":
            raise InputError(
                f"column {column.name!r} has {_counted(missing, 'missing value')}: fill them in, leave the column out "
                f"(--drop {column.name}), or choose --missing impute"
            )
        counted = _counted(missing, "missing value")
        filled = "counted as the reference level" if isinstance(fitted.column, Category) else "replaced by the mean"
        if not fitted.column.own_features:
            filled = "marked"
        seen = ", with an indicator" if fitted.column.indicator else " (none in a training row)"
        fitted.remarks.append(f"{counted} {filled}{seen}")
    if _is_of_clients(column, summary) and fitted.column.own_features:
        fitted.remarks.append(
            "the same in all rows of each client, so its effect cannot be told from differences between clients"
        )
    return fitted


def _is_of_clients(column: ColumnSummary, summary: TableSummary) -> bool:
    """Whether a column is the same in all rows of each client, and not because clients have one row each."""
    return column.constant and summary.clients > 1 and column.present >= 2 * summary.clients


def _missing(column: Column, summary: ColumnSummary) -> int:
    """Number of cells that count as missing; marks such as NA are levels of a category."""
    return summary.missing + (_marked(summary) if column.reads_marks else 0)


def _marked(column: ColumnSummary) -> int:
    return sum(level.rows for level in column.marks or ())


def _training_missing(column: ColumnSummary, marks: bool = True) -> int:
    return column.training_missing + (sum(level.training for level in column.marks or ()) if marks else 0)


def _with_indicator(own: tuple[Scale, ...], missing: int, training: int) -> tuple[Scale, ...]:
    """Scales of a column's features and of the indicator of missing values, if training rows have some."""
    return (*own, _share_scale(missing, training)) if missing else own


def _share_scale(count: int, training: int) -> Scale:
    """Mean and standard deviation of a feature of zeros and ones."""
    share = count / training if training else 0.0
    return share, math.sqrt(share * (1 - share))


def _fit_number(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> _Fitted:
    if column.infinite:
        raise InputError(
            f"column {column.name!r} has {column.infinite} infinite values: correct them, or leave the column out"
        )
    moments = _number_moments(column, summary)
    _refuse_large(column, moments)
    if moments.deviation == 0:
        everywhere = moments.low == moments.high and moments.reading == PLAIN.name
        return _presence(column, number_text(moments.mean), True, everywhere)
    remarks = [f"number: mean {moments.mean:.4g}, standard deviation {moments.deviation:.4g}"]
    if moments.reading != PLAIN.name:
        remarks.append(f"written with a {moments.reading}, such as {READINGS[moments.reading].example}")
    remarks += _identifier_remarks(column, moments, summary, named=settings.features is not None)
    remarks += _suspicions(column, moments)
    missing = _training_missing(column)
    made = Number(column.name, missing > 0, moments.mean, moments.reading)
    return _Fitted(made, _with_indicator(((moments.mean, moments.deviation),), missing, column.training), remarks)


def _presence(column: ColumnSummary, only: str, marks: bool, everywhere: bool) -> _Fitted:
    """Return a column that is constant or missing, which says no more than that it is missing.

    Raises:
        _DroppedError: if it is never missing, or if other rows than training rows hold other values.
    """
    missing = _training_missing(column, marks)
    if not missing or missing == column.training or not everywhere:
        raise _DroppedError(f"constant: {only} in all training rows")
    remark = f"{shown(only)} or missing: used as an indicator of missing values"
    made = Presence(column.name, True, only, marks)
    return _Fitted(made, (_share_scale(missing, column.training),), [remark])


def _number_moments(column: ColumnSummary, summary: TableSummary) -> Moments:
    """Return the moments by the reading of a column of numbers; refuse a column that may be read in two ways."""
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
    readings = [moments.reading for moments in column.numbers.readings]
    return readings == [COMMA.name]


def _ambiguous(column: ColumnSummary, how: str) -> InputError:
    return InputError(
        f"the numbers in column {column.name!r} may have {how}: write them as 1234.5, or leave the column out "
        f"(--drop {column.name})"
    )


def _refuse_large(column: ColumnSummary, moments: Moments) -> None:
    size = max(abs(moments.low), abs(moments.high))
    if size > LARGEST:
        raise InputError(
            f"column {column.name!r} holds {size:.3g}, but values must be at most {LARGEST:g} in size: rescale the "
            "column, or mark such values as missing"
        )


def _identifier_remarks(column: ColumnSummary, moments: Moments, summary: TableSummary, named: bool) -> list[str]:
    """Remarks on whole numbers that may be identifiers; raise _DroppedError for those that nearly certainly are."""
    different = column.distinct_numbers()
    if different is None or column.numbers.rows == 0:
        return []
    rows, called = column.numbers.rows, IDENTIFIER.search(column.name) is not None
    unique = different >= NEARLY_ALL * rows
    dense = moments.high - moments.low <= DENSE * rows
    if named:
        return ["nearly every row has another value, as in an identifier"] if unique and (called or dense) else []
    if unique and (called or (dense and rows >= ROW_NUMBERS)):
        raise _DroppedError(
            "nearly every row has another whole number, so it looks like an identifier; name it among the features to "
            "use it"
        )
    if _is_of_clients(column, summary) and called:
        raise _DroppedError(
            "its name is that of an identifier, and it is the same in all rows of each client, so it looks like a code "
            "of the client; name it among the features to use it"
        )
    if called:
        return ["its name is that of an identifier or code; drop it if its size means nothing"]
    return (
        ["nearly every row has another whole number; drop it if it is an identifier"]
        if unique and rows >= FEW_ROWS
        else []
    )


def _suspicions(column: ColumnSummary, moments: Moments) -> list[str]:
    """Remarks on numbers that may mean something else."""
    odd = [value for value in (moments.low, moments.high) if value in MISSING_CODES]
    found = [f"holds {number_text(value)}, which {MARKS_MISSING}" for value in odd]
    if (
        not column.constant
        and moments.count >= FEW_ROWS
        and (column.codes is None or len(column.codes) >= FEWEST_VALUES)
    ):
        apart = [(value, rows) for value, rows in _apart(moments, column.whole) if value not in odd]
        found += [_standing_apart(number_text(value), rows) for value, rows in apart]
        odd += [value for value, _ in apart]
    if 0 < moments.deviation < SAME_DIGITS * abs(moments.mean):
        found.append("the numbers differ in their last digits only: leave the column out if they are identifiers")
    for value in (moments.low, moments.high) if moments.deviation else ():
        far = abs(value - moments.mean) / moments.deviation
        if value not in odd and _dominates(value, moments):
            found.append(
                f"{number_text(value)} is {far:.0f} standard deviations from the mean, {DOMINATES}: correct it, or "
                "leave the cell empty"
            )
    if column.whole and is_whole(moments.low) and _is_compact_date(moments.low) and _is_compact_date(moments.high):
        found.append(f"looks like dates written as numbers ({number_text(moments.low)}); write them as 2024-12-31")
    elif column.codes and all(_is_compact_month(float(level.text)) for level in column.codes):
        found.append(f"looks like months written as numbers ({number_text(moments.low)}); write them as 2024-12-01")
    return found


def _apart(moments: Moments, whole: bool) -> list[tuple[float, int]]:
    """The least or greatest value if many training rows hold it and no other value is near, with its rows."""
    low, high, next_low, next_high = moments.low, moments.high, moments.next_low, moments.next_high
    least = max(REPEATED, RARE_ROWS * moments.count // 2000)
    found = []
    negative = whole and low < 0 <= next_low
    if moments.low_rows >= least and (next_low - low > SEPARATE * (high - next_low) or negative) and next_low < high:
        found.append((low, moments.low_rows))
    if moments.high_rows >= least and high - next_high > SEPARATE * (next_high - low) and next_high > low:
        found.append((high, moments.high_rows))
    return found


def _standing_apart(value: str, rows: int) -> str:
    return f"{value} is in {rows} training rows and far from all other values, {STANDS_APART} be"


def _dominates(value: float, moments: Moments) -> bool:
    far = abs(value - moments.mean) / moments.deviation
    return far > FAR and far**2 > DOMINANT * moments.count


def _has_two_values(moments: Moments) -> bool:
    """Whether a column seems to hold its least and its greatest value only, whose variance its mean determines."""
    largest = (moments.mean - moments.low) * (moments.high - moments.mean)
    if not largest > 0:
        return False
    share = (moments.mean - moments.low) / (moments.high - moments.low)  # of a few huge values: no class is so rare
    return abs(moments.deviation**2 / largest - 1) < TWO_VALUES and RAREST <= share <= 1 - RAREST


def _is_compact_date(value: float) -> bool:
    day, month, year = int(value) % 100, int(value) // 100 % 100, int(value) // 10_000
    return 1900 <= year <= 2100 and 1 <= month <= 12 and 1 <= day <= 31


def _is_compact_month(value: float) -> bool:
    return _is_compact_date(100 * value + 1)


def _fit_date(column: ColumnSummary, settings: TableSettings) -> _Fitted:
    if len(column.dates.readings) != 1 and column.dates.reading("year-month-day") is None:
        how = " or ".join(moments.reading for moments in column.dates.readings)
        what = f"may be read as {how}" if how else "are written in different ways"
        raise InputError(
            f"the dates in column {column.name!r} {what}: write them as 2024-12-31, or leave the column out "
            f"(--drop {column.name})"
        )
    moments = column.dates.reading("year-month-day") or column.dates.readings[0]
    if moments.deviation == 0:
        raise _DroppedError(f"constant: {date_text(moments.mean)} in all training rows")
    since, mean = moments.low, moments.mean - moments.low
    remarks = [
        f"date ({moments.reading}), as days since {date_text(since)}, the earliest: mean {mean:.4g}, standard "
        f"deviation {moments.deviation:.4g}"
    ]
    apart = _apart(moments, whole=False)
    remarks += [_standing_apart(date_text(value), rows) for value, rows in apart]
    for value in (moments.low, moments.high):
        if value not in [each for each, _ in apart] and _dominates(value, moments):
            remarks.append(f"{date_text(value)} is far from the mean, {DOMINATES}: correct it, or leave it empty")
    missing = _training_missing(column)
    made = Date(column.name, missing > 0, mean, moments.reading, since)
    return _Fitted(made, _with_indicator(((mean, moments.deviation),), missing, column.training), remarks)


def _is_boolean(column: ColumnSummary) -> bool:
    return (
        bool(column.texts)
        and not column.numbers.rows + column.dates.rows + column.infinite + column.unnamed.rows
        and ({level.text.lower() for level in column.texts or ()} <= TRUTHS.keys())
    )


def _fit_boolean(column: ColumnSummary) -> _Fitted:
    levels = column.texts or ()
    true = sum(level.training for level in levels if level.text.lower() == "true")
    known = sum(level.training for level in levels)
    scale = _share_scale(true, known)
    missing = _training_missing(column)
    if scale[1] == 0:
        return _presence(column, levels[0].text, True, len(levels) == 1)
    made = Boolean(column.name, missing > 0, scale[0])
    return _Fitted(
        made, _with_indicator((scale,), missing, column.training), [f"true or false: {scale[0]:.1%} are true"]
    )


# ---- categories ------------------------------------------------------------------------------------------------------


def _texts_of(column: ColumnSummary) -> tuple[Level, ...]:
    return tuple(
        sorted((*(column.texts or ()), *(column.marks or ()), *(column.codes or ())), key=lambda each: each.text)
    )


def _fit_category(column: ColumnSummary, summary: TableSummary, settings: TableSettings) -> _Fitted:
    _refuse_mixed(column)
    levels = [level for level in _texts_of(column) if level.training]
    everywhere, unnamed = _texts_of(column), column.unnamed
    count = len(everywhere) + unnamed.levels
    named = settings.features is not None
    if not unnamed.levels and (len(everywhere) == 1 or len(levels) < 2):
        return _presence(column, (levels or everywhere)[0].text, False, len(everywhere) == 1)
    spelled = odd_spelling([level.text for level in everywhere])
    if spelled and count > MOST_FEATURES:
        raise _DroppedError(f"texts such as {shown(everywhere[0].text)}, which look like {spelled}")
    if not named:
        _drop_identifier(column, count, summary)
    rare = _rare_rows(column.present)
    frequent = sorted((lv for lv in levels if lv.rows >= rare), key=lambda lv: (-lv.training, lv.text))[:MOST_FEATURES]
    pooled = count > len(frequent)
    if pooled:
        frequent = [level for level in frequent if level.text != OTHER]
    known = sum(level.training for level in levels) + unnamed.training
    while pooled and len(frequent) > 1 and sum(level.training for level in frequent) == known:
        frequent.pop()  # no training row would be in the pool
    kept = sum(level.training for level in frequent)
    if not frequent or (pooled and len(frequent) == 1 and kept == known):
        example = f", such as {shown(everywhere[0].text)}," if everywhere else ""
        raise _DroppedError(f"text with {count} different values{example} of which none is in {rare:.0f} rows or more")
    reference, *others = frequent
    ordered = sorted(others, key=lambda level: level.text)
    counts = [level.training for level in ordered] + ([known - kept] if pooled else [])
    missing = _training_missing(column, marks=False)
    scales = _with_indicator(tuple(_share_scale(n, column.training) for n in counts), missing, column.training)
    made = Category(column.name, missing > 0, reference.text, tuple(level.text for level in ordered), pooled)
    listed = _some([*(level.text for level in ordered), *([OTHER] if pooled else [])])
    remarks = [f"category: reference {shown(reference.text)}, features for {listed}"]
    if pooled:
        remarks.append(f"{count - len(frequent)} rare values pooled as {OTHER!r}")
    if spelled:
        remarks.append(f"the texts look like {spelled}")
    alike = two_alike(level.text for level in everywhere)
    return _Fitted(made, scales, remarks + ([alike] if alike else []))


def _rare_rows(rows: int) -> float:
    return max(RARE_SHARE * rows, min(RARE_ROWS, RARE_SHARE_OF_FEW * rows))


def _refuse_mixed(column: ColumnSummary) -> None:
    """Raise _DroppedError for a column whose values are of several kinds, or texts without number."""
    number, date = column.numbers.rows + column.infinite, column.dates.rows
    if date or (number and (column.codes is None or len(column.codes) > MOST_FEATURES)):
        raise _DroppedError(f"holds {_mixture(column)}: {ONE_KIND}, or leave cells empty that are missing")
    if column.texts is None or column.marks is None:
        raise _DroppedError(
            f"text with more than {MOST_LEVELS} different values, which looks like an identifier or a note"
        )


def _mixture(column: ColumnSummary) -> str:
    """`799 numbers and 1 text such as 'unknown'`."""
    number, date = column.numbers.rows + column.infinite, column.dates.rows
    texts = sum(level.rows for level in column.texts or ()) + column.unnamed.rows
    parts = [_counted(number, "number")] * (number > 0) + [_counted(date, "date")] * (date > 0)
    parts += [f"{_counted(texts, 'text')} such as {_example(column)}"] * (texts > 0)
    return " and ".join(parts + ["many texts"] * (column.texts is None))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _drop_identifier(column: ColumnSummary, levels: int, summary: TableSummary) -> None:
    if levels >= NEARLY_ALL * column.present and column.present >= FEW_ROWS:
        raise _DroppedError(
            "nearly every row has another text, so it looks like an identifier; name it among the features to use it"
        )
    if _is_of_clients(column, summary) and summary.clients > 2 and levels >= NEARLY_ALL * summary.clients:
        raise _DroppedError(
            "nearly every client has a text that no other has, so it is another name of the client; name it among the "
            "features to use it"
        )


def _some(texts: Sequence[str]) -> str:
    """Return the first texts as a list, long ones cut."""
    cut = [text if len(text) <= LONGEST_LISTED else f"{text[:LONGEST_LISTED]}..." for text in texts[:MOST_LISTED]]
    return ", ".join(cut) + (f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else "")


def _example(column: ColumnSummary) -> str:
    return shown(column.texts[0].text) if column.texts else "..."


def two_alike(texts: Iterable[str]) -> str:
    """Return a remark on two texts that are probably one name in two spellings; empty if there are none."""
    seen: dict[str, str] = {}
    for text in texts:
        other = seen.setdefault(same_name(text), text)
        if other != text:
            return f"{other!a} and {text!a} {ALIKE}"
    return ""
