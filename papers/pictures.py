"""Pictures of the reproductions as SVG: curves, and bars of the paper's figures next to ours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

from coterie.experiments.reproduction import Picture as Picture

WIDTH, HEIGHT = 360, 250
LEFT, RIGHT, TOP, BOTTOM = 58, 24, 30, 44
LEGEND_LINE = 17
COLOURS = (
    *("#3f51b5", "#ff7043", "#2e9e6b", "#8e24aa", "#c0a000", "#00838f"),
    *("#6d4c41", "#546e7a", "#d81b60", "#7cb342", "#000000", "#42a5f5"),
)
INK, GREY, THEIRS, OURS = "#37474f", "#cfd8dc", "#b0bec5", "#3f51b5"
BAR, GAP, NAMES = 9, 8, 230
Point = tuple[float, float]


@dataclass(frozen=True)
class Panel:
    """A panel with curves."""

    title: str
    x: str
    y: str
    curves: Mapping[str, Sequence[Point]]
    log_x: bool = False
    log_y: bool = False
    paper: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    """Curves of the paper, drawn dashed in the colour of ours with the same name."""


def curves(panels: Sequence[Panel], columns: int = 2) -> Picture:
    """Return panels next to each other with one legend; panels without points are left out."""
    shown = [panel for panel in panels if any(map(len, panel.curves.values()))]
    names = list(dict.fromkeys(name for panel in shown for name in panel.curves))
    colour = {name: COLOURS[at % len(COLOURS)] for at, name in enumerate(names)}
    columns = min(columns, max(1, len(shown)))
    rows = math.ceil(len(shown) / columns)
    parts = []
    for at, panel in enumerate(shown):
        parts.append(
            f'<g transform="translate({at % columns * WIDTH},{at // columns * HEIGHT})">{_panel(panel, colour)}</g>'
        )
    for at, name in enumerate(names):
        y = rows * HEIGHT + 6 + at * LEGEND_LINE
        parts.append(_line((LEFT, y), (LEFT + 24, y), colour[name], 2.5))
        parts.append(_text((LEFT + 32, y), name, "start"))
    return _svg(columns * WIDTH, rows * HEIGHT + 10 + len(names) * LEGEND_LINE, parts)


def _panel(panel: Panel, colour: Mapping[str, str]) -> str:
    points = [p for each in (panel.curves, panel.paper) for curve in each.values() for p in curve]
    horizontal = Axis.over([x for x, _ in points], panel.log_x, LEFT, WIDTH - RIGHT)
    vertical = Axis.over([y for _, y in points], panel.log_y, HEIGHT - BOTTOM, TOP)
    parts = [_text((WIDTH / 2, 12), panel.title, size=13)]
    for value in horizontal.ticks:
        at = horizontal(value)
        parts.append(_line((at, TOP), (at, HEIGHT - BOTTOM), GREY, 0.6))
        parts.append(_text((at, HEIGHT - BOTTOM + 12), f"{value:g}"))
    for value in vertical.ticks:
        at = vertical(value)
        parts.append(_line((LEFT, at), (WIDTH - RIGHT, at), GREY, 0.6))
        parts.append(_text((LEFT - 5, at), f"{value:g}", "end"))
    parts.append(_text(((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 14), panel.x))
    parts.append(
        f'<text transform="translate(12,{(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" text-anchor="middle" '
        f'font-size="11" fill="{INK}">{escape(panel.y)}</text>'
    )
    for source, dash in ((panel.paper, ' stroke-dasharray="5 4"'), (panel.curves, "")):
        for name, curve in source.items():
            placed = " ".join(f"{horizontal(x):.1f},{vertical(y):.1f}" for x, y in curve)
            parts.append(
                f'<polyline points="{placed}" fill="none" stroke="{colour[name]}" stroke-width="2"{dash}/>'
                if len(curve) > 1
                else ""
            )
            parts += [
                f'<circle cx="{horizontal(x):.1f}" cy="{vertical(y):.1f}" r="2.6" fill="{colour[name]}"/>'
                for x, y in curve
            ]
    return "".join(parts)


@dataclass(frozen=True)
class Axis:
    """Values placed between two pixels, linearly or by their logarithms."""

    low: float
    high: float
    log: bool
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], log: bool, start: float, end: float) -> Axis:
        """Return an axis that holds all values; a linear one begins at zero if the values are not far from it."""
        low, high = min(values), max(values)
        if log:
            return cls(10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high)), True, start, end)
        low = 0.0 if 0 <= low < high / 2 else low
        step = nice_step(high - low or 1.0)
        first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
        return cls(first * step, max(last, first + 1) * step, False, start, end)

    def __call__(self, value: float) -> float:
        """Return the place of a value in pixels."""
        low, high, at = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / ((high - low) or 1.0) * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Values with a grid line."""
        if self.log:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = nice_step(self.high - self.low)
        return [self.low + at * step for at in range(round((self.high - self.low) / step) + 1)]


