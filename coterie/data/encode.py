"""Rows of a table as features and targets, in the way that a schema describes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.readings import PLAIN, same_name
from coterie.core.schema import (
    OTHER,
    Category,
    Column,
    Date,
    Floats,
    Mask,
    Number,
    Schema,
    Values,
    level_text,
    missing_cells,
)
from coterie.data.columns import Columns, open_columns, shown
from coterie.data.fitting import LARGEST, MISSING_CODES
from coterie.errors import ColumnWarning, InputError

Ints = npt.NDArray[np.int64]

FAR = 5.0
"""Standard deviations from the training mean; if half of the values are farther, the column may be in another unit."""


VERY_FAR = 30.0
"""Standard deviations from the training mean beyond which a single value is warned of."""
MOST_ROWS, FEW_TRAINING_ROWS = 0.5, 0.25
"""A gap or a rare value in more than this share of the rows, and in less than that of the training rows, is odd."""
NEW_CODES, FAR_CODE = 0.1, 0.5
"""Share of rows with values that are new to a column of few whole numbers, and distance of one of them, as a share of
the column's range, from which a warning is given."""
MANY_ROWS = 10
"""Rows below which that may be chance."""
ODD_SHARES = {
    " missing": "no value",
    f"={OTHER}": "a value that is rare or absent in the training rows",
}
"""Ends of the names of features of zeros and ones whose share of ones is checked, with their meaning."""


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
    """Return the cells of a target as labels of the kind that the schema has."""
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
        _warn_of_holes(column, missing)
        if rows is None and isinstance(column, Category):
            _warn_of_spelling(column, values[~missing])
        for at, (name, feature) in enumerate(zip(column.features, column.encode(values), strict=True)):
            refuse_large(feature, column.name)
            scale = next(scales)
            if at == 0 and isinstance(column, Number | Date):
                _warn_if_far(column.name, feature[~missing], scale, training=rows is not None)
            if at == 0 and rows is None and isinstance(column, Number):
                _warn_of_codes(column, feature[~missing])
            _warn_if_many(column.name, ODD_SHARES.get(name.removeprefix(column.name), ""), feature, scale)
            yield name, feature


def _warn_of_holes(column: Column, missing: Mask) -> None:
    """Warn of missing values in a column that had none in the training rows."""
    if missing.any() and not column.indicator:
        count = int(missing.sum())
        warnings.warn(
            f"column {column.name!r} has {count} missing value{'' if count == 1 else 's'}, but training rows had "
            "none: they count as the mean or the reference level",
            ColumnWarning,
            stacklevel=4,
        )


def _warn_if_far(name: str, values: Floats, scale: tuple[float, float], training: bool) -> None:
    """Warn of numbers most of which are far from those of the schema; of single ones where none is trained on."""
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
        return
    z = np.abs(scaled(values, scale))
    odd = values[:0] if training else values[(z > VERY_FAR) | ((z > FAR) & np.isin(values, tuple(MISSING_CODES)))]
    if len(odd):
        count = "1 row has a value" if len(odd) == 1 else f"{len(odd)} rows have values"
        warnings.warn(
            f"column {name!r}: {count} far from those of the training rows, such as {odd[0]:.10g}, so that their "
            "predictions mean little: leave the cells empty if they stand for missing values",
            ColumnWarning,
            stacklevel=4,
        )


def _warn_of_codes(column: Number, values: Floats) -> None:
    """Warn of numbers that no training row had in a column of few whole numbers, if they are many or far away."""
    odd = values[~np.isin(values, column.values)] if column.values else values[:0]
    if not len(odd):
        return
    low, high = column.values[0], column.values[-1]
    outside = np.maximum(low - odd, odd - high)
    if len(odd) > NEW_CODES * len(values) or outside.max() > FAR_CODE * (high - low):
        known = ", ".join(f"{value:g}" for value in column.values)
        warnings.warn(
            f"column {column.name!r} holds {odd[outside.argmax()]:.10g}, which no row of the training table had "
            f"({known}): is it coded in the same way?",
            ColumnWarning,
            stacklevel=4,
        )


def _warn_of_spelling(column: Category, values: Values) -> None:
    """Warn of a level that is pooled although it is probably one of the schema in another spelling."""
    levels = {same_name(level): level for level in (column.reference, *column.levels)}
    found = {level_text(value) for value in values.tolist()} - set(levels.values())
    alike = sorted(text for text in found if same_name(text) in levels)
    if alike and column.other:
        warnings.warn(
            f"column {column.name!r} holds {shown(alike[0])}, which counts as {OTHER!r} but is probably "
            f"{shown(levels[same_name(alike[0])])} in another spelling: write it as in the training rows",
            ColumnWarning,
            stacklevel=4,
        )


def _warn_if_many(name: str, what: str, feature: Floats, scale: tuple[float, float]) -> None:
    """Warn if most rows have a property, a feature of zeros and ones, that few training rows had; "" for none."""
    if not what:
        return
    share, known = float(feature.mean()) if len(feature) else 0.0, scale[0]
    if len(feature) >= MANY_ROWS and scale != (0.0, 1.0) and share > MOST_ROWS and known < FEW_TRAINING_ROWS:
        warnings.warn(
            f"column {name!r} has {what} in {share:.0%} of the rows, but in {known:.1%} of the training rows: "
            "predictions mean little if the column is written in another way",
            ColumnWarning,
            stacklevel=4,
        )
