"""Schema of a data set: encoding of table columns as features, scaling, and class labels."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.core.plain import from_plain, to_plain
from coterie.core.readings import (
    ISO,
    NUMBER_READINGS,
    PLAIN,
    READINGS,
    Reading,
    is_mark,
    number_text,
)
from coterie.errors import ConfigError, InputError, shown

Label = str | int | bool
"""Class label as given by the user."""
Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Values = npt.NDArray[Any]
"""Cells of one column, (n,): numbers (NaN if missing), booleans, datetime64 (NaT if missing), or texts without
surrounding spaces (None if missing)."""

OTHER = "other"
"""Name of the level that combines all rare levels of a category."""
TRUTHS = {"true": 1.0, "false": 0.0}
KINDS_OF_NUMBERS = "fiu"


class ColumnNote(NamedTuple):
    """Use of one column of a table."""

    column: str
    """Name of the column."""
    action: str
    """Use of the column: `client`, `target`, `used` or `dropped`."""
    detail: str
    """Encoding of the column, or the reason why it was dropped."""


@dataclass(frozen=True)
class Column(ABC):
    """A column of a table that is encoded as features."""

    name: str
    """Name of the column."""
    indicator: bool = False
    """Whether an additional feature indicates missing values."""

    kind: ClassVar[str]
    """Name of the column type in the plain form of a schema."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of all features that encode the column."""
        return (*self.own_features, *((f"{self.name} missing",) if self.indicator else ()))

    @property
    @abstractmethod
    def own_features(self) -> tuple[str, ...]:
        """Names of the features without the indicator for missing values."""

    @property
    def reads_marks(self) -> bool:
        """Whether texts such as NA mark missing values."""
        return True

    def missing(self, values: Values) -> Mask:
        """Return whether each cell is missing, (n,)."""
        return missing_cells(values, self.reads_marks)

    @abstractmethod
    def own_values(self, values: Values, missing: Mask) -> list[Floats]:
        """Return the features before scaling, without the indicator; missing values are imputed.

        Args:
            values: Cells of the column, (n,).
            missing: Whether each cell is missing, (n,).

        Raises:
            InputError: if a cell does not fit the type of the column.
        """

    def encode(self, values: Values) -> list[Floats]:
        """Return the features (n,) of the cells before scaling, in the order of `features`."""
        missing = self.missing(values)
        found = self.own_values(values, missing)
        return [*found, missing.astype(np.float64)] if self.indicator else found

    def _refused(self, values: Values, wrong: Mask, expected: str) -> InputError:
        row = int(wrong.argmax())
        return InputError(
            f"column {self.name!r} must hold {expected}, but row {row + 1} has {shown(values[row])}: correct the "
            "value, or leave the cell empty to mark it as missing"
        )


@dataclass(frozen=True)
class Measured(Column):
    """A column that is encoded as one number for each cell."""

    fill: float = 0.0
    """Number that replaces missing values: the mean of the training rows."""

    @property
    def own_features(self) -> tuple[str, ...]:
        return (self.name,)

    def own_values(self, values: Values, missing: Mask) -> list[Floats]:
        found = self.numbers(values, missing)
        infinite = np.isinf(found)
        if infinite.any():
            raise self._refused(values, infinite, "finite numbers")
        found[missing] = self.fill
        return [found]

    @abstractmethod
    def numbers(self, values: Values, missing: Mask) -> Floats:
        """Return a new array with the numbers of all cells; missing cells may have any value that is not infinite."""

    def _mapped(self, values: Values, missing: Mask, read: Callable[[str], float | None], expected: str) -> Floats:
        """Return the numbers of text cells; equal texts are read once."""
        known = {text: read(text) for text in set(values[~missing].tolist())}
        numbers = np.array([math.nan if gone else known[t] for t, gone in zip(values, missing, strict=True)], float)
        wrong = np.isnan(numbers) & ~missing
        if wrong.any():
            raise self._refused(values, wrong, expected)
        return numbers