def nice_step(length: float) -> float:
    """Return 1, 2 or 5 times a power of ten that divides a length into four to ten parts."""
    power: float = 10.0 ** math.floor(math.log10(length / 4))
    return next(step for step in (5 * power, 2 * power, power) if length / step >= 4)


@dataclass(frozen=True)
class Pair:
    """A bar of the paper and one of ours."""

    name: str
    theirs: float | None
    ours: float | None


def bars(title: str, unit: str, pairs: Sequence[Pair]) -> Picture:
    """Return horizontal bars, the paper's in grey above ours in blue; rows without any of ours are left out."""
    shown = [pair for pair in pairs if pair.ours is not None]
    values = [value for pair in shown for value in (pair.theirs, pair.ours) if value is not None]
    axis = Axis.over([0.0, *values], False, NAMES, 2 * WIDTH - 46)
    row = 2 * BAR + GAP
    bottom = TOP + 22 + len(shown) * row
    parts = [_text((WIDTH, 12), title, size=13)]
    parts += [_box(NAMES, 24, 18, THEIRS), _text((NAMES + 24, 28), "paper", "start")]
    parts += [_box(NAMES + 80, 24, 18, OURS), _text((NAMES + 104, 28), f"ours, {unit}", "start")]
    for at, pair in enumerate(shown):
        y = TOP + 18 + at * row
        parts.append(_text((NAMES - 6, y + BAR), pair.name, "end"))
        for value, colour, top in ((pair.theirs, THEIRS, y), (pair.ours, OURS, y + BAR)):
            if value is not None:
                parts.append(_box(NAMES, top, axis(value) - NAMES, colour))
                parts.append(_text((axis(value) + 4, top + BAR / 2), f"{value:.1f}", "start", 9))
    return _svg(2 * WIDTH, bottom, parts)


def _box(x: float, y: float, width: float, colour: str) -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{BAR - 1}" fill="{colour}"/>'


def _line(start: Point, end: Point, colour: str, width: float) -> str:
    return (
        f'<line x1="{start[0]:.1f}" y1="{start[1]:.1f}" x2="{end[0]:.1f}" y2="{end[1]:.1f}" stroke="{colour}" '
        f'stroke-width="{width:g}"/>'
    )


def _text(at: Point, text: str, anchor: str = "middle", size: int = 11) -> str:
    return (
        f'<text x="{at[0]:.1f}" y="{at[1] + 0.35 * size:.1f}" text-anchor="{anchor}" font-size="{size}" '
        f'fill="{INK}">{escape(text)}</text>'
    )


def _svg(width: float, height: float, parts: Sequence[str]) -> Picture:
    frame = f'<rect width="{width:g}" height="{height:g}" fill="#fff"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'font-family="sans-serif">{frame}{"".join(parts)}</svg>\n'
    )
