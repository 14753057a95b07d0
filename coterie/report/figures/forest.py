"""Coefficients with their intervals: a row for each coefficient, with a line for each cluster."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from coterie.report.figures.svg import (
    WIDTH,
    Scale,
    box,
    colour,
    drawing,
    even_ticks,
    line,
    mark,
    tag,
    text,
    tick_labels,
)
from coterie.report.formats import plain

TOP, BOTTOM, LEFT, RIGHT = 6.0, 26.0, 96.0, 12.0
STEP, GAP = 9.0, 11.0
"""Distance between the lines of one coefficient, and between coefficients."""
LETTERS = 13
"""Largest number of characters of a name; the tooltip has the whole name."""


def forest(names: Sequence[str], clusters: Sequence[Mapping[str, Any]], label: str) -> Markup | None:
    """Return the figure of rows of `metrics["regression"]["clusters"]`; None if there is nothing to draw."""
    values = [v for row in clusters for key in ("low", "high", "estimate") for v in row[key] if v is not None]
    if not values:
        return None
    least, most = min(values), max(values)
    room = 0.04 * (most - least) or 0.5
    x = Scale(least - room, most + room, LEFT, WIDTH - RIGHT)
    height = TOP + len(names) * (STEP * len(clusters) + GAP) + BOTTOM
    rows = [part for j in range(len(names)) for part in _coefficient(j, names[j], clusters, x)]
    return drawing(height, label, *_axis(x, height), *rows)


def _axis(x: Scale, height: float) -> list[Markup]:
    ticks = even_ticks(x.low, x.high, 5)
    drawn = []
    for tick, label in zip(ticks, tick_labels(ticks, percent=False), strict=True):
        drawn += [
            line(x(tick), TOP, x(tick), height - BOTTOM, "zero" if tick == 0 else "grid"),
            text(x(tick), height - 8, label, "tick", "middle"),
        ]
    return drawn


def _coefficient(j: int, name: str, clusters: Sequence[Mapping[str, Any]], x: Scale) -> list[Markup]:
    top = TOP + j * (STEP * len(clusters) + GAP)
    middle = top + (STEP * len(clusters) + GAP) / 2
    short = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    drawn = [text(LEFT - 10, middle + 4, short, "axis", "end")]
    if j:
        drawn.append(line(LEFT, top, WIDTH - RIGHT, top, "grid"))
    for at, row in enumerate(clusters):
        if row["estimate"][j] is not None:
            drawn.append(_interval(name, row, j, top + GAP / 2 + STEP * (at + 0.5), x))
    return drawn


def _interval(name: str, row: Mapping[str, Any], j: int, y: float, x: Scale) -> Markup:
    estimate, low, high = (row[key][j] for key in ("estimate", "low", "high"))
    hit = box(LEFT, y - STEP / 2, WIDTH - RIGHT - LEFT, STEP, "hit")
    kind = colour(row["cluster"])
    dot = tag("circle", cx=x(estimate), cy=y, r=2.8, class_=f"point {kind}")
    known = low is not None and high is not None
    span = [line(x(low), y, x(high), y, f"span {kind}")] if known else []
    note = f"{plain(estimate)}, from {plain(low)} to {plain(high)}" if known else f"{plain(estimate)}, no interval"
    return mark(hit, *span, dot, title=f"{name}, cluster {row['cluster']}", note=note)
