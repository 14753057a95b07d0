"""Formats of numbers and dates in text columns.

A reading converts a text of one format to a number. All cells of a column must have the same format: a cell `1,5` shows
that the column has decimal commas, and a cell `31/12/2024` that the day comes first.
"""

from __future__ import annotations

import math
import re
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

MISSING_MARKS = frozenset({"na", "n/a", "n.a.", "#n/a", "nan", "null", "none", "?", "-", "--", "."})
"""Texts, in lower case, that mark missing values in columns of numbers, dates or true/false."""
MISSING_WORDS = MISSING_MARKS | {
    *("unknown", "unk", "missing", "not available", "not applicable", "nd", "n.d.", "tbd", "undefined", "<na>"),
    *("unbekannt", "k.a.", "k. a.", "keine angabe", "inconnu", "desconocido", "sconosciuto"),
    *("#value!", "#div/0!", "#ref!", "#name?", "#num!", "#null!"),
}
"""Texts, in lower case, that probably mark missing values, and so are suspicious as names of classes or clients."""
SECONDS_A_DAY = 86_400
_EPOCH = datetime(1970, 1, 1)
_WHOLE = r"(?!0\d)\d+"
_EXPONENT = r"(?:[eE][+-]?\d+)?"
_TIME = r"(?:[T ]+(?P<hour>\d{1,2}):(?P<minute>\d{2})(?::(?P<second>\d{2})(?:\.\d+)?)?)?"


class Reading(ABC):
    """A format of numbers or dates."""

    name: str
    """Name in schemas and summaries."""
    example: str
    """Example of a cell in this format, for messages."""

    @abstractmethod
    def read(self, text: str) -> float | None:
        """Return the value of a cell, given without surrounding spaces; None if the cell has another format."""


@dataclass(frozen=True)
class NumberReading(Reading):
    """Numbers with a decimal separator and, optionally, a thousands separator.

    An integer with leading zeros, such as 007, is treated as a code, not as a number.
    """

    name: str
    example: str
    pattern: re.Pattern[str]
    thousands: str = ""
    decimal: str = "."

    def read(self, text: str) -> float | None:
        if self.pattern.fullmatch(text) is None:
            return _infinite(text)
        value = float(text.replace(self.thousands, "").replace(self.decimal, ".") if self.thousands else text)
        return value if math.isfinite(value) else None  # probably a code such as 7e4711


@dataclass(frozen=True)
class DateReading(Reading):
    """Dates, optionally with a time of day; the value is the number of days since 1 January 1970."""

    name: str
    example: str
    pattern: re.Pattern[str]

    def read(self, text: str) -> float | None:
        found = self.pattern.fullmatch(text)
        if found is None:
            return None
        parts = {name: int(value) for name, value in found.groupdict().items() if value is not None}
        try:
            return days_of(datetime(**parts))  # type: ignore[arg-type]
        except ValueError:  # a date that does not exist, such as 31 April
            return None


@dataclass(frozen=True)
class IsoReading(Reading):
    """Dates such as 2024-12-31 or 2024/12/31, optionally with a time of day and an offset from UTC."""

    name: str
    example: str
    pattern: re.Pattern[str]

    def read(self, text: str) -> float | None:
        if self.pattern.fullmatch(text) is None:
            return None
        date, separator, rest = text.replace("/", "-").replace("T", " ").partition(" ")
        year, month, day = date.split("-")
        try:
            return days_of(datetime.fromisoformat(f"{year}-{month:0>2}-{day:0>2}{separator}{rest.lstrip()}"))
        except ValueError:
            return None


def _infinite(text: str) -> float | None:
    """Return an infinite number, else None; it counts as a number here, and the table is refused later."""
    return float(text) if text.lower().lstrip("+-") in ("inf", "infinity") else None


def days_of(date: datetime) -> float:
    """Return the number of days since 1 January 1970, in UTC if the date has an offset."""
    plain = date.astimezone(UTC).replace(tzinfo=None) if date.tzinfo else date
    return (plain - _EPOCH).total_seconds() / SECONDS_A_DAY


def date_text(days: float) -> str:
    """Return the date, such as 2024-12-31, that is this number of days after 1 January 1970."""
    try:
        return datetime.fromtimestamp(days * SECONDS_A_DAY, UTC).strftime("%Y-%m-%d")
    except (ValueError, OverflowError, OSError):
        return f"day {days:.10g}"


def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern, re.ASCII)


PLAIN = NumberReading("plain", "1234.5", _compiled(rf"[+-]?(?:{_WHOLE}(?:\.\d*)?|\.\d+){_EXPONENT}"))
POINT = NumberReading(
    "decimal point", "1,234.5", _compiled(rf"[+-]?(?:{_WHOLE}|[1-9]\d{{0,2}}(?:,\d{{3}})+)(?:\.\d*)?{_EXPONENT}"), ","
)
COMMA = NumberReading(
    "decimal comma",
    "1.234,5",
    _compiled(rf"[+-]?(?:{_WHOLE}|[1-9]\d{{0,2}}(?:\.\d{{3}})+)(?:,\d+)?{_EXPONENT}"),
    ".",
    ",",
)
NUMBER_READINGS: tuple[Reading, ...] = (PLAIN, POINT, COMMA)

