"""Rows of a table as features and targets, in the way that a schema describes."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import numpy as np
import numpy.typing as npt

from coterie.core.schema import Schema
from coterie.data.columns import Columns, Values, open_columns, shown
from coterie.errors import InputError

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LARGEST = 1e100
"""Largest size of a value in a table; means and squares of such values are finite."""


def encode(schema: Schema, source: object) -> Floats:
    """Return the features (n, d) of the rows of a table; it needs the feature columns of the schema and no other."""
    names = [column.name for column in schema.columns]
    columns = _opened(schema, source, names)
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
    columns = _opened(schema, source, (schema.target,))
    return target_of(columns, schema) if schema.target in columns.names else None


def target_of(columns: Columns, schema: Schema) -> Floats | Ints:
    """Return the targets (N,) in the target column, classes by their numbers."""
    values = columns.values(schema.target)
    refuse_holes(values, schema.target)
    if schema.classes:
        return schema.class_numbers(values.tolist(), f"column {schema.target!r}")
    if values.dtype.kind not in "fiu":
        raise InputError(f"target {schema.target!r} must be numbers, as in the table of the run")
    return values.astype(np.float64, copy=False)


def _opened(schema: Schema, source: object, wanted: Collection[str]) -> Columns:
    return open_columns(source, texts_of(schema), wanted)


def texts_of(schema: Schema) -> set[str]:
    """Return the names of the columns that hold texts."""
    target = {schema.target} if schema.classes and isinstance(schema.classes[0], str) else set()
    return target | {column.name for column in schema.columns if column.levels}


def _only_known(values: Values, known: tuple[str, ...], column: str) -> None:
    odd = next((value for value in dict.fromkeys(values.tolist()) if value not in known), None)
    if odd is not None:
        raise InputError(
            f"column {column!r} holds {shown(odd)}, which the table of the run did not: drop those rows, or train again"
        )


def refuse_holes(values: Values, name: str) -> None:
    """Raise InputError if a value is missing, infinite, or too large for its square to be a number."""
    bad = np.array([v is None for v in values]) if values.dtype.kind == "O" else ~np.isfinite(values)
    if bad.any():
        raise InputError(
            f"column {name!r} has {int(bad.sum())} missing or infinite values, the first in row "
            f"{int(bad.argmax()) + 1}: fill them in, drop those rows, or leave the column out"
        )
    if values.dtype.kind == "f" and len(values) and float(np.abs(values).max()) > LARGEST:
        row = int(np.abs(values).argmax())
        raise InputError(
            f"column {name!r} holds {float(values[row]):.3g} in row {row + 1}, but values must be at most "
            f"{LARGEST:g} in size: rescale the column, or mark such values as missing"
        )


def scaled(values: Floats, scale: tuple[float, float]) -> Floats:
    """Return the values shifted and scaled by mean and standard deviation; zeros for a deviation of 0."""
    mean, deviation = scale
    return np.zeros_like(values) if deviation == 0 else (values - mean) / deviation


def features_of(columns: Columns, schema: Schema) -> Iterator[tuple[str, Floats]]:
    """Yield every feature with its name and its values (N,) before scaling."""
    for column in schema.columns:
        values = columns.values(column.name)
        refuse_holes(values, column.name)
        if not column.levels:
            if values.dtype.kind == "O":
                raise InputError(f"column {column.name!r} holds texts, but numbers when the run was made: convert it")
            yield column.name, values.astype(np.float64, copy=False)
            continue
        _only_known(values, column.levels, column.name)
        for name, level in zip(column.features, column.levels[1:], strict=True):
            yield name, (values == level).astype(np.float64)