@dataclass(frozen=True)
class Number(Measured):
    """A column of numbers."""

    kind = "number"
    reading: str = PLAIN.name
    """Format of the numbers in text cells."""
    values: tuple[float, ...] = ()
    """Different values in the training table, if they are few whole numbers; otherwise none."""

    def numbers(self, values: Values, missing: Mask) -> Floats:
        if values.dtype.kind in KINDS_OF_NUMBERS + "b":
            return values.astype(np.float64)
        if values.dtype.kind != "O":
            raise self._refused(values, ~missing, "numbers, as in the training table")
        read = self._reading(values[~missing]).read
        return self._mapped(values, missing, read, "numbers, as in the training table")

    def _reading(self, texts: Values) -> Reading:
        """Return the format of all cells: that of the schema, plain numbers, or the only one that fits."""
        cells = set(texts.tolist())
        own = READINGS[self.reading]
        fitting = [r for r in (own, *NUMBER_READINGS) if all(r.read(cell) is not None for cell in cells)]
        if not fitting or fitting[0] in (own, PLAIN) or len(fitting) == 1:
            return fitting[0] if fitting else own
        example = next(cell for cell in cells if PLAIN.read(cell) is None)
        raise InputError(
            f"column {self.name!r} holds {shown(example)}, which may have a decimal comma or a comma between "
            "thousands: write numbers as 1234.5"
        )


@dataclass(frozen=True)
class Boolean(Measured):
    """A column of true and false, encoded as 1 and 0."""

    kind = "boolean"

    def numbers(self, values: Values, missing: Mask) -> Floats:
        if values.dtype.kind == "b":
            return values.astype(np.float64)
        if values.dtype.kind in KINDS_OF_NUMBERS:
            wrong = ~np.isin(values, (0, 1)) & ~missing
            if wrong.any():
                raise self._refused(values, wrong, "true or false")
            return values.astype(np.float64)
        if values.dtype.kind != "O":
            raise self._refused(values, ~missing, "true or false")
        return self._mapped(values, missing, lambda text: TRUTHS.get(text.lower()), "true or false")


@dataclass(frozen=True)
class Date(Measured):
    """A column of dates, encoded as the number of days since the earliest date in the training table."""

    kind = "date"
    reading: str = ISO.name
    """Format of the dates in text cells."""
    origin: float = 0.0
    """Earliest date, in days since 1 January 1970."""

    def numbers(self, values: Values, missing: Mask) -> Floats:
        if _is_date(values):
            return days(values) - self.origin
        expected = f"dates such as {READINGS[self.reading].example}"
        if values.dtype.kind != "O":
            raise self._refused(values, ~missing, expected)
        readings = (READINGS[self.reading], ISO)

        def read(text: str) -> float | None:
            return next((found for reading in readings if (found := reading.read(text)) is not None), None)

        return self._mapped(values, missing, read, expected) - self.origin


@dataclass(frozen=True)
class Category(Column):
    """A column of categories, one-hot encoded with one feature for each level except the reference level."""

    kind = "category"
    reference: str = ""
    """Level without a feature."""
    levels: tuple[str, ...] = ()
    """Levels with a feature."""
    other: bool = False
    """Whether unlisted levels are combined into the level `other`; otherwise they are refused."""

    @property
    def own_features(self) -> tuple[str, ...]:
        return tuple(f"{self.name}={level}" for level in (*self.levels, *((OTHER,) if self.other else ())))

    @property
    def reads_marks(self) -> bool:
        return False

    def own_values(self, values: Values, missing: Mask) -> list[Floats]:
        if _is_date(values):
            raise self._refused(values, ~missing, "texts, as in the training table")
        place = {level_text(level): at for at, level in enumerate((self.reference, *self.levels), start=-1)}
        unlisted = len(self.levels) if self.other else -2
        codes = {cell: place.get(level_text(cell), unlisted) for cell in set(values[~missing].tolist())}
        at = np.array([-1 if gone else codes[cell] for cell, gone in zip(values.tolist(), missing, strict=True)], int)
        if (at == -2).any():
            raise InputError(
                f"column {self.name!r} holds {shown(values[int((at == -2).argmax())])}, which is not a category of the "
                f"training table ({', '.join(map(shown, sorted(place)))}): drop those rows, or train again"
            )
        return [(at == level).astype(np.float64) for level in range(len(self.own_features))]


