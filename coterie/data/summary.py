"""Summaries of tables that add up, from which several parties agree on one schema without showing rows.

A summary holds names, counts, means, sums of squared deviations, extremes and the levels of text columns; no row. The
summary of two tables together follows from their summaries (`merge`). A party may hold one client or many.

A cell of text may be read in several ways: `1,5` is a number with a decimal comma, `03/04/2024` a date by two readings.
A summary keeps every reading that fits all cells of the column. The readings that fit the cells of all parties remain
when summaries are added.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.plain import from_plain, to_plain
from coterie.core.readings import DATE_READINGS, NUMBER_READINGS, READINGS, Reading, is_mark, number_text, odd_spelling
from coterie.core.schema import TRUTHS, Floats, Mask, Values, days
from coterie.errors import ConfigError, InputError, shown

Ints = npt.NDArray[np.int64]

MOST_LEVELS = 1000
"""Number of different texts of a column that a summary lists."""
MOST_CODES = 100
"""Number of different whole numbers of a column that a summary lists."""
LARGEST_COUNT = 2**53
"""Largest count in a summary; larger ones are not exact as floating-point numbers."""
REGISTERS = 1024
"""Registers of a sketch; its relative standard error is 1.04 / sqrt(REGISTERS), about 3 %."""


# ---- parts of a summary ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moments:
    """Moments of the numbers of a column by one reading; counts, means and deviations are those of training rows."""

    reading: str
    count: int
    """Number of training rows."""
    mean: float
    deviation: float
    """Standard deviation; 0 only where all numbers of training rows are the same."""
    low: float
    """Least number in all rows."""
    high: float
    low_rows: int = 0
    """Number of training rows that hold the smallest number."""
    high_rows: int = 0
    next_low: float = 0.0
    """Second smallest number; the smallest one if there is no other."""
    next_high: float = 0.0

    @classmethod
    def of(cls, reading: str, values: Floats, training: Ints) -> Moments:
        """Return the moments of finite numbers.

        Args:
            reading: Name of the reading.
            values: The numbers of all rows, or the different ones, (n,).
            training: How often each occurs in training rows, (n,).
        """
        low, high = float(values.min()), float(values.max())
        edges = (
            int(training[values == low].sum()),
            int(training[values == high].sum()),
            float(values.min(where=values > low, initial=high)),
            float(values.max(where=values < high, initial=low)),
        )
        used, times = values[training > 0], training[training > 0]
        if not len(used):
            return cls(reading, 0, 0.0, 0.0, low, high, *edges)
        count = int(times.sum())
        # the weighted mean of equal numbers is that number, whatever the rounding
        mean = min(max(float(np.dot(used / count, times)), float(used.min())), float(used.max()))
        size = float(
            np.abs(used - mean).max()
        )  # squares of very small and very large numbers leave the range of floats
        spread = math.sqrt(float(np.dot(((used - mean) / size) ** 2, times)) / count) if size else 0.0
        return cls(reading, count, mean, size * spread, low, high, *edges)

    def __add__(self, other: Moments) -> Moments:
        """Return the moments of both parts (Chan, Golub and LeVeque 1979)."""
        count = self.count + other.count
        mine, theirs = (self.count / count, other.count / count) if count else (0.0, 0.0)
        gap = other.mean - self.mean
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Moments(
            self.reading,
            count,
            self.mean + gap * theirs if self.count else other.mean,
            math.hypot(
                math.sqrt(mine) * self.deviation, math.sqrt(theirs) * other.deviation, gap * math.sqrt(mine * theirs)
            ),
            low,
            high,
            sum(part.low_rows for part in (self, other) if part.low == low),
            sum(part.high_rows for part in (self, other) if part.high == high),
            min((value for part in (self, other) for value in (part.low, part.next_low) if value > low), default=low),
            max(
                (value for part in (self, other) for value in (part.high, part.next_high) if value < high),
                default=high,
            ),
        )


@dataclass(frozen=True)
class Level:
    """A text, or a whole number as text, that a column holds."""

    text: str
    rows: int
    training: int
    """Number of training rows that hold it."""
    clients: int = 0
    """Number of clients with such rows; 0 if it is unknown, because the column has too many levels."""


Levels = tuple[Level, ...] | None
"""Levels in sorted order; None: there are too many to list."""


def _split(levels: tuple[Level, ...], least: int, longest: int) -> tuple[tuple[Level, ...], tuple[Level, ...]]:
    """Return the levels that are named, and those that are only counted."""
    named = tuple(
        level for level in levels if level.rows >= least and len(level.text) <= longest and level.text.isprintable()
    )
    return named, tuple(level for level in levels if level not in named)


def _merged_levels(one: Levels, other: Levels, most: int) -> Levels:
    if one is None or other is None:
        return None
    found = {level.text: level for level in one}
    for level in other:
        mine = found.get(level.text)
        if mine is not None:
            clients = mine.clients + level.clients if mine.clients and level.clients else 0
            level = Level(level.text, mine.rows + level.rows, mine.training + level.training, clients)
        found[level.text] = level
    return tuple(found[text] for text in sorted(found)) if len(found) <= most else None


@dataclass(frozen=True)
class Unnamed:
    """Levels that a party does not name, since few of its rows hold them."""

    levels: int = 0
    """Number of levels; one that two parties leave unnamed counts twice."""
    rows: int = 0
    training: int = 0
    """Number of training rows that hold one of them."""

    def __add__(self, other: Unnamed) -> Unnamed:
        return Unnamed(self.levels + other.levels, self.rows + other.rows, self.training + other.training)


@dataclass(frozen=True)
class Cells:
    """The cells of one kind in a column: numbers, or dates."""

    rows: int = 0
    training: int = 0
    readings: tuple[Moments, ...] = ()
    """One for each reading that fits all of these cells."""

    def __add__(self, other: Cells) -> Cells:
        if not self.rows or not other.rows:
            return other if not self.rows else self
        theirs = {moments.reading: moments for moments in other.readings}
        both = tuple(mine + theirs[mine.reading] for mine in self.readings if mine.reading in theirs)
        return Cells(self.rows + other.rows, self.training + other.training, both)

    def reading(self, name: str) -> Moments | None:
        """Return the moments by the reading of this name; None if it does not fit all cells."""
        return next((moments for moments in self.readings if moments.reading == name), None)


@dataclass(frozen=True)
class ColumnSummary:
    """Summary of a column of one party: counts, means and levels, no row."""

    name: str
    rows: int
    training: int
    """Number of training rows."""
    missing: int = 0
    training_missing: int = 0
    infinite: int = 0
    """Number of infinite numbers."""
    numbers: Cells = Cells()
    dates: Cells = Cells()
    texts: tuple[Level, ...] | None = ()
    """Texts that are neither numbers nor dates, and true/false; None: more than MOST_LEVELS."""
    marks: tuple[Level, ...] | None = ()
    """Texts such as NA, which mean a missing value in a column of numbers, dates or true/false."""
    codes: tuple[Level, ...] | None = ()
    """Numbers as texts, if all are whole; None: more than MOST_CODES, or some are not whole."""
    whole: bool = True
    """Whether all numbers are whole."""
    sketch: str = ""
    """Registers from which the number of different whole numbers is estimated, as hexadecimal digits; empty where
    `codes` lists them, and where some are not whole."""
    constant: bool = True
    """Whether the column is the same in all rows of each client."""
    unreadable: str = ""
    """Reason why the column of a party cannot be read, such as a column of lists; empty if it can."""
    unnamed: Unnamed = Unnamed()
    """Counts of the levels of a column of texts that are not listed."""
    empty_clients: int = 0
    """Number of clients without any value."""

    def __add__(self, other: ColumnSummary) -> ColumnSummary:
        """Return the summary of both parts."""
        whole = self.whole and other.whole
        codes = _merged_levels(self.codes, other.codes, MOST_CODES)
        return ColumnSummary(
            self.name,
            self.rows + other.rows,
            self.training + other.training,
            self.missing + other.missing,
            self.training_missing + other.training_missing,
            self.infinite + other.infinite,
            self.numbers + other.numbers,
            self.dates + other.dates,
            _merged_levels(self.texts, other.texts, MOST_LEVELS),
            _merged_levels(self.marks, other.marks, MOST_LEVELS),
            codes,
            whole,
            _merged_sketches(self._sketch(), other._sketch()) if whole and codes is None else "",
            self.constant and other.constant,
            self.unreadable or other.unreadable,
            self.unnamed + other.unnamed,
            self.empty_clients + other.empty_clients,
        )

    def _sketch(self) -> str:
        return self.sketch if self.codes is None else _sketch(float(level.text) for level in self.codes)

    @property
    def present(self) -> int:
        """Number of rows with a value."""
        return self.rows - self.missing

    @property
    def has_texts(self) -> bool:
        """Whether some cells are neither numbers, dates nor marks of missing values."""
        return self.texts != () or self.unnamed.rows > 0

    def naming(self, least: int, longest: int) -> ColumnSummary:
        """Return the summary without the names of rare levels, which are only counted.

        Args:
            least: Smallest number of rows with a level that is named. True and false are always named, and so are
                whole numbers in a column without texts, whose size counts.
            longest: Largest number of characters of a level that is named.
        """
        if not self.texts or {level.text.lower() for level in self.texts} <= TRUTHS.keys():
            return self
        texts, few_texts = _split(self.texts, least, longest)
        codes, few_codes = _split(self.codes or (), least, longest)
        few = (*few_texts, *few_codes)
        unnamed = Unnamed(len(few), sum(level.rows for level in few), sum(level.training for level in few))
        return replace(self, texts=texts, codes=None if self.codes is None else codes, unnamed=self.unnamed + unnamed)

    def distinct_numbers(self) -> float | None:
        """Return the number of different whole numbers, estimated where there are many; None if some are not whole."""
        if self.codes is not None:
            return len(self.codes)
        return _estimated(self.sketch) if self.whole and self.sketch else None


@dataclass(frozen=True)
class TableSummary:
    """Summary of the table of one party, or of the tables of all parties together."""

    clients: int
    """Number of clients."""
    rows: int
    """Number of rows with a target."""
    without_target: int
    """Number of rows that are left out since they have no target."""
    columns: tuple[ColumnSummary, ...]
    """In the order of the table; the target is one of them, the client column is not."""

    def column(self, name: str) -> ColumnSummary:
        """Return the summary of a column."""
        return next(column for column in self.columns if column.name == name)

    def __add__(self, other: TableSummary) -> TableSummary:
        mine, theirs = [c.name for c in self.columns], {c.name: c for c in other.columns}
        odd = next((name for name in mine if name not in theirs), None) or next(
            (name for name in theirs if name not in mine), None
        )
        if odd is not None:
            raise InputError(f"column {shown(odd)} is in the table of one party only: give all tables the same columns")
        return TableSummary(
            self.clients + other.clients,
            self.rows + other.rows,
            self.without_target + other.without_target,
            tuple(column + theirs[column.name] for column in self.columns),
        )

    def plain(self) -> dict[str, Any]:
        """Return the summary as values that JSON can hold."""
        plain = to_plain(self)
        assert isinstance(plain, dict)
        return plain

    @classmethod
    def of_plain(cls, plain: object) -> TableSummary:
        """Return the summary with this plain form.

        Raises:
            InputError: if it is no summary, or one that no table has.
        """
        try:
            found = from_plain(cls, plain, "summary")
        except ConfigError as error:
            raise InputError(str(error)) from None
        assert isinstance(found, TableSummary)
        for column in found.columns:
            _check(column)
        if (
            len({column.name for column in found.columns}) != len(found.columns)
            or min(found.clients, found.rows, found.without_target) < 0
        ):
            raise InputError("a summary must name every column once, with counts of at least 0")
        return found


def merge(summaries: Iterable[TableSummary]) -> TableSummary:
    """Return the summary of all tables together.

    Raises:
        InputError: if the tables have different columns, or there is no table.
    """
    parts = list(summaries)
    if not parts:
        raise InputError("there is no summary to merge: give that of at least one table")
    return reduce(lambda one, other: one + other, parts)


def _check(column: ColumnSummary) -> None:
    """Raise InputError for values that no column has."""
    for holds, problem in CHECKS:
        if not holds(column):
            raise InputError(f"the summary of column {shown(column.name)} {problem}")


def _moments(column: ColumnSummary) -> tuple[Moments, ...]:
    return (*column.numbers.readings, *column.dates.readings)


def _counts(column: ColumnSummary) -> Iterator[int]:
    """Yield every count of a summary."""
    yield from (column.rows, column.training, column.missing, column.training_missing, column.infinite)
    yield from (column.numbers.rows, column.dates.rows, column.empty_clients)
    yield from (column.unnamed.levels, column.unnamed.rows, column.unnamed.training)
    for moments in _moments(column):
        yield from (moments.count, moments.low_rows, moments.high_rows)
    for levels in (column.texts, column.marks, column.codes):
        for level in levels or ():
            yield from (level.rows, level.training, level.clients)


def _counts_are_possible(column: ColumnSummary) -> bool:
    return all(0 <= count <= LARGEST_COUNT for count in _counts(column))


def _moments_are_possible(column: ColumnSummary) -> bool:
    return all(
        moments.reading in READINGS
        and moments.deviation >= 0
        and all(map(math.isfinite, (moments.mean, moments.deviation)))
        and all(map(math.isfinite, (moments.low, moments.high, moments.next_low, moments.next_high)))
        for moments in _moments(column)
    )


def _levels_are_few(column: ColumnSummary) -> bool:
    return len(column.texts or ()) <= MOST_LEVELS and len(column.codes or ()) <= MOST_CODES


def _sketch_is_valid(column: ColumnSummary) -> bool:
    return len(column.sketch) in (0, 2 * REGISTERS) and set(column.sketch) <= set("0123456789abcdef")


def _codes_are_numbers(column: ColumnSummary) -> bool:
    return all(level.text == number_text(float(level.text)) for level in column.codes or ())


CHECKS: tuple[tuple[Callable[[ColumnSummary], bool], str], ...] = (
    (_counts_are_possible, "has figures that no table has"),
    (_moments_are_possible, "has figures that no table has"),
    (_levels_are_few, "lists too many levels"),
    (_sketch_is_valid, "has no valid sketch"),
    (_codes_are_numbers, "lists codes that are no numbers"),
)
"""Properties of every summary of a column, each with the end of the message for a summary without it."""


# ---- the summary of one column ---------------------------------------------------------------------------------------


def summarize(name: str, values: Values, training: Mask, owner: Ints) -> ColumnSummary:
    """Return the summary of a column of one party's table.

    Args:
        name: Name of the column.
        values: The cells, (n,).
        training: Which rows are used for training, (n,).
        owner: Position of each row's client, (n,).
    """
    missing = _is_missing(values)
    empty = ColumnSummary(
        name,
        len(values),
        int(training.sum()),
        constant=_is_constant(values[~missing], owner[~missing]),
        empty_clients=len(np.unique(owner)) - len(np.unique(owner[~missing])),
    )
    if values.dtype.kind == "O":
        return _with_clients(_of_texts(empty, values, training), values, owner)
    if values.dtype.kind == "b":
        texts = values.astype(str)
        return _with_clients(replace(empty, texts=_levels(texts, training)), texts, owner)
    if values.dtype.kind == "M":
        return _of_dates(empty, values, training)
    return _with_clients(_of_numbers(empty, values.astype(np.float64), training), values, owner)


def _of_numbers(empty: ColumnSummary, values: Floats, training: Mask) -> ColumnSummary:
    """Return the summary of numbers that were never texts, which fit every reading."""
    missing, infinite = np.isnan(values), np.isinf(values)
    kept = ~missing & ~infinite
    found = replace(
        empty,
        missing=int(missing.sum()),
        training_missing=int((missing & training).sum()),
        infinite=int(infinite.sum()),
    )
    return _with_numbers(found, values[kept], training[kept].astype(np.int64), None)


def _with_numbers(found: ColumnSummary, values: Floats, training: Ints, rows: Ints | None) -> ColumnSummary:
    """Add finite numbers (n,); `rows` and `training` say how often each occurs, None for once."""
    if not len(values):
        return found
    once = Moments.of("", values, training)
    rows = np.ones(len(values), dtype=np.int64) if rows is None else rows
    cells = Cells(int(rows.sum()), once.count, tuple(replace(once, reading=r.name) for r in NUMBER_READINGS))
    return replace(_with_codes(found, values, training, rows), numbers=cells)


def _with_codes(found: ColumnSummary, values: Floats, training: Ints, rows: Ints) -> ColumnSummary:
    """List whole numbers, or sketch how many different ones there are."""
    if not bool(((values == np.round(values)) & (np.abs(values) < 2**53)).all()):
        return replace(found, whole=False, codes=None)
    different, where = np.unique(values, return_inverse=True)
    if len(different) > MOST_CODES:
        return replace(found, codes=None, sketch=_sketch(different))
    counts = (np.bincount(where, weights).astype(np.int64).tolist() for weights in (rows, training))
    codes = [Level(number_text(v), n, t) for v, n, t in zip(different.tolist(), *counts, strict=True)]
    return replace(found, codes=tuple(sorted(codes, key=lambda level: level.text)))


def _of_dates(empty: ColumnSummary, values: Values, training: Mask) -> ColumnSummary:
    missing = np.isnat(values)
    found = replace(empty, missing=int(missing.sum()), training_missing=int((missing & training).sum()))
    if missing.all():
        return found
    once = Moments.of("", days(values[~missing]), training[~missing].astype(np.int64))
    cells = Cells(int((~missing).sum()), once.count, tuple(replace(once, reading=r.name) for r in DATE_READINGS))
    return replace(found, dates=cells)


def _of_texts(empty: ColumnSummary, values: Values, training: Mask) -> ColumnSummary:
    """Return the summary of texts, each different one of which is read once."""
    rows = Counter(values.tolist())
    trained = Counter(values[training].tolist())
    kinds: dict[str, list[str]] = {"marks": [], "numbers": [], "dates": [], "texts": []}
    for text in rows:
        if text is not None:
            kinds[_kind_of(text)].append(text)
    found = replace(
        empty,
        missing=rows[None],
        training_missing=trained[None],
        texts=_listed(kinds["texts"], rows, trained, MOST_LEVELS),
        marks=_listed(kinds["marks"], rows, trained, MOST_LEVELS),
        dates=_cells(kinds["dates"], rows, trained, DATE_READINGS),
    )
    if found.texts is None and not kinds["numbers"] + kinds["dates"]:
        spelled = odd_spelling(kinds["texts"])
        found = replace(found, unreadable=f"texts that look like {spelled}" if spelled else "")
    infinite = [text for text in kinds["numbers"] if text.lower().lstrip("+-").startswith("inf")]
    finite = [text for text in kinds["numbers"] if text not in set(infinite)] if infinite else kinds["numbers"]
    found = replace(found, infinite=sum(rows[text] for text in infinite))
    if not finite:
        return found
    numbers = _cells(finite, rows, trained, NUMBER_READINGS)
    plain = numbers.reading(NUMBER_READINGS[0].name)
    if plain is None:
        return replace(found, numbers=numbers, whole=False, codes=None)
    counts = (np.array([count[text] for text in finite], dtype=np.int64) for count in (trained, rows))
    return replace(_with_codes(found, np.array(finite, dtype=np.float64), *counts), numbers=numbers)


def _kind_of(text: str) -> str:
    """Name of the field of a summary that counts this text."""
    if is_mark(text):
        return "marks"
    if text[:1].isdigit() or text[:1] in "+-.iI":
        if any(reading.read(text) is not None for reading in NUMBER_READINGS):
            return "numbers"
        if any(reading.read(text) is not None for reading in DATE_READINGS):
            return "dates"
    return "texts"


def _cells(
    texts: Sequence[str], rows: Mapping[Any, int], trained: Mapping[Any, int], readings: Sequence[Reading]
) -> Cells:
    """Cells of these texts with the moments by every reading that fits all of them."""
    if not texts:
        return Cells()
    training = np.array([trained[text] for text in texts], dtype=np.int64)
    fitting = []
    for reading in readings:
        values = _read_all(reading.read, texts)
        if values is not None:
            fitting.append(Moments.of(reading.name, values, training))
    return Cells(sum(rows[text] for text in texts), int(training.sum()), tuple(fitting))


def _read_all(read: Callable[[str], float | None], texts: Sequence[str]) -> Floats | None:
    """Return the values of all texts; None as soon as one does not fit."""
    values = np.empty(len(texts))
    for at, text in enumerate(texts):
        value = read(text)
        if value is None:
            return None
        values[at] = value
    return values


def _levels(texts: Values, training: Mask) -> Levels:
    rows, trained = Counter(texts.tolist()), Counter(texts[training].tolist())
    return _listed(list(rows), rows, trained, MOST_LEVELS)


def _listed(texts: Sequence[str], rows: Mapping[Any, int], trained: Mapping[Any, int], most: int) -> Levels:
    if len(texts) > most:
        return None
    return tuple(Level(text, rows[text], trained[text]) for text in sorted(texts))


def _is_missing(values: Values) -> Mask:
    if values.dtype.kind == "O":
        return np.array([cell is None for cell in values], dtype=bool)
    return np.asarray(np.isnat(values) if values.dtype.kind == "M" else values != values)


def _is_constant(values: Values, owner: Ints) -> bool:
    """Whether no client has two different values."""
    order = np.argsort(owner, kind="stable")
    whose, cells = owner[order], values[order]
    return not bool(((whose[1:] == whose[:-1]) & (cells[1:] != cells[:-1])).any())


def _with_clients(found: ColumnSummary, values: Values, owner: Ints) -> ColumnSummary:
    """Count the clients that hold each level, in a column of few levels."""
    texts, codes = found.texts or (), found.codes or ()
    if not 0 < len(texts) + len(codes) <= MOST_CODES:
        return found
    held = Counter(value for _, value in set(zip(owner.tolist(), values.tolist(), strict=True)))
    of_numbers: Counter[float] = Counter()
    if codes:
        for value, clients in held.items():
            number = _as_number(value)
            if number is not None:
                of_numbers[number] += clients  # a client that writes one number in two ways counts twice
    return replace(
        found,
        texts=found.texts and tuple(replace(level, clients=held[level.text]) for level in texts),
        codes=found.codes and tuple(replace(level, clients=of_numbers[float(level.text)]) for level in codes),
    )


def _as_number(value: object) -> float | None:
    """Return a cell as a number; None if it is a text of another kind, or missing."""
    if isinstance(value, str):
        return NUMBER_READINGS[0].read(value)
    return None if value is None else float(value)  # type: ignore[arg-type]


# ---- number of different values --------------------------------------------------------------------------------------


def _sketch(numbers: Iterable[float]) -> str:
    """Return the registers of a HyperLogLog sketch (Flajolet et al. 2007) of different numbers."""
    values = np.fromiter(numbers, dtype=np.float64) + 0.0  # -0.0 and 0.0 are one number
    hashed = values.view(np.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):  # the mixing steps of SplitMix64
        hashed = (hashed ^ (hashed >> np.uint64(shift))) * np.uint64(factor)
    hashed ^= hashed >> np.uint64(31)
    register, rest = (hashed % np.uint64(REGISTERS)).astype(np.int64), hashed >> np.uint64(10)
    rank = 54 - np.floor(np.log2(np.maximum(rest, 1).astype(np.float64))).astype(np.int64)
    found = np.zeros(REGISTERS, dtype=np.uint8)
    np.maximum.at(found, register, rank.clip(0, 55).astype(np.uint8))
    return found.tobytes().hex()


def _merged_sketches(one: str, other: str) -> str:
    parts = [np.frombuffer(bytes.fromhex(text), dtype=np.uint8) for text in (one, other) if text]
    return np.maximum(parts[0], parts[-1]).tobytes().hex() if parts else ""


def _estimated(sketch: str) -> float:
    """Return the estimated number of different values."""
    registers = np.frombuffer(bytes.fromhex(sketch), dtype=np.uint8).astype(np.float64)
    raw = 0.7213 / (1 + 1.079 / REGISTERS) * REGISTERS**2 / float((2.0**-registers).sum())
    empty = int((registers == 0).sum())
    return REGISTERS * math.log(REGISTERS / empty) if raw <= 2.5 * REGISTERS and empty else raw
