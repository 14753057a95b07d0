"""Settings by which a table becomes features and targets, and the column that results."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, get_args

from coterie.core.schema import Column
from coterie.errors import ConfigError, shown

Task = Literal["classification", "regression"]
Missing = Literal["impute", "refuse"]
Scale = tuple[float, float]
"""Mean and standard deviation of a feature over the training rows."""


@dataclass(frozen=True)
class TableSettings:
    """Decisions of the user about a table.

    Args:
        target: Name of the column to predict.
        features: Names of the feature columns; None takes all that can be used.
        drop: Names of the columns that are left out.
        task: `classification` or `regression`; None infers the task from the target.
        missing: Whether missing values of features are filled in or refused.
        standardize: Whether features are scaled to mean 0 and standard deviation 1 over the training rows.
    """

    target: str
    features: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    task: Task | None = None
    missing: Missing = "impute"
    standardize: bool = True

    def __post_init__(self) -> None:
        if self.task is not None and self.task not in get_args(Task):
            raise ConfigError(f"task must be {' or '.join(get_args(Task))}, got {shown(self.task)}")
        if self.missing not in get_args(Missing):
            raise ConfigError(f"missing must be {' or '.join(get_args(Missing))}, got {shown(self.missing)}")


class DroppedError(Exception):
    """Raised for a column that cannot or should not be a feature; the message is the reason."""


@dataclass(frozen=True)
class FittedColumn:
    """A feature column with the scales of its features and the remarks of its note."""

    column: Column
    scales: tuple[Scale, ...]
    remarks: list[str] = field(default_factory=list)
