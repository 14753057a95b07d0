"""Tags, scales and ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from coterie.report.formats import signed

WIDTH = 460
"""Width of every figure in pixels of a common screen; figures scale to their card."""
COLOURS = 10
"""Number of colours of clusters in the style sheet (classes c0 to c9), which repeat for later clusters."""
LEAST_STEP, MOST_STEP, MOST_POWER = 1e-300, 1e300, 307
"""Limits within which steps between round numbers can be computed in floating point."""
MOST_POWERS = 12
"""Largest number of powers of ten with a label on an axis; of more, every second (third, ...) one has a label."""


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """Return an element; text and attributes are escaped, and attributes that are None are left out."""
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    inside = "".join(escape(child) for child in children)
    return Markup(f"<{name}{words}>{inside}</{name}>")  # every part is escaped above


def _number(value: object) -> object:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else value


def drawing(height: float, label: str, *children: object) -> Markup:
    """Return the figure itself; a screen reader reads the label."""
    box = f"0 0 {WIDTH} {height:.0f}"
    return tag("svg", *children, class_="figure", viewBox=box, role="group", aria_label=label)


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start") -> Markup:
    """Return a line of text whose baseline is at y."""
    return tag("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor)


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> Markup:
    """Return a straight line."""
    return tag("line", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str) -> Markup:
    """Return a rectangle."""
    return tag("rect", x=float(x), y=float(y), width=float(width), height=float(height), class_=class_)


def path(points: Sequence[tuple[float, float]], class_: str, closed: bool = False) -> Markup:
    """Return a line through the points, or the area that they enclose."""
    steps = "L".join(f"{x:.2f} {y:.2f}" for x, y in points)
    return tag("path", d=f"M{steps}{'Z' if closed else ''}", class_=class_)


def mark(*children: object, client: int | None = None, title: str | None = None, note: str | None = None) -> Markup:
    """Return an element with a tooltip: of a client (from the data of the page), or a title with lines of text."""
    return tag("g", *children, class_="mark", data_client=client, data_title=title, data_note=note)


def colour(cluster: int) -> str:
    """Return the class that colours a cluster; clients that have not answered yet are grey."""
    return f"c{cluster % COLOURS}" if cluster >= 0 else "unheard"


@dataclass(frozen=True)
class Scale:
    """Map from numbers to places, linear or logarithmic."""

    low: float
    high: float
    start: float
    stop: float
    log: bool = False

    def __call__(self, value: float) -> float:
        # a quarter of each, so that no difference of two of them overflows
        low, high, value = (math.log(v) if self.log else v / 4 for v in (self.low, self.high, value))
        share = 0.5 if high == low else (value - low) / (high - low)
        return self.start + share * (self.stop - self.start)

    def ticks(self, about: int = 5) -> list[float]:
        return log_ticks(self.low, self.high) if self.log else even_ticks(self.low, self.high, about)


def even_ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers from low to high: steps of 1, 2 or 5 times a power of ten."""
    if high <= low:
        return [low]
    raw = (high - low) / about
    if not LEAST_STEP < raw < MOST_STEP:  # powers of ten end near there
        return [low, high]
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * f for f in (1, 2, 5, 10) if power * f >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [float(f"{step * i:.12g}") for i in range(first, last + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Return 1, 2 and 5 times the powers of ten, or only the powers if these are many."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = range(first, min(last, MOST_POWER) + 1, 1 + (last - first) // MOST_POWERS)
    factors = (1, 2, 5) if high / low < 300 else (1,)
    return [t for p in powers for f in factors if low * 0.999 <= (t := f * 10.0**p) <= high * 1.001]


def whole_ticks(low: int, high: int, about: int = 6) -> list[int]:
    """Return ticks for rounds: whole numbers, with the first and the last one."""
    if high - low < about:
        return list(range(low, high + 1))
    inner = [round(t) for t in even_ticks(low, high, about)]
    gap = 0.6 * (inner[1] - inner[0])
    return [low, *(t for t in inner if t - low >= gap and high - t >= gap), high]


def tick_labels(ticks: Sequence[float], percent: bool) -> list[str]:
    """Return labels with as many decimals as the steps need."""
    if percent:
        fine = len(ticks) > 1 and abs(ticks[1] - ticks[0]) < 0.0099
        return [f"{100 * t:.1f} %" if fine else f"{100 * t:.0f} %" for t in ticks]
    return [signed(f"{t:g}") for t in ticks]
