"""Columns of a table, wherever it is: a frame, an Arrow table, a dict of arrays, a CSV or a Parquet file.

pandas, polars and pyarrow are known by what their tables can do, so that none of them has to be installed.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from functools import cache
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import as_array, first_line
from coterie.errors import CoterieError, InputError

Values = npt.NDArray[Any]
"""(N,) of one kind: numbers with NaN for what is missing, true/false, or Python texts with None for what is missing."""

NUMBERS = "fiub"
"""Kinds of arrays that can be a feature as they are."""
UNKNOWN = {"", "na", "n/a", "nan", "null", "none"}
"""How a CSV file writes a number that is missing."""
DELIMITERS = ",;\t"
LONGEST_SHOWN = 60
"""Characters of a cell that a message shows."""
CHUNK = 10_000
"""Rows of a CSV file that are held as texts at a time."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table; a column is read when it is asked for, and not kept here."""

    names: tuple[str, ...]
    read: Callable[[str], Values]
    """(N,) of any type that NumPy knows."""
    peek: Callable[[str], Values]
    """The same with no rows: tells the type at no cost."""

    def is_number(self, name: str) -> bool:
        """Return whether this column holds numbers or true/false."""
        return _guarded(self.peek, name).dtype.kind in NUMBERS

    def values(self, name: str) -> Values:
        """Return a column in one of the kinds that `Values` allows."""
        return _of_one_kind(_guarded(self.read, name), name)


def _guarded(read: Callable[[str], Values], name: str) -> Values:
    """Read a column; whatever a table of another package raises is an InputError."""
    try:
        return read(name)
    except CoterieError:
        raise
    except Exception as error:
        raise InputError(
            f"column {name!r} cannot be read ({first_line(error)}): convert it to numbers or texts"
        ) from None


def open_columns(source: object, texts: Collection[str] = (), wanted: Collection[str] | None = None) -> Columns:
    """Return the columns of `source`. In a CSV file `texts` are never read as numbers; only `wanted` ones are read."""
    if isinstance(source, str | Path):
        return _file(Path(source), texts, wanted)
    if isinstance(source, Mapping):
        names = _distinct([str(name) for name in source])
        arrays = {
            name: as_array(values, f"column {name!r}") for name, values in zip(names, source.values(), strict=True)
        }
        rows = {len(values) if values.ndim == 1 else -1 for values in arrays.values()}
        if len(rows) > 1 or -1 in rows:
            raise InputError("the columns of a table must be one-dimensional and of the same length")
        return Columns(names, arrays.__getitem__, lambda name: arrays[name][:0])
    found: Any = source
    if hasattr(found, "collect"):
        raise InputError(f"expected a table in memory, got {type(source).__name__}: call collect() first")
    if hasattr(found, "column_names") and hasattr(found, "slice"):
        return _arrow(found)
    if hasattr(found, "columns") and hasattr(found, "__len__"):
        return _frame(found)
    raise InputError(f"expected a DataFrame, an Arrow table or a path to .csv or .parquet, got {type(source).__name__}")


def _frame(frame: Any) -> Columns:
    """pandas and polars: columns by name, each with to_numpy()."""
    names = _distinct([str(name) for name in frame.columns])
    original = dict(zip(names, frame.columns, strict=True))
    return Columns(
        names,
        lambda name: np.asarray(frame[original[name]].to_numpy()),
        lambda name: np.asarray(frame[original[name]][:0].to_numpy()),
    )


def _arrow(table: Any) -> Columns:
    empty = table.slice(0, 0)
    return Columns(
        _distinct(table.column_names),
        lambda name: np.asarray(table.column(name).to_numpy()),
        lambda name: np.asarray(empty.column(name).to_numpy()),
    )


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"the table has two columns named {shown(twice)}: give every column a name of its own")
    for name in names:
        refuse_unwritable(name, "a column is named")
    return tuple(names)


def shown(value: object) -> str:
    """Return a value for a message: in one line, and not longer than one."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def refuse_unwritable(text: str, what: str) -> None:
    """Raise InputError for text that no file can hold, such as half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} {text!a}, which is no valid text: it cannot be written as UTF-8") from None


def _file(path: Path, texts: Collection[str], wanted: Collection[str] | None) -> Columns:
    if not _is_file(path):
        raise InputError(f"{shown(str(path))[1:-1]} is no file: give the path of a .csv or .parquet file")
    if path.suffix.lower() == ".csv":
        return _csv(path, texts, wanted)
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    raise InputError(f"{path} is neither .csv nor .parquet: convert it, or load it and pass the DataFrame")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # such as a name that is too long
        return False


def _parquet(path: Path) -> Columns:
    try:
        parquet: Any = import_module("pyarrow.parquet")
    except ImportError:
        raise InputError(f"{path} needs pyarrow: pip install 'coterie[tables]', or give a .csv file") from None
    try:
        file = parquet.ParquetFile(path)
        empty = file.schema_arrow.empty_table()
    except Exception as error:  # a damaged file may break the reader in any way
        raise InputError(f"{path} is no readable Parquet file ({first_line(error)}): write it again") from None
    return Columns(
        _distinct(empty.column_names),
        lambda name: np.asarray(file.read(columns=[name]).column(name).to_numpy()),
        lambda name: np.asarray(empty.column(name).to_numpy()),
    )


