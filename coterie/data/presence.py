"""Columns that hold one value or nothing."""

from __future__ import annotations

from coterie.core.schema import Presence
from coterie.data.scales import share_scale, training_missing
from coterie.data.settings import DroppedError, FittedColumn
from coterie.data.summary import ColumnSummary
from coterie.errors import shown


def fit_presence(column: ColumnSummary, only: str, *, marks: bool, everywhere: bool) -> FittedColumn:
    """Return a column that is constant or missing, as an indicator of missing values.

    Args:
        column: Summary of the column.
        only: Its only value.
        marks: Whether marks such as NA count as missing.
        everywhere: Whether rows other than training rows hold no other value.

    Raises:
        DroppedError: if it is never missing, or if other rows than training rows hold other values.
    """
    missing = training_missing(column, marks)
    if not missing or missing == column.training or not everywhere:
        raise DroppedError(f"constant: {only} in all training rows")
    remark = f"{shown(only)} or missing: used as an indicator of missing values"
    made = Presence(column.name, True, only, marks)
    return FittedColumn(made, (share_scale(missing, column.training),), [remark])
