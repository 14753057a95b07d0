"""Columns of a table in any form: a frame, an Arrow table, a dict of arrays, a CSV or a Parquet file.

Tables of pandas, polars and pyarrow are recognised by their methods, so that none of these packages has to be
installed.
"""

from __future__ import annotations

import csv
import datetime
import math
import re
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

from coterie.core.arrays import as_array, first_line
from coterie.core.readings import DATE_READINGS, MISSING_MARKS, NUMBER_READINGS, PLAIN, fits, number_text
from coterie.core.schema import Values
from coterie.data.dataset_rows import arrow_table, is_dataset
from coterie.errors import CoterieError, InputError

READY = "fiubM"
"""Kinds of arrays that are columns as they are: numbers, true/false, dates."""
DELIMITERS = ",;\t|"
SAMPLED = 50
"""Lines of a CSV file from which the delimiter is found."""
SEPARATOR = re.compile(r"\"?sep=.\"?", re.IGNORECASE)
"""First line by which some spreadsheets name the mark between cells."""
SUFFIXES = (".csv", ".tsv", ".parquet")
"""Names of files that are tables end with one of these."""
LONGEST_SHOWN = 60
"""Characters of a cell that a message shows."""
LONGEST_WHOLE = 2**53
"""Size from which whole numbers are not exact as floating-point numbers."""
CHUNK = 10_000
"""Rows of a CSV file that are held as texts at a time."""


@dataclass(frozen=True)
class Columns:
    """The columns of a table; a column is read when it is asked for, and not kept here."""

    names: tuple[str, ...]
    read: Callable[[str], Values]
    """Function that returns a column, (N,), of any type that NumPy knows."""
    categorical: frozenset[str] = frozenset()
    """Names of the columns that are categorical although their levels are numbers."""

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


def is_table(source: object) -> bool:
    """Return whether a value may be a table: a path, a dict of columns, or a frame."""
    return isinstance(source, str | Path | Mapping) or hasattr(source, "columns") or hasattr(source, "column_names")


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
        return Columns(names, arrays.__getitem__)
    found: Any = source
    if hasattr(found, "collect"):
        raise InputError(f"expected a table in memory, got {type(source).__name__}: call collect() first")
    if is_dataset(found):
        return _arrow(arrow_table(found))
    if hasattr(found, "column_names") and hasattr(found, "slice"):
        return _arrow(found)
    if hasattr(found, "columns") and hasattr(found, "__len__"):
        return _frame(found)
    raise InputError(
        f"expected a DataFrame, an Arrow table, a Dataset or a path to .csv or .parquet, got {type(source).__name__}"
    )


def _frame(frame: Any) -> Columns:
    """pandas and polars: columns by name, each with to_numpy()."""
    names = _distinct([str(name) for name in frame.columns])
    original = dict(zip(names, frame.columns, strict=True))
    kinds = {name: getattr(frame[original[name]], "dtype", None) for name in names}
    categorical = frozenset(name for name, kind in kinds.items() if _has_number_levels(kind, "categories"))
    return Columns(names, lambda name: np.asarray(frame[original[name]].to_numpy()), categorical)


def _arrow(table: Any) -> Columns:
    names = _distinct(table.column_names)
    categorical = frozenset(name for name in names if _has_number_levels(table.schema.field(name).type, "value_type"))
    return Columns(names, lambda name: np.asarray(table.column(name).to_numpy()), categorical)


def _has_number_levels(kind: object, levels: str) -> bool:
    """Return whether the type of a column of pandas or pyarrow is categorical with numbers as levels."""
    found = str(getattr(getattr(kind, levels, None), "dtype", getattr(kind, levels, "")))
    return str(kind).startswith(("category", "dictionary")) and found.startswith(("int", "uint", "float", "double"))


def _distinct(names: Sequence[str]) -> tuple[str, ...]:
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise InputError(f"the table has two columns named {shown(twice)}: give every column a different name")
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
        raise InputError(f"{shown(str(path))[1:-1]} is no file: give the path of a .csv, .tsv or .parquet file")
    if path.suffix.lower() in (".csv", ".tsv"):
        return _csv(path, texts, wanted)
    if path.suffix.lower() == ".parquet":
        return _parquet(path)
    raise InputError(f"{path} is neither .csv, .tsv nor .parquet: convert it, or load it and pass the DataFrame")


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
    )


# ---- CSV -----------------------------------------------------------------------------------------------------


