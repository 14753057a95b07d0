"""Tables of figures as data frames, where pandas is installed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

from coterie.errors import InputError


def data_frame(rows: Sequence[Mapping[str, object]], index: str) -> Any:
    """Return rows as a pandas DataFrame that is indexed by one of the columns.

    Raises:
        InputError: if pandas is not installed.
    """
    try:
        pandas: Any = import_module("pandas")
    except ImportError:
        raise InputError("a DataFrame needs pandas: pip install pandas, or use to_json()") from None
    return pandas.DataFrame(list(rows)).set_index(index)
