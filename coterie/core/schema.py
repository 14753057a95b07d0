"""How raw values became the arrays that a model sees: columns, scaling and class labels."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coterie.errors import InputError

Label = str | int | bool
"""A class as the user wrote it."""


class Column(NamedTuple):
    """A column of a table that features are made of."""

    name: str
    levels: tuple[str, ...] = ()
    """Its texts in sorted order; empty for a column of numbers."""

    @property
    def features(self) -> tuple[str, ...]:
        """Names of its features: its own name, or one name for each of its texts but the first."""
        return tuple(f"{self.name}={level}" for level in self.levels[1:]) if self.levels else (self.name,)


@dataclass(frozen=True)
class Schema:
    """The columns of a table with their encoding, and the labels of the classes. All fields are empty by default.

    Two data sets can be trained on together only if their schemas are equal.
    """

    columns: tuple[Column, ...] = ()
    """Feature columns of the table, in the order of the features."""
    scales: tuple[tuple[float, float], ...] = ()
    """Mean and standard deviation of each feature, d pairs; a deviation of 0 sets the feature to 0."""
    target: str = ""
    """Name of the target column."""
    classes: tuple[Label, ...] = ()
    """Label of class 0, 1, ...; empty for a regression, and where the labels are 0, 1, ... themselves."""

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the d features; empty where the data came without names."""
        return tuple(chain.from_iterable(column.features for column in self.columns))

    @property
    def is_table(self) -> bool:
        """Whether the features come from the columns of a table."""
        return bool(self.columns)

    def class_numbers(self, labels: Iterable[object], what: str) -> npt.NDArray[np.int64]:
        """Return the number of each label's class, (n,); raise InputError for a label that is no class."""
        place: dict[object, int] = {label: k for k, label in enumerate(self.classes)}
        numbers = []
        for label in labels:
            number = place.get(label) if isinstance(label, str | int | float) else None
            if number is None:
                known = ", ".join(map(repr, self.classes[:10])) + (", ..." if len(self.classes) > 10 else "")
                raise InputError(f"{what} holds {str(label)[:60]!r}, which the run has no class for: it knows {known}")
            numbers.append(number)
        return np.array(numbers, dtype=np.int64)

    def class_labels(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the label of each class number; the numbers themselves where classes have no other labels."""
        if not self.classes:
            return numbers
        dtype = object if isinstance(self.classes[0], str) else None
        return np.array(self.classes, dtype=dtype)[numbers]

    def plain(self) -> dict[str, object]:
        """Return the schema as values that JSON can hold."""
        return {
            "columns": [[column.name, list(column.levels)] for column in self.columns],
            "scales": [list(pair) for pair in self.scales],
            "target": self.target,
            "classes": list(self.classes),
        }

    @classmethod
    def of_plain(cls, plain: object) -> Schema:
        """Return the schema that `plain` described; raise InputError for anything else."""
        if not isinstance(plain, dict) or plain.keys() != {"columns", "scales", "target", "classes"}:
            raise InputError("a schema needs columns, scales, target and classes")
        columns, scales, target, classes = (plain[name] for name in ("columns", "scales", "target", "classes"))
        if not _is_list(columns, _is_column) or not _is_list(scales, _is_scale) or not isinstance(target, str):
            raise InputError("a schema needs columns as [name, texts], scales as [mean, deviation], target as text")
        if not _is_list(classes, lambda label: isinstance(label, str | int)):
            raise InputError("the classes of a schema must be texts or whole numbers")
        read = cls(
            tuple(Column(name, tuple(levels)) for name, levels in columns),
            tuple((float(mean), float(deviation)) for mean, deviation in scales),
            target,
            tuple(classes),
        )
        if len({column.name for column in read.columns}) != len(columns) or len(set(read.classes)) != len(classes):
            raise InputError("a schema names every column and every class once")
        if len(read.scales) != len(read.feature_names):
            raise InputError(f"a schema with {len(read.feature_names)} features has {len(read.scales)} scales")
        return read


def _is_list(value: object, holds: Callable[[object], bool]) -> bool:
    return isinstance(value, list) and all(map(holds, value))


def _is_column(value: object) -> bool:
    """[name, [text, ...]]"""
    return (
        isinstance(value, list)
        and len(value) == 2
        and isinstance(value[0], str)
        and _is_list(value[1], lambda level: isinstance(level, str))
    )


def _is_scale(value: object) -> bool:
    """[mean, deviation], both finite."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int | float) and math.isfinite(number) for number in value)
    )