@dataclass(frozen=True)
class Presence(Column):
    """A column with a single value or an empty cell in each row, encoded by the indicator for missing values only."""

    kind = "presence"
    value: str = ""
    """The single value."""
    marks: bool = False
    """Whether texts such as NA mark missing values."""

    @property
    def own_features(self) -> tuple[str, ...]:
        return ()

    @property
    def reads_marks(self) -> bool:
        return self.marks

    def own_values(self, values: Values, missing: Mask) -> list[Floats]:
        wrong = np.array([level_text(cell) != self.value for cell in values.tolist()], dtype=bool) & ~missing
        if wrong.any():
            raise self._refused(values, wrong, f"{shown(self.value)} or nothing, as in the training table")
        return []


COLUMN_KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Number, Boolean, Date, Category, Presence)}


def level_text(cell: object) -> str:
    """Return the level of a cell of a category; integers have no decimal point, so that 1.0 and 1 are equal."""
    if isinstance(cell, str):
        number = PLAIN.read(cell)
        return cell if number is None else number_text(number)
    return number_text(float(cell)) if isinstance(cell, int | float) and not isinstance(cell, bool) else str(cell)


def days(dates: Values) -> Floats:
    """Return datetime64 values as numbers of days since 1 January 1970; NaN if missing."""
    seconds = (dates - np.datetime64(0, "s")) / np.timedelta64(1, "s")
    return np.asarray(seconds, dtype=np.float64) / 86_400


def _is_date(values: Values) -> bool:
    return values.dtype.kind == "M"


def missing_cells(values: Values, marks: bool) -> Mask:
    """Return whether each cell is missing, (n,).

    Args:
        values: Cells of one column.
        marks: Whether texts such as NA mark missing values.
    """
    if values.dtype.kind == "O":
        gone = {cell for cell in set(values.tolist()) if cell is None or (marks and is_mark(cell))}
        return np.array([cell in gone for cell in values], dtype=bool)
    return np.isnat(values) if _is_date(values) else np.asarray(values != values, dtype=bool)