ISO = IsoReading(
    "year-month-day",
    "2024-12-31",
    _compiled(r"\d{4}[-/]\d{1,2}[-/]\d{1,2}(?:[T ]+\d{2}:\d{2}(?::\d{2}(?:\.\d{1,6})?)?(?:Z|[+-]\d{2}:?\d{2})?)?"),
)
DATE_READINGS: tuple[Reading, ...] = (
    ISO,
    DateReading(
        "day.month.year",
        "31.12.2024",
        _compiled(rf"(?P<day>\d{{1,2}})\.(?P<month>\d{{1,2}})\.(?P<year>\d{{4}}){_TIME}"),
    ),
    DateReading(
        "day/month/year",
        "31/12/2024",
        _compiled(rf"(?P<day>\d{{1,2}})[/-](?P<month>\d{{1,2}})[/-](?P<year>\d{{4}}){_TIME}"),
    ),
    DateReading(
        "month/day/year",
        "12/31/2024",
        _compiled(rf"(?P<month>\d{{1,2}})[/-](?P<day>\d{{1,2}})[/-](?P<year>\d{{4}}){_TIME}"),
    ),
)
READINGS: Mapping[str, Reading] = {reading.name: reading for reading in (*NUMBER_READINGS, *DATE_READINGS)}


def is_mark(text: str) -> bool:
    """Return whether a text marks a missing value in a column of numbers, dates or true/false."""
    return text.lower() in MISSING_MARKS


def may_be_missing(text: str) -> bool:
    """Return whether a class or client of this name probably stands for a missing value."""
    return text.lower() in MISSING_WORDS


def same_name(text: str) -> str:
    """Return a canonical form of a name, which is equal for different spellings of the same name.

    Spellings may differ in case, spaces, invisible characters, the encoding of accents, leading zeros of a number and a
    trailing `.0`.
    """
    seen = "".join(c for c in unicodedata.normalize("NFKC", text) if unicodedata.category(c) not in ("Cc", "Cf"))
    plain = " ".join(seen.casefold().split())
    found = re.fullmatch(r"([+-]?)0*(\d+?)(?:\.0*)?", plain, re.ASCII)
    return "".join(found.groups()) if found else plain


ODD_SPELLINGS = (
    (
        r"[+-]?\d{1,3}([ '\u2019\u00a0\u202f]\d{3})+([.,]\d+)?",
        "numbers with a thousands separator: remove the separator",
    ),
    (r"\d{1,2}([./-])\d{1,2}\1\d{2}", "dates with two digits for the year: write them as 2024-12-31"),
    (r"\d{1,2}[ .-]*[^\W\d_]{3,9}\.?[ ,-]*\d{2,4}", "dates with names of months: write them as 2024-12-31"),
    (r"[^\W\d_]{3,9}\.?[ -]\d{1,2},? \d{2,4}", "dates with names of months: write them as 2024-12-31"),
    (r"\d{4}[-/.]\d{1,2}", "months: write them as dates, such as 2024-12-01"),
    (r"\d{1,2}:\d{2}(:\d{2})?", "times of day: write them as numbers, such as 13.5"),
    (r"[+-]?\d[\d.,]*\s*%", "numbers with a percent sign: remove the sign"),
    (r"[+-]?\s*[^\w\s.,+-]{1,3}\s*[+-]?\d[\d.,]*", "numbers with a symbol such as a currency sign: remove it"),
    (r"[+-]?\d[\d.,]*\s*[^\w\s.,]{1,3}", "numbers with a symbol such as a currency sign: remove it"),
    (r"[+-]?\d[\d.,]*\s+[^\W\d_]{1,5}", "numbers with a unit: remove the unit"),
)
"""Patterns of numbers and dates in formats that are not supported, each with advice."""


def odd_spelling(texts: Sequence[str]) -> str:
    """Return the advice for texts that all have the same unsupported number or date format; empty for other texts."""
    for pattern, advice in ODD_SPELLINGS if texts else ():
        if all(re.fullmatch(pattern, text) for text in texts):
            return advice
    return ""


def fits(text: str, readings: Iterable[Reading]) -> bool:
    """Return whether a cell has the format of one of the readings."""
    return any(reading.read(text) is not None for reading in readings)


def is_whole(value: float) -> bool:
    """Return whether a number is an integer and small enough to be exact."""
    return math.isfinite(value) and value == round(value) and abs(value) < 2**53


def number_text(value: float) -> str:
    """Return a number as text; integers have no decimal point."""
    return str(int(value)) if is_whole(value) else repr(float(value))
