"""Formats of numbers in reports."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence

ABSENT = "–"  # noqa: RUF001 (tables show an en dash for an absent value)
MINUS = "\N{MINUS SIGN}"


def plain(value: float | None, digits: int = 3) -> str:
    """Return a number with this many significant digits, without an exponent where that stays short."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if size < -4 or size > 6:
        return f"{value:.{digits - 1}e}"
    return signed(f"{value:.{max(0, digits - 1 - size)}f}")


def percent(share: float) -> str:
    """Return a share in percent, such as `48.5 %`."""
    return f"{100 * share:.1f} %"


def signed(text: str) -> str:
    """Return the text with a typographic minus instead of the hyphen."""
    return MINUS + text[1:] if text.startswith("-") else text


def score(value: float | None, name: str) -> str:
    """Return an accuracy in percent, or an RMSE with three digits."""
    if value is None or not math.isfinite(value):
        return ABSENT
    return f"{100 * value:.1f} %" if name == "accuracy" else plain(value)


def megabytes(count: float | None) -> str:
    """Return a number of bytes as MB (a million bytes)."""
    return ABSENT if count is None else plain(count / 1e6)


def seconds(value: float | None) -> str:
    """Return a duration in seconds, milliseconds (below 1 s) or minutes (above 2 min)."""
    if value is None:
        return ABSENT
    if value < 1:
        return f"{1000 * value:.0f} ms"
    return f"{plain(value)} s" if value < 120 else f"{plain(value / 60)} min"


def count(value: float) -> str:
    """Return a whole number plainly, a mean of counts with one decimal."""
    return str(round(value)) if abs(value - round(value)) < 1e-9 else f"{value:.1f}"


def plural(number: float, noun: str) -> str:
    """Return a number with its noun, such as `1 client` and `2 clients`."""
    return f"{count(number)} {noun}" + ("" if number == 1 else "s")


def natural(text: str) -> list[tuple[int, int, str]]:
    """Return a key that sorts `90 degrees` before `180 degrees`."""
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part]


def like(value: float, model: str) -> str:
    """Return a number with as many decimals as another text has: `1.3` for the model `93.7 %`."""
    decimals = re.match(r"\D*\d*(?:\.(\d*))?", model)
    return f"{value:.{len(decimals[1] or '') if decimals else 0}f}"


def spans(numbers: Iterable[int]) -> str:
    """Return numbers as text with neighbours put together, such as `1, 3-5`."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and number == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], number]
        else:
            parts.append([number])
    return ", ".join("-".join(map(str, part)) for part in parts)


def listed(words: Sequence[str]) -> str:
    """Return words as a list, such as `a`, `a and b` and `a, b and c`."""
    if len(words) < 2:
        return "".join(words)
    return f"{', '.join(words[:-1])} and {words[-1]}"
