"""The target of a table: task, classes, reading of its numbers, and the note about it.

`REFUSALS` are the rules that no target may break, `CLASS_REFUSALS` those that classes may not break; each is a function
that raises `InputError` with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from coterie.core.readings import PLAIN, number_text, odd_spelling
from coterie.core.schema import ColumnNote, Label
from coterie.data.number_reading import number_moments, refuse_large_numbers
from coterie.data.remarks import (
    FEW_ROWS,
    NEARLY_ALL,
    OF_CLIENTS,
    class_remarks,
    counted,
    example,
    listed,
    mixture,
    number_remarks,
)
from coterie.data.settings import Scale, TableSettings, Task
from coterie.data.summary import MOST_LEVELS, ColumnSummary, Moments, TableSummary
from coterie.data.truth import is_boolean
from coterie.errors import InputError, shown

MOST_CLASSES, ROWS_A_CLASS = 10, 5
"""A numeric target with at most 10 different whole numbers, each in 5 rows on average, might be meant as classes."""
ROWS_A_CLIENT = 5
"""Number of rows of a client, on average, below which its targets may be equal by chance."""
RAREST = 0.02
"""Share of the rarer one of two values from which a column may be one of two classes."""
TWO_VALUES = 0.05
"""Relative difference between the variance of a column and that of one with two values, up to which it may be one."""


@dataclass(frozen=True)
class FittedTarget:
    """The target of a schema."""

    classes: tuple[Label, ...]
    """Labels of the classes in sorted order; none for a regression."""
    reading: str
    """Name of the reading of its numbers."""
    note: ColumnNote
    scale: Scale = (0.0, 1.0)
    """Mean and standard deviation of its numbers."""


@dataclass(frozen=True)
class _Target:
    """Facts about a target column."""

    column: ColumnSummary
    summary: TableSummary
    task: Task | None

    @property
    def name(self) -> str:
        return f"target {self.column.name!r}"

    @property
    def numeric(self) -> bool:
        """Whether all cells are numbers or marks of missing values."""
        return self.column.numbers.rows > 0 and not self.column.has_texts

    @property
    def labels(self) -> tuple[Label, ...] | None:
        """The classes in sorted order; None if they are not known."""
        column = self.column
        if self.numeric:
            return None if column.codes is None else tuple(sorted(int(level.text) for level in column.codes))
        if column.texts is None or column.marks is None or column.codes is None or column.dates.rows:
            return None
        if is_boolean(column):
            return tuple(sorted({level.text.lower() == "true" for level in column.texts}))
        return tuple(sorted(level.text for level in (*column.texts, *column.marks, *column.codes)))

    @property
    def is_regression(self) -> bool:
        """Whether numbers are predicted: two different whole numbers are classes unless the user says otherwise."""
        two_classes = self.task is None and self.labels is not None and len(self.labels) == 2
        return self.numeric and self.task != "classification" and not two_classes

    def remarks(self) -> list[str]:
        """Return the remarks that hold for both tasks."""
        rows, clients = self.column.present, self.summary.clients
        if not self.column.constant or clients < 2 or rows < max(FEW_ROWS, ROWS_A_CLIENT * clients):
            return []
        return [f"{OF_CLIENTS}, so that clusters only sort clients by it: is it the target?"]

    def rows_left_out(self) -> list[str]:
        """Return the remark on rows without a target."""
        gone = self.summary.without_target
        return [f"{counted(gone, 'row')} without a target {'is' if gone == 1 else 'are'} left out"] if gone else []


def fit_target(summary: TableSummary, settings: TableSettings) -> FittedTarget:
    """Return classes, reading and note of the target.

    Args:
        summary: Summary of the table.
        settings: Decisions of the user.

    Raises:
        InputError: if the column cannot be predicted, or not as the task that the user has chosen.
    """
    target = _Target(summary.column(settings.target), summary, settings.task)
    for refuse in REFUSALS:
        refuse(target)
    return _regression(target) if target.is_regression else _classification(target)


# ---- refusals --------------------------------------------------------------------------------------------------------


def _refuse_unreadable(target: _Target) -> None:
    if target.column.unreadable:
        raise InputError(f"{target.name} cannot be used: {target.column.unreadable}")


def _refuse_infinite(target: _Target) -> None:
    if target.column.infinite:
        raise InputError(
            f"{target.name} has {target.column.infinite} infinite values: correct them, or drop those rows"
        )


def _refuse_dates(target: _Target) -> None:
    column = target.column
    if column.dates.rows and not (column.texts or column.numbers.rows):
        raise InputError(f"{target.name} holds dates: convert it to a number, such as days since a date, or to classes")


def _refuse_regression_of_texts(target: _Target) -> None:
    if target.task == "regression" and not target.numeric:
        raise InputError(
            f"{target.name} holds texts such as {example(target.column)}, so it cannot be regressed: use classification"
        )


REFUSALS: tuple[Callable[[_Target], None], ...] = (
    _refuse_unreadable,
    _refuse_infinite,
    _refuse_dates,
    _refuse_regression_of_texts,
)


def _refuse_unknown_classes(target: _Target) -> None:
    if target.labels is not None:
        return
    if target.column.numbers.rows and target.column.texts:
        raise InputError(
            f"{target.name} holds {mixture(target.column)}: leave cells empty that are missing, or make all of them "
            "texts"
        )
    numbers, texts = (
        "numbers that are not whole, or too many of them",
        f"more than {MOST_LEVELS} different texts",
    )
    raise InputError(
        f"{target.name} holds {numbers if target.numeric else texts}, so it has no classes: choose --task regression, "
        "or another target"
    )


def _refuse_one_class(target: _Target) -> None:
    labels = target.labels or ()
    if len(labels) < 2:
        raise InputError(_nothing_to_predict(target, shown(labels[0])))


def _nothing_to_predict(target: _Target, only: str) -> str:
    """Return the message about a target with one value; where others are missing, they may be meant as a class."""
    gone = target.summary.without_target
    if not gone:
        return f"{target.name} is {only} in every row: there is nothing to predict"
    return (
        f"{target.name} is {only} or missing ({counted(gone, 'row')}), and rows without a target are left out: if "
        "missing means another class, write it into these cells"
    )


def _refuse_numbers_in_disguise(target: _Target) -> None:
    texts = [str(label) for label in target.labels or ()]
    spelled = "" if target.numeric or target.task == "classification" else odd_spelling(texts)
    if spelled:
        raise InputError(
            f"{target.name} holds texts such as {shown(texts[0])}, which look like {spelled}; choose --task "
            "classification if they are classes"
        )


def _refuse_identifiers(target: _Target) -> None:
    rows = target.column.rows
    if not target.numeric and rows >= FEW_ROWS and len(target.labels or ()) >= NEARLY_ALL * rows:
        raise InputError(
            f"{target.name} has another text in nearly every row, as an identifier has: there is nothing to predict; "
            "choose another target"
        )


CLASS_REFUSALS: tuple[Callable[[_Target], None], ...] = (
    _refuse_unknown_classes,
    _refuse_one_class,
    _refuse_numbers_in_disguise,
    _refuse_identifiers,
)

# ---- the two tasks ---------------------------------------------------------------------------------------------------


def _regression(target: _Target) -> FittedTarget:
    column = target.column
    moments = number_moments(column, target.summary)
    if moments.low == moments.high:
        raise InputError(_nothing_to_predict(target, number_text(moments.low)))
    refuse_large_numbers(column, moments)
    parts = [f"regression: mean {moments.mean:.4g}, standard deviation {moments.deviation:.4g}"]
    parts += number_remarks(column, moments) + target.remarks()
    parts += _may_be_classes(target, moments) + target.rows_left_out()
    note = ColumnNote(column.name, "target", "; ".join(parts))
    return FittedTarget((), moments.reading, note, (moments.mean, moments.deviation))


def _may_be_classes(target: _Target, moments: Moments) -> list[str]:
    """Return the hint that numbers might be classes, where the task was inferred."""
    if target.task is not None:
        return []
    labels, rows = target.labels, target.column.rows
    if labels:
        if len(labels) > MOST_CLASSES or len(labels) * ROWS_A_CLASS > rows:
            return []
        return [f"it has {len(labels)} different whole numbers: if they are classes, choose --task classification"]
    if rows < FEW_ROWS or not _has_two_values(moments):
        return []
    two = f"{number_text(moments.low)} and {number_text(moments.high)}"
    return [f"it seems to hold {two} only: if they are classes, write them as texts or as 0 and 1 (--task)"]


def _has_two_values(moments: Moments) -> bool:
    """Return whether a column seems to hold its extremes only: then its mean determines its variance."""
    largest = (moments.mean - moments.low) * (moments.high - moments.mean)
    if not largest > 0:
        return False
    share = (moments.mean - moments.low) / (moments.high - moments.low)  # of a few huge values: no class is so rare
    return abs(moments.deviation**2 / largest - 1) < TWO_VALUES and RAREST <= share <= 1 - RAREST


def _classification(target: _Target) -> FittedTarget:
    for refuse in CLASS_REFUSALS:
        refuse(target)
    labels = target.labels or ()
    texts = [str(label) for label in labels]
    parts = [f"classification: {len(labels)} classes ({listed(texts)})"]
    parts += class_remarks(target.column, texts) + target.remarks()
    if target.numeric and target.task is None:
        parts.append("choose --task regression to predict the number")
    parts += target.rows_left_out()
    return FittedTarget(labels, PLAIN.name, ColumnNote(target.column.name, "target", "; ".join(parts)))