def _csv(path: Path, texts: Collection[str], wanted: Collection[str] | None) -> Columns:
    """Return the names at once; the values, all in one go, when the first is asked for."""
    with _readable(path):
        delimiter = _delimiter(path)
    names = _header(path, delimiter)

    @cache
    def parsed() -> dict[str, Values]:
        with _readable(path):
            found, late = _parse(path, delimiter, set(texts), wanted)
            # a column that began with numbers and turned out to hold texts: its numbers have lost their spelling
            return _parse(path, delimiter, {*texts, *late}, wanted)[0] if late else found

    return Columns(names, lambda name: parsed()[name])


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} is no readable CSV file in UTF-8 ({first_line(error)}): save it again") from None


@contextmanager
def _lines(path: Path, delimiter: str) -> Iterator[Iterator[list[str]]]:
    """Yield the lines of a CSV file as lists of cells, the header first."""
    with open(path, newline="", encoding="utf-8-sig") as file:
        if SEPARATOR.fullmatch(file.readline().strip()) is None:
            file.seek(0)
        yield csv.reader(file, delimiter=delimiter)


def _header(path: Path, delimiter: str) -> tuple[str, ...]:
    with _readable(path), _lines(path, delimiter) as lines:
        names = next(lines, [])
        first = next((row for row in lines if row), [])
    if not names:
        raise InputError(f"{path} is empty: its first line must name the columns")
    if all(PLAIN.read(name.strip()) is not None for name in names):
        raise InputError(f"the first line of {path} holds numbers only: it must name the columns")
    _refuse_values_as_names(path, names, first)
    return _distinct([name.strip() or f"column {place}" for place, name in enumerate(names, start=1)])


def _refuse_values_as_names(path: Path, names: list[str], first: list[str]) -> None:
    """Raise InputError if the first line is of the same form as the second, and holds a date or a number with decimals.

    Whole numbers may be names, such as years.
    """
    kinds = [_value_kind(name) for name in names]
    if {"date", "decimal"} & set(kinds) and all(
        bool(kind) == bool(_value_kind(cell)) for kind, cell in zip(kinds, first, strict=False)
    ):
        example = next(name for name, kind in zip(names, kinds, strict=True) if kind in ("date", "decimal"))
        raise InputError(
            f"the first line of {path} looks like a row of values, such as {shown(example)}: it must name the columns"
        )


def _value_kind(cell: str) -> str:
    """Return whether a cell is a `decimal` number, a `whole` one, or a `date`; empty for another text."""
    text = cell.strip()
    numbers = {reading.read(text) for reading in NUMBER_READINGS} - {None}
    if numbers:
        return "whole" if all(float(number).is_integer() for number in numbers if number is not None) else "decimal"
    return "date" if fits(text, DATE_READINGS) else ""


def _delimiter(path: Path) -> str:
    """Return the mark between cells: the one that divides the first lines into the same number of cells."""
    widths: dict[str, set[int]] = {}
    for mark in DELIMITERS:
        with _lines(path, mark) as lines:
            widths[mark] = {len(row) for row in islice(lines, SAMPLED) if row}
    fitting = [mark for mark, found in widths.items() if len(found) == 1 and found != {1}]
    if len(fitting) > 1:
        raise InputError(
            f"the cells of {path} may be separated by {' or '.join(map(repr, fitting))}: put cells that contain the "
            "other mark in quotation marks"
        )
    if fitting:
        return fitting[0]
    with open(path, encoding="utf-8-sig") as file:
        first = next((line for line in file if SEPARATOR.fullmatch(line.strip()) is None), "")
    return max(DELIMITERS, key=first.count)


def _parse(
    path: Path, delimiter: str, texts: set[str], wanted: Collection[str] | None
) -> tuple[dict[str, Values], set[str]]:
    """Return every wanted column, and the names of those that turned out to be texts after some rows of numbers."""
    names = _header(path, delimiter)
    kept = {name: place for place, name in enumerate(names) if wanted is None or name in wanted}
    parts: dict[str, list[Values]] = {name: [] for name in kept}
    same: dict[str, str] = {}  # equal texts are one object, so that a column of them is small
    late: set[str] = set()
    for rows in _chunks(path, delimiter, len(names)):
        for name, place in kept.items():
            cells = [row[place].strip() for row in rows]
            numbers = None if name in texts else _numbers(cells)
            if numbers is None and name not in texts:
                texts.add(name)
                late |= {name} if parts[name] else set()
            parts[name].append(_texts(cells, same) if numbers is None else numbers)
    if not any(parts.values()):
        raise InputError(f"{path} has no rows below its first line: give at least two clients")
    return ({}, late) if late else ({name: np.concatenate(parts.pop(name)) for name in kept}, late)