# ---- CSV -----------------------------------------------------------------------------------------------------


def _csv(path: Path, texts: Collection[str], wanted: Collection[str] | None) -> Columns:
    """The names at once; the values, all in one go, when the first is asked for."""

    @cache
    def parsed() -> dict[str, Values]:
        with _readable(path):
            found, late = _parse(path, set(texts), wanted)
            # a column that began with numbers and turned out to hold texts: its numbers have lost their spelling
            return _parse(path, {*texts, *late}, wanted)[0] if late else found

    return Columns(_header(path), lambda name: parsed()[name], lambda name: parsed()[name][:0])


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no readable CSV file in UTF-8 ({first_line(error)}): save it again") from None


@contextmanager
def _lines(path: Path) -> Iterator[Iterator[list[str]]]:
    """The lines of a CSV file as lists of cells, the header first."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        delimiter = _delimiter(file.readline())
        file.seek(0)
        yield csv.reader(file, delimiter=delimiter)


def _header(path: Path) -> tuple[str, ...]:
    with _readable(path), _lines(path) as lines:
        names = next(lines, [])
    if not names:
        raise InputError(f"{path} is empty: its first line must name the columns")
    return _distinct([name.strip() for name in names])


def _delimiter(first: str) -> str:
    return max(DELIMITERS, key=first.count)


def _parse(path: Path, texts: set[str], wanted: Collection[str] | None) -> tuple[dict[str, Values], set[str]]:
    """Every wanted column, and the names of those that turned out to be texts after some rows of numbers."""
    names = _header(path)
    spelled = frozenset(texts)
    kept = {name: place for place, name in enumerate(names) if wanted is None or name in wanted}
    parts: dict[str, list[Values]] = {name: [] for name in kept}
    same: dict[str, str] = {}  # equal texts are one object, so that a column of them is small
    late: set[str] = set()
    for rows in _chunks(path, len(names)):
        for name, place in kept.items():
            cells = [row[place] for row in rows]
            numbers = None if name in texts else _numbers(cells)
            if numbers is None and name not in texts:
                texts.add(name)
                late |= {name} if parts[name] else set()
            parts[name].append(_texts(cells, same) if numbers is None else numbers)
    if not any(parts.values()):
        raise InputError(f"{path} has no rows below its first line: give at least two clients")
    if late:
        return {}, late
    whole = {name: np.concatenate(parts.pop(name)) for name in kept}
    return {name: values if name in spelled else _true_or_false(values) for name, values in whole.items()}, late


def _chunks(path: Path, width: int) -> Iterator[list[list[str]]]:
    with _lines(path) as lines:
        next(lines)
        while rows := list(islice(lines, CHUNK)):
            rows = [row for row in rows if row]  # a line with nothing on it is no row
            odd = next((row for row in rows if len(row) != width), None)
            if odd is not None:
                raise InputError(
                    f"{path}: a row has {len(odd)} values for {width} columns, it begins with {shown(odd[:3])}"
                )
            if rows:
                yield rows


def _numbers(cells: list[str]) -> Values | None:
    """None if one of them is no number."""
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        pass
    try:
        return np.array(["nan" if cell.strip().lower() in UNKNOWN else cell for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def _texts(cells: list[str], same: dict[str, str]) -> Values:
    found = np.empty(len(cells), dtype=object)
    found[:] = [same.setdefault(cell, cell) if cell else None for cell in cells]
    return found


def _true_or_false(values: Values) -> Values:
    """Texts that are all true or false as such."""
    if values.dtype.kind != "O" or not {str(v).lower() for v in set(values)} <= {"true", "false"}:
        return values
    return np.array([value.lower() == "true" for value in values])


# ---- kinds ---------------------------------------------------------------------------------------------------


def _of_one_kind(values: Values, name: str) -> Values:
    if values.dtype.kind in NUMBERS:
        return values
    if values.dtype.kind in "UT":
        values = values.astype(object)
    kinds = {_kind(value) for value in values} - {"missing"} if values.dtype.kind == "O" else {str(values.dtype)}
    if kinds <= {"text"}:
        found = np.array([None if _kind(value) == "missing" else str(value) for value in values], dtype=object)
        for text in set(found) - {None}:
            refuse_unwritable(text, f"column {name!r} holds")
        return found
    if kinds <= {"number", "bool"}:
        numbers = np.array([np.nan if _kind(value) == "missing" else _number(value) for value in values])
        return numbers.astype(bool) if kinds == {"bool"} and np.isfinite(numbers).all() else numbers
    raise InputError(f"column {name!r} holds {' and '.join(sorted(kinds))}: convert it to numbers or to texts first")


def _number(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number beyond the largest float
        return math.inf


def _kind(value: object) -> str:
    if isinstance(value, str):
        return "text"
    if value is None or type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, float) and value != value):
        return "missing"
    if isinstance(value, bool | np.bool_):
        return "bool"
    return "number" if isinstance(value, int | float | np.number | Decimal) else type(value).__name__
