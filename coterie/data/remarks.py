"""Remarks about columns, clients and classes that may mean something else than they seem to.

Every remark is a small rule: a function of the facts that returns the sentences that apply. `NUMBER_RULES`,
`CLASS_RULES` and `CLIENT_RULES` list them in the order in which a note shows them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from coterie.core.readings import (
    PLAIN,
    date_text,
    is_whole,
    may_be_missing,
    number_text,
    same_name,
)
from coterie.core.schema import ColumnNote
from coterie.data.summary import ColumnSummary, Level, Moments
from coterie.errors import shown

RARE_ROWS = 10
"""Number of rows below which a level is rare in a table of at least 200 rows."""
FEW_ROWS = 20
"""Number of rows below which nothing is concluded from the number of different values."""
NEARLY_ALL = 0.9
"""Share of rows, or of clients, with different values from which a column may be an identifier."""
MISSING_CODES = frozenset({-99.0, -999.0, -9999.0, -99999.0, 999.0, 9999.0, 99999.0, 999999.0})
"""Numbers that often stand for a missing value."""
FAR, DOMINANT = 8.0, 0.1
"""A value that is more standard deviations from the mean, and makes up more of the variance, dominates its column."""
SEPARATE, REPEATED = 0.5, 3
"""A least or greatest value may be a code for missing values if it is farther from all others than this share of their
range, and at least this many training rows hold it."""
SECONDS_DIGITS = 1_000_000
"""Factor of a date in numbers such as 20241231235959."""
FEWEST_VALUES = 5
"""Number of different whole numbers below which a column may be a scale of codes."""
SCALE_CODES, FAR_ON_A_SCALE = frozenset({-9.0, 9.0, 77.0, 88.0, 99.0}), 3.0
"""Numbers that stand for a missing value on a scale of few codes, if they are this many times its range away."""
SAME_DIGITS = 1e-10
"""Relative deviation below which the numbers of a column differ in their last digits only."""
CLIENTS_OF_A_CLASS = 4
"""If a class is at this many clients, one that is at a single client gets a remark."""
MANY_CLASSES, ROWS_OF_A_CLASS = 20, 10
"""More classes, and classes in fewer rows, get a remark."""
MOST_COPIES = 0.02
"""Share of copied rows from which a remark warns of them."""
MOST_LISTED, LONGEST_LISTED = 6, 30
"""Number of levels that a note lists, and of letters of each."""
TRUE_WORDS = frozenset({"true", "t", "yes", "y", "1", "on", "wahr", "ja", "j", "vrai", "oui", "o", "si", "s\u00ed"})
FALSE_WORDS = frozenset({"false", "f", "no", "n", "0", "off", "falsch", "nein", "faux", "non"})
"""Texts in lower case that mean true or false."""
TOTALS = frozenset(
    {"total", "totals", "grand total", "subtotal", "sum", "overall", "average", "mean", "all"}
    | {"gesamt", "gesamtergebnis", "summe", "mittelwert", "somme", "suma", "totale", "totaal"}
)
"""Names in lower case that lines with sums or means have in exported tables."""
EXPONENT = re.compile(r"\d([.,]\d+)?[eE]\+\d+")
"""Long identifiers as a spreadsheet exports them, without their last digits."""

# ---- parts of remarks that mark a note as suspicious -----------------------------------------------------------------

COPY = "may be a copy of"
COPIES_HELD_OUT = "a copy that is held out makes scores too good"
ALIKE = "are probably the same name and count as two"
SAME_MEANING = "probably mean the same and count as two"
MARKS_MISSING = "often marks a missing value"
DOMINATES = "so that it dominates the column"
STANDS_APART = "as a code for missing values would"
OF_CLIENTS = "has the same value in all rows of each client"
IS_TOTAL = "is the name of a line of totals or means"
NAME_OF_CODE = "is that of an identifier"
CALLED_LIKE, NAMES_MISSING = "is called like", "does the file begin with the names of its columns?"
"""Parts of the remark on a column that is called like one of its values."""
EMPTY_CLIENTS = "so that its effect is unknown there"
SUSPICIONS = (
    EMPTY_CLIENTS,
    *(MARKS_MISSING, DOMINATES, STANDS_APART, COPY, COPIES_HELD_OUT, ALIKE, SAME_MEANING, OF_CLIENTS, IS_TOTAL),
    *(NAME_OF_CODE, CALLED_LIKE, "looks like", "look like", "only: ", "last digits", "or missing in training rows"),
)
"""Parts of the remarks on columns that a user should look at."""
ONE_KIND = "make them of one kind"
"""Part of the reason why a column of several kinds is dropped."""


def is_suspicious(note: ColumnNote) -> bool:
    """Return whether a user should look at a column.

    Args:
        note: The note about the column.

    Returns:
        True if one of its remarks names a probable mistake.
    """
    return any(part in note.detail for part in (*SUSPICIONS, ONE_KIND))


# ---- numbers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NumberFacts:
    """Facts about a column of numbers."""

    column: ColumnSummary
    moments: Moments

    @cached_property
    def codes(self) -> tuple[float, ...]:
        """Extremes that are well-known codes for missing values."""
        return tuple(value for value in (self.moments.low, self.moments.high) if value in MISSING_CODES)

    @cached_property
    def apart(self) -> tuple[tuple[float, int], ...]:
        """Other extremes that many rows hold and that are far from all other values, with their rows."""
        if self.column.constant or self.moments.count < FEW_ROWS:
            return ()
        found = standing_apart(self.moments, self.column.whole)
        usual = self.column.codes is None or len(self.column.codes) >= FEWEST_VALUES
        return tuple(
            (value, rows)
            for value, rows in found
            if value not in self.codes and (usual or (value in SCALE_CODES and self._is_far(value)))
        )

    def _is_far(self, value: float) -> bool:
        """Return whether an extreme is several times as far from the other values as these are from each other."""
        low, high, next_low, next_high = (
            self.moments.low,
            self.moments.high,
            self.moments.next_low,
            self.moments.next_high,
        )
        gap, others = (next_low - low, high - next_low) if value == low else (high - next_high, next_high - low)
        return gap >= FAR_ON_A_SCALE * others


NumberRule = Callable[[NumberFacts], list[str]]


def _codes_for_missing(facts: NumberFacts) -> list[str]:
    return [f"holds {number_text(value)}, which {MARKS_MISSING}" for value in facts.codes]


def _extremes_that_stand_apart(facts: NumberFacts) -> list[str]:
    return [stands_apart(number_text(value), rows) for value, rows in facts.apart]


def _differ_in_last_digits(facts: NumberFacts) -> list[str]:
    if 0 < facts.moments.deviation < SAME_DIGITS * abs(facts.moments.mean):
        return ["the numbers differ in their last digits only: leave the column out if they are identifiers"]
    return []


def _dominating_extremes(facts: NumberFacts) -> list[str]:
    moments = facts.moments
    named = {*facts.codes, *(value for value, _ in facts.apart)}
    return [
        f"{number_text(value)} is {abs(value - moments.mean) / moments.deviation:.0f} standard deviations from the "
        f"mean, {DOMINATES}: correct it, or leave the cell empty"
        for value in (moments.low, moments.high)
        if value not in named and dominates(value, moments)
    ]


def _dates_as_numbers(facts: NumberFacts) -> list[str]:
    column, low, high = facts.column, facts.moments.low, facts.moments.high
    if column.whole and is_whole(low) and _is_compact_date(low) and _is_compact_date(high):
        return [f"looks like dates written as numbers ({number_text(low)}); write them as 2024-12-31"]
    if column.whole and _is_compact_date(low // SECONDS_DIGITS) and _is_compact_date(high // SECONDS_DIGITS):
        return [f"looks like dates with times written as numbers ({number_text(low)}); write them as 2024-12-31T23:59"]
    if column.codes and all(_is_compact_date(100 * float(level.text) + 1) for level in column.codes):
        return [f"looks like months written as numbers ({number_text(low)}); write them as 2024-12-01"]
    return []


NUMBER_RULES: tuple[NumberRule, ...] = (
    _codes_for_missing,
    _extremes_that_stand_apart,
    _differ_in_last_digits,
    _dominating_extremes,
    _dates_as_numbers,
)


def number_remarks(column: ColumnSummary, moments: Moments) -> list[str]:
    """Return the remarks on a column of numbers.

    Args:
        column: Summary of the column.
        moments: Its moments by the reading that is used.
    """
    facts = NumberFacts(column, moments)
    return [remark for rule in NUMBER_RULES for remark in rule(facts)]


def date_remarks(moments: Moments) -> list[str]:
    """Return the remarks on a column of dates."""
    apart = standing_apart(moments, whole=False)
    found = [stands_apart(date_text(value), rows) for value, rows in apart]
    named = {value for value, _ in apart}
    return found + [
        f"{date_text(value)} is far from the mean, {DOMINATES}: correct it, or leave it empty"
        for value in (moments.low, moments.high)
        if value not in named and dominates(value, moments)
    ]


def standing_apart(moments: Moments, whole: bool) -> list[tuple[float, int]]:
    """Return the smallest and the largest value, with its rows, if many training rows have it and no value is near.

    Args:
        moments: Moments of the column.
        whole: Whether all numbers are whole.
    """
    low, high, next_low, next_high = moments.low, moments.high, moments.next_low, moments.next_high
    least = max(REPEATED, RARE_ROWS * moments.count // 2000)
    found = []
    negative = whole and low < 0 <= next_low
    if moments.low_rows >= least and (next_low - low > SEPARATE * (high - next_low) or negative) and next_low < high:
        found.append((low, moments.low_rows))
    if moments.high_rows >= least and high - next_high > SEPARATE * (next_high - low) and next_high > low:
        found.append((high, moments.high_rows))
    return found


def stands_apart(value: str, rows: int) -> str:
    """Return the remark on an extreme value that may be a code."""
    return f"{value} is in {rows} training rows and far from all other values, {STANDS_APART} be"


def dominates(value: float, moments: Moments) -> bool:
    """Return whether one value makes up a large part of the variance of its column."""
    if not moments.deviation:
        return False
    far = abs(value - moments.mean) / moments.deviation
    return far > FAR and far**2 > DOMINANT * moments.count


def _is_compact_date(value: float) -> bool:
    day, month, year = int(value) % 100, int(value) // 100 % 100, int(value) // 10_000
    return 1900 <= year <= 2100 and 1 <= month <= 12 and 1 <= day <= 31


# ---- classes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClassFacts:
    """Facts about a target of classes."""

    column: ColumnSummary
    labels: tuple[str, ...]


def _classes_that_are_alike(facts: ClassFacts) -> list[str]:
    return alike_remarks(facts.labels)


def _classes_for_missing(facts: ClassFacts) -> list[str]:
    words = [
        f"class {shown(text)} {MARKS_MISSING}: leave such cells empty" for text in facts.labels if may_be_missing(text)
    ]
    return words + [f"class {text} {MARKS_MISSING}" for text in facts.labels if _is_missing_code(text)]


def _class_in_header(facts: ClassFacts) -> list[str]:
    return [f"the column {CALLED_LIKE} one of the classes: {NAMES_MISSING}"] * (facts.column.name in facts.labels)


def _many_or_rare_classes(facts: ClassFacts) -> list[str]:
    rows = facts.column.present
    if len(facts.labels) > MANY_CLASSES:
        return [f"{len(facts.labels)} classes in {rows} rows only: is it a class?"]
    rare = [level for level in all_levels(facts.column) if level.rows < ROWS_OF_A_CLASS]
    if not rare or rows < FEW_ROWS:
        return []
    rarest = min(rare, key=lambda level: level.rows)
    return [f"class {shown(rarest.text)} is in {counted(rarest.rows, 'row')} only: little is known of it"]


def _classes_of_one_client(facts: ClassFacts) -> list[str]:
    levels = all_levels(facts.column)
    if max((level.clients for level in levels), default=0) < CLIENTS_OF_A_CLASS:
        return []
    alone = [level for level in levels if level.clients == 1]
    return (
        [f"class {shown(alone[0].text)} is at one client only: how to tell it elsewhere is not known"] if alone else []
    )


CLASS_RULES: tuple[Callable[[ClassFacts], list[str]], ...] = (
    _classes_that_are_alike,
    _class_in_header,
    _classes_for_missing,
    _many_or_rare_classes,
    _classes_of_one_client,
)


def class_remarks(column: ColumnSummary, labels: Sequence[str]) -> list[str]:
    """Return the remarks on the classes of a target.

    Args:
        column: Summary of the target.
        labels: The classes as texts.
    """
    facts = ClassFacts(column, tuple(labels))
    return [remark for rule in CLASS_RULES for remark in rule(facts)]


def _is_missing_code(text: str) -> bool:
    value = PLAIN.read(text)
    return value is not None and value in MISSING_CODES


# ---- clients ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientFacts:
    """Facts about the clients of a table."""

    column: str
    ids: tuple[str, ...]
    rows: int
    copies: int
    """Number of rows that equal an earlier row of their client."""


def _clients_that_are_alike(facts: ClientFacts) -> list[str]:
    alike = two_alike(facts.ids)
    return [alike] if alike else []


def _client_in_header(facts: ClientFacts) -> list[str]:
    return [f"the column {CALLED_LIKE} one of the clients: {NAMES_MISSING}"] if facts.column in facts.ids else []


def _clients_for_missing(facts: ClientFacts) -> list[str]:
    odd = [text for text in facts.ids if may_be_missing(text) or _is_missing_code(text)]
    return [f"client {shown(text)} {MARKS_MISSING}: leave out its rows if it does" for text in odd[:MOST_LISTED]]


def _clients_that_are_totals(facts: ClientFacts) -> list[str]:
    odd = [text for text in facts.ids if text.lower() in TOTALS]
    return [f"client {shown(text)} {IS_TOTAL}: take out its rows if it is" for text in odd[:MOST_LISTED]]


def _clients_that_lost_digits(facts: ClientFacts) -> list[str]:
    odd = next((text for text in facts.ids if EXPONENT.fullmatch(text)), None)
    if odd is None:
        return []
    return [
        f"client {shown(odd)} looks like a long number that a spreadsheet has shortened, so that several clients may "
        "have become one: export the ids as texts"
    ]


def _copied_rows(facts: ClientFacts) -> list[str]:
    if facts.copies <= MOST_COPIES * facts.rows:
        return []
    equal = "1 row equals" if facts.copies == 1 else f"{facts.copies} rows equal"
    return [f"{equal} an earlier row of the client, and {COPIES_HELD_OUT}: take out rows that are copies"]


def _clients_that_are_measurements(facts: ClientFacts) -> list[str]:
    numbers = [PLAIN.read(text) for text in facts.ids]
    if sum(value is not None and not is_whole(value) and abs(value) < 2**53 for value in numbers) > len(numbers) / 2:
        return ["the clients look like measurements, not like names: is it the client column?"]
    return []


def _many_clients(facts: ClientFacts) -> list[str]:
    if len(facts.ids) > facts.rows / 2 and facts.rows >= FEW_ROWS:
        return [f"{len(facts.ids)} clients in {facts.rows} rows only: is it the client column?"]
    return []


CLIENT_RULES: tuple[Callable[[ClientFacts], list[str]], ...] = (
    _clients_that_are_alike,
    _client_in_header,
    _clients_for_missing,
    _clients_that_are_totals,
    _clients_that_lost_digits,
    _copied_rows,
    _clients_that_are_measurements,
    _many_clients,
)


def client_remarks(column: str, ids: Sequence[str], rows: int, copies: int) -> list[str]:
    """Return the remarks on the clients of a table.

    Args:
        column: Name of the client column.
        ids: The clients.
        rows: Number of their rows.
        copies: Number of rows that equal an earlier row of their client.
    """
    facts = ClientFacts(column, tuple(ids), rows, copies)
    return [remark for rule in CLIENT_RULES for remark in rule(facts)]


# ---- texts -----------------------------------------------------------------------------------------------------------


def alike_remarks(texts: Iterable[str]) -> list[str]:
    """Return the remarks on levels or classes of which two are probably one."""
    listed = list(texts)
    return [remark for remark in (two_alike(listed), _two_of_one_meaning(listed)) if remark]


def two_alike(texts: Iterable[str]) -> str:
    """Return a remark on two texts that are probably one name in two spellings; empty if there are none."""
    seen: dict[str, str] = {}
    for text in texts:
        other = seen.setdefault(same_name(text), text)
        if other != text:
            return f"{other!a} and {text!a} {ALIKE}"
    return ""


def _two_of_one_meaning(texts: Sequence[str]) -> str:
    """Return a remark on a column of true and false in several spellings, such as `true` and `1`."""
    words = {text: text.lower() for text in texts}
    if not set(words.values()) <= TRUE_WORDS | FALSE_WORDS:
        return ""
    for meaning in (TRUE_WORDS, FALSE_WORDS):
        same = [text for text in texts if words[text] in meaning]
        if len({words[text] for text in same}) > 1:
            return f"{' and '.join(map(repr, same[:2]))} {SAME_MEANING}: write them alike"
    return ""


def all_levels(column: ColumnSummary) -> tuple[Level, ...]:
    """Return texts, marks of missing values and whole numbers of a column as levels, sorted."""
    found = (*(column.texts or ()), *(column.marks or ()), *(column.codes or ()))
    return tuple(sorted(found, key=lambda level: level.text))


def listed(texts: Sequence[str]) -> str:
    """Return the first texts as a list, long ones cut."""
    cut = [text if len(text) <= LONGEST_LISTED else f"{text[:LONGEST_LISTED]}..." for text in texts[:MOST_LISTED]]
    return ", ".join(cut) + (f" and {len(texts) - MOST_LISTED} more" if len(texts) > MOST_LISTED else "")


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, such as `1 row` and `2 rows`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def example(column: ColumnSummary) -> str:
    """Return a text of a column for a message."""
    return shown(column.texts[0].text) if column.texts else "..."


def mixture(column: ColumnSummary) -> str:
    """Return the kinds of cells of a column with their counts, such as `799 numbers and 1 text such as 'unknown'`."""
    number, date = column.numbers.rows + column.infinite, column.dates.rows
    texts = sum(level.rows for level in column.texts or ()) + column.unnamed.rows
    parts = [counted(number, "number")] * (number > 0) + [counted(date, "date")] * (date > 0)
    parts += [f"{counted(texts, 'text')} such as {example(column)}"] * (texts > 0)
    return " and ".join(parts + ["many texts"] * (column.texts is None))
