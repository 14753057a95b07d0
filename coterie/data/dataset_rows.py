"""Columns of a `datasets.Dataset` (Hugging Face) as an Arrow table, through its documented methods."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any


def is_dataset(value: object) -> bool:
    """Return whether a value is a `datasets.Dataset` in memory or on disk."""
    return all(hasattr(value, name) for name in ("column_names", "features", "with_format", "__len__"))


def is_array(kind: object) -> bool:
    """Return whether each value of a column of this type is an array, a list or an image."""
    return type(kind).__name__ not in ("Value", "ClassLabel")


def class_names(kind: Any) -> tuple[str, ...]:
    """Return the names of the classes of a column of type ClassLabel; none for others."""
    return tuple(kind.names) if type(kind).__name__ == "ClassLabel" else ()


def arrow_table(dataset: Any, columns: Sequence[str] | None = None) -> Any:
    """Return an Arrow table of columns of single values, with classes by their names.

    Args:
        dataset: A `datasets.Dataset`.
        columns: Names of the columns; None for all columns of single values.
    """
    arrow: Any = import_module("pyarrow")
    kinds = dataset.features
    chosen = [name for name in dataset.column_names if not is_array(kinds[name])] if columns is None else columns
    table = dataset.with_format("arrow")[:].select(list(chosen))
    for column in chosen:
        names = class_names(kinds[column])
        if names:
            numbers = table.column(column).to_pylist()
            texts = [None if number is None or number < 0 else names[number] for number in numbers]
            table = table.set_column(table.column_names.index(column), column, arrow.array(texts, arrow.string()))
    return table