def _chunks(path: Path, delimiter: str, width: int) -> Iterator[list[list[str]]]:
    with _lines(path, delimiter) as lines:
        header = next(lines)
        while rows := list(islice(lines, CHUNK)):
            rows = [row for row in rows if row]  # a line with nothing on it is no row
            for row in rows:
                _refuse_row(path, row, width, delimiter)
            if header in rows:
                raise InputError(
                    f"{path}: a row repeats the names of the columns, as in a file that was joined from several: "
                    "remove it"
                )
            if rows:
                yield rows


def _refuse_row(path: Path, row: list[str], width: int, delimiter: str) -> None:
    """Raise InputError for a row with too few or too many cells, or with a cell that has swallowed other rows."""
    if len(row) != width:
        raise InputError(f"{path}: a row has {len(row)} values for {width} columns, it begins with {shown(row[:3])}")
    for place, cell in enumerate(row):
        if ("\n" in cell or "\r" in cell) and _holds_rows(cell, place, width, delimiter):
            raise InputError(
                f"{path}: a cell holds whole rows, it begins with {shown(cell)}: a quotation mark is probably missing "
                "or left over; double the marks inside cells"
            )


def _holds_rows(cell: str, place: int, width: int, delimiter: str) -> bool:
    """Return whether a cell is the end of a row, perhaps further rows, and the beginning of a row.

    A quotation mark that opens a cell and is never closed makes all rows up to the next mark one cell.
    """
    first, *others = (line.count(delimiter) for line in cell.splitlines())
    *inner, last = others or [-1]
    return first == width - 1 - place and last in (place, width - 1) and all(count == width - 1 for count in inner)


CODES = re.compile(r"^[+-]?0\d|_", re.MULTILINE)
"""Cells that Python would read as numbers and that are none: codes that begin with 0."""
GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+")
"""A number that may have a point between thousands."""


def _numbers(cells: list[str]) -> Values | None:
    """Plain numbers; None if one of them is no number, or if its spelling matters."""
    joined = "\n".join(cells)
    if not joined.isascii() or CODES.search(joined):
        return None
    pointed = next((cell for cell in cells if "." in cell), "")
    if GROUPED.fullmatch(pointed) and all(GROUPED.fullmatch(cell) for cell in cells if "." in cell):
        return None
    try:
        return np.array(cells, dtype=np.float64)
    except ValueError:
        pass
    unknown = {"", *MISSING_MARKS}
    try:
        return np.array(["nan" if cell.lower() in unknown else cell for cell in cells], dtype=np.float64)
    except ValueError:
        return None


def _texts(cells: list[str], same: dict[str, str]) -> Values:
    found = np.empty(len(cells), dtype=object)
    found[:] = [same.setdefault(cell, cell) if cell else None for cell in cells]
    return found


# ---- kinds ---------------------------------------------------------------------------------------------------


def _of_one_kind(values: Values, name: str) -> Values:
    if values.dtype.kind in READY:
        return values
    if values.dtype.kind in "UT":
        values = values.astype(object)
    kinds = {_kind(value) for value in values} - {"missing"} if values.dtype.kind == "O" else {str(values.dtype)}
    numbers = bool(kinds) and kinds <= {"number", "bool"} and kinds != {"bool"}
    if numbers and not any(_is_long(value) for value in values):
        return np.array([np.nan if _kind(value) == "missing" else _number(value) for value in values])
    if kinds == {"date"}:
        return np.array([_date(value) for value in values], dtype="datetime64[us]")
    if not kinds <= {"text", "number", "bool"}:
        raise InputError(
            f"column {name!r} holds {' and '.join(sorted(kinds))}: convert it to numbers or to texts first"
        )
    # true and false with missing values, numbers among texts, and whole numbers whose last digits a float would lose
    found = np.array([None if _kind(value) == "missing" else _text(value) for value in values], dtype=object)
    for text in set(found) - {None}:
        refuse_unwritable(text, f"column {name!r} holds")
    return found


def _is_long(value: object) -> bool:
    """Return whether a number is exact and would not be as a floating-point number."""
    return isinstance(value, int | np.integer | Decimal) and abs(_number(value)) >= LONGEST_WHOLE


def _text(value: object) -> str | None:
    """Return a cell as text without spaces around it; None if nothing is left."""
    if isinstance(value, float | np.floating):
        return number_text(float(value))
    return str(value).strip() or None


def _date(value: Any) -> np.datetime64:
    """Return a date of Python or pandas without its offset from UTC."""
    if _kind(value) == "missing":
        return np.datetime64("NaT", "us")
    if isinstance(value, datetime.datetime) and value.tzinfo is not None:
        value = value.astimezone(datetime.UTC).replace(tzinfo=None)
    return np.datetime64(value, "us")


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
    if isinstance(value, datetime.date | np.datetime64):
        return "date"
    return "number" if isinstance(value, int | float | np.number | Decimal) else type(value).__name__