@dataclass(frozen=True)
class Schema:
    """Encoding of table columns as features, and the labels of the classes.

    By default there are no columns and no labels. Data sets can be combined in a run only if their schemas are equal.
    """

    columns: tuple[Column, ...] = ()
    """Feature columns of the table, in the order of the features."""
    scales: tuple[tuple[float, float], ...] = ()
    """Mean and standard deviation of each of the d features; a standard deviation of 0 sets the feature to 0."""
    target: str = ""
    """Name of the target column."""
    classes: tuple[Label, ...] = ()
    """Labels of the classes 0, 1, ...; empty for regression, and if the labels are the numbers 0, 1, ... themselves."""
    target_reading: str = PLAIN.name
    """Format of the numbers in text cells of the target."""
    impute: bool = True
    """Whether missing feature values are imputed; otherwise they are refused."""
    target_scale: tuple[float, float] = (0.0, 1.0)
    """Mean and standard deviation of the target of a regression over the training rows. Targets keep their units; the
    first models are drawn at this place and of this size, so that results do not depend on the units."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features; empty for data without feature names."""
        return tuple(chain.from_iterable(column.features for column in self.columns))

    @property
    def references(self) -> dict[str, str]:
        """Reference level of each category column."""
        return {column.name: column.reference for column in self.columns if isinstance(column, Category)}

    @property
    def is_table(self) -> bool:
        """Whether the features come from the columns of a table."""
        return bool(self.columns)

    def class_numbers(self, labels: Iterable[object], what: str) -> npt.NDArray[np.int64]:
        """Return the class number of each label.

        Args:
            labels: Labels as given by the user.
            what: Name of the labels in error messages.

        Returns:
            Class numbers, (n,).

        Raises:
            InputError: if a label does not belong to a class.
        """
        place: dict[object, int] = {label: k for k, label in enumerate(self.classes)}
        numbers = []
        for label in labels:
            number = place.get(label) if isinstance(label, str | int | float) else None
            if number is None:
                known = ", ".join(map(repr, self.classes[:10])) + (", ..." if len(self.classes) > 10 else "")
                raise InputError(
                    f"{what} holds {str(label)[:60]!r}, which is not a class of this run: use the classes {known}"
                )
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def class_labels(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the label of each class number; the numbers themselves if the classes have no other labels."""
        if not self.classes:
            return numbers
        dtype = object if isinstance(self.classes[0], str) else None
        return np.array(self.classes, dtype=dtype)[numbers]

    def plain(self) -> dict[str, object]:
        """Return the schema as values that JSON can hold."""
        return {
            "columns": [plain_column(column) for column in self.columns],
            "scales": [list(pair) for pair in self.scales],
            "target": self.target,
            "classes": list(self.classes),
            "target_reading": self.target_reading,
            "impute": self.impute,
            "target_scale": list(self.target_scale),
        }

    @classmethod
    def of_plain(cls, plain: object) -> Schema:
        """Return a schema from its plain form, which an earlier version may have written.

        Raises:
            InputError: if the plain form does not describe a schema.
        """
        needed, optional = {"columns", "scales", "target", "classes"}, {"target_reading", "impute", "target_scale"}
        if not isinstance(plain, dict) or not needed <= plain.keys() <= needed | optional:
            raise InputError("a schema needs columns, scales, target and classes")
        columns, scales, target, classes = (plain[name] for name in ("columns", "scales", "target", "classes"))
        if not _is_list(columns, lambda _: True) or not _is_list(scales, _is_scale) or not isinstance(target, str):
            raise InputError("a schema needs a list of columns, scales as [mean, deviation], target as text")
        if not _is_list(classes, lambda label: isinstance(label, str | int)):
            raise InputError("the classes of a schema must be texts or whole numbers")
        reading, impute = plain.get("target_reading", PLAIN.name), plain.get("impute", False)
        target_scale = plain.get("target_scale", [0.0, 1.0])
        if not _is_scale(target_scale) or target_scale[1] < 0:
            raise InputError("target_scale of a schema must be [mean, deviation]")
        if reading not in {r.name for r in NUMBER_READINGS} or not isinstance(impute, bool):
            raise InputError(
                "a schema needs target_reading as the name of a reading of numbers, impute as true or false"
            )
        read = cls(
            tuple(map(column_of_plain, columns)),
            tuple((float(mean), float(deviation)) for mean, deviation in scales),
            target,
            tuple(classes),
            reading,
            impute,
            (float(target_scale[0]), float(target_scale[1])),
        )
        if len({column.name for column in read.columns}) != len(columns) or len(set(read.classes)) != len(classes):
            raise InputError("a schema names every column and every class once")
        if len(read.scales) != len(read.feature_names):
            raise InputError(f"a schema with {len(read.feature_names)} features has {len(read.scales)} scales")
        return read


def plain_column(column: Column) -> dict[str, object]:
    """Return a column as values that JSON can hold."""
    fields = to_plain(column)
    assert isinstance(fields, dict)
    return {"kind": column.kind, **fields}


def column_of_plain(plain: object) -> Column:
    """Return a column from its plain form.

    Raises:
        InputError: if the plain form does not describe a column.
    """
    if isinstance(plain, list):
        return _early_column(plain)
    if not isinstance(plain, dict) or plain.get("kind") not in COLUMN_KINDS:
        raise InputError(f"a column of a schema must have a kind, one of {', '.join(COLUMN_KINDS)}")
    try:
        fields = {name: value for name, value in plain.items() if name != "kind"}
        column = from_plain(COLUMN_KINDS[plain["kind"]], fields, "column of a schema")
    except ConfigError as error:
        raise InputError(str(error)) from None
    assert isinstance(column, Column)
    numbers = [value for value in fields.values() if isinstance(value, float)]
    if not all(map(math.isfinite, numbers)) or getattr(column, "reading", PLAIN.name) not in READINGS:
        raise InputError(f"column {shown(column.name)} of a schema needs finite numbers and a known reading")
    return column


def _early_column(plain: Sequence[Any]) -> Column:
    """Return a column from the form of earlier versions: [name, sorted levels], whose first level is the reference."""
    if not _is_early_column(plain):
        raise InputError("a column of a schema of an earlier version must be [name, texts]")
    name, levels = plain
    return Category(name, reference=levels[0], levels=tuple(levels[1:])) if levels else Number(name)


def _is_list(value: object, holds: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_early_column(value: object) -> bool:
    """Return whether a value has the form [name, [text, ...]]."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and _is_list(value[1], lambda level: isinstance(level, str))
    )


def _is_scale(value: object) -> bool:
    """Return whether a value has the form [mean, deviation] with finite numbers."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int | float) and math.isfinite(number) for number in value)
    )
