"""Rows of a table as features and targets, in the way that a schema describes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.readings import PLAIN
from coterie.core.schema import Date, Floats, Mask, Number, Schema, Values, level_text, missing_cells
from coterie.data.columns import Columns, open_columns, shown
from coterie.data.fitting import LARGEST
from coterie.errors import ColumnWarning, InputError

Ints = npt.NDArray[np.int64]

FAR = 5.0
"""Standard deviations from the training mean; if half of the values are farther, the column may be in another unit."""


def encode(schema: Schema, source: object) -> Floats:
    """Return the features (n, d) of the rows of a table; it needs the feature columns of the schema and no other."""
    names = [column.name for column in schema.columns]
    columns = open_columns(source, texts_of(schema), names)
    absent = [name for name in names if name not in columns.names]
    if absent:
        raise InputError(
            f"the table has no column {absent[0]!r}, which the run predicts from: give it the columns "
            f"{', '.join(map(shown, names))}"
        )
    pairs = zip(features_of(columns, schema), schema.scales, strict=True)
    x = np.stack([scaled(values, scale) for (_, values), scale in pairs], axis=1)
    if not len(x):
        raise InputError("the table has no rows: give at least one")
    if not np.isfinite(x).all():
        name = schema.feature_names[int(np.argwhere(~np.isfinite(x))[0][1])]
        raise InputError(f"feature {name!r} is too far from its values in the run: the scaled value overflows")
    return x


def encode_target(schema: Schema, source: object) -> Floats | Ints | None:
    """Return the targets (n,) of the rows of a table, classes by their numbers; None if it has no target column."""
    columns = open_columns(source, texts_of(schema), (schema.target,))
    if schema.target not in columns.names:
        return None
    values = columns.values(schema.target)
    refuse_holes(missing_cells(values, marks_are_missing(schema)), schema.target)
    return target_of(values, schema)


def target_of(values: Values, schema: Schema) -> Floats | Ints:
    """Return the targets (n,) of cells of the target column none of which is missing, classes by their numbers."""
    if not schema.classes:
        if values.dtype.kind not in "fiuO":
            raise InputError(f"target {schema.target!r} must be numbers, as in the table of the run")
        column = Number(schema.target, reading=schema.target_reading)
        (numbers,) = column.encode(values)
        refuse_large(numbers, schema.target)
        return numbers
    return schema.class_numbers(_labels(values, schema), f"column {schema.target!r}")


def _labels(values: Values, schema: Schema) -> list[object]:
    """The cells of a target as labels of the kind that the schema has."""
    first = schema.classes[0]
    cells: list[Any] = values.tolist()
    if isinstance(first, str):
        return [level_text(cell) for cell in cells]
    if values.dtype.kind != "O":
        return cells
    if isinstance(first, bool):
        return [{"true": True, "false": False}.get(cell.lower(), cell) for cell in cells]
    return [cell if (number := PLAIN.read(cell)) is None else number for cell in cells]


def marks_are_missing(schema: Schema) -> bool:
    """Return whether texts such as NA in the target column mean a missing value."""
    return not (schema.classes and isinstance(schema.classes[0], str))


def texts_of(schema: Schema) -> set[str]:
    """Return the names of the columns whose spelling matters, so that a CSV file keeps it."""
    target = {schema.target} if schema.classes and isinstance(schema.classes[0], str) else set()
    return target | {column.name for column in schema.columns if not isinstance(column, Number)}


def refuse_holes(missing: Mask, name: str) -> None:
    """Raise InputError if a value is missing."""
    if missing.any():
        count = int(missing.sum())
        raise InputError(
            f"column {name!r} has {count} missing value{'' if count == 1 else 's'}, the first in row "
            f"{int(missing.argmax()) + 1}: fill them in, or drop those rows"
        )


def refuse_large(numbers: Floats, name: str) -> None:
    """Raise InputError if a number is too large for its square to be a number."""
    if len(numbers) and float(np.abs(numbers).max()) > LARGEST:
        row = int(np.abs(numbers).argmax())
        raise InputError(
            f"column {name!r} holds {float(numbers[row]):.3g} in row {row + 1}, but values must be at most "
            f"{LARGEST:g} in size: rescale the column, or mark such values as missing"
        )


def scaled(values: Floats, scale: tuple[float, float]) -> Floats:
    """Return the values shifted and scaled by mean and standard deviation; zeros for a deviation of 0."""
    mean, deviation = scale
    return np.zeros_like(values) if deviation == 0 else (values - mean) / deviation


def features_of(columns: Columns, schema: Schema, rows: Ints | None = None) -> Iterator[tuple[str, Floats]]:
    """Yield every feature with its name and its values before scaling, those of `rows` or of all rows of a table."""
    scales = iter(schema.scales)
    for column in schema.columns:
        values = columns.values(column.name)
        values = values if rows is None else values[rows]
        missing = column.missing(values)
        if missing.any() and not schema.impute:
            refuse_holes(missing, column.name)
        if missing.any() and not column.indicator:
            count = int(missing.sum())
            warnings.warn(
                f"column {column.name!r} has {count} missing value{'' if count == 1 else 's'}, but training rows had "
                "none: they count as the mean or the reference level",
                ColumnWarning,
                stacklevel=3,
            )
        for at, (name, feature) in enumerate(zip(column.features, column.encode(values), strict=True)):
            refuse_large(feature, column.name)
            scale = next(scales)
            if at == 0 and isinstance(column, Number | Date):
                _warn_if_far(column.name, feature[~missing], scale)
            yield name, feature


def _warn_if_far(name: str, values: Floats, scale: tuple[float, float]) -> None:
    """Warn of numbers most of which are far from those that the models were trained on."""
    if not len(values) or scale == (0.0, 1.0):  # not standardised: nothing is known of the training rows
        return
    far = float(np.median(np.abs(scaled(values, scale))))
    if far > FAR:
        warnings.warn(
            f"column {name!r} is far from its values in the training rows (half of the rows are {far:.0f} or more "
            "standard deviations from their mean), so that predictions mean little: is it in the same unit?",
            ColumnWarning,
            stacklevel=4,
        )
