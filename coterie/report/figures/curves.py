"""Figure of the records by round: a line for each method, with a band from the smallest to the largest seed."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coterie.report.comparison import Curve
from coterie.report.figures.svg import (
    WIDTH,
    Scale,
    box,
    drawing,
    line,
    mark,
    path,
    tag,
    text,
    tick_labels,
    whole_ticks,
)
from coterie.report.formats import plain, score

HEIGHT, TOP, BOTTOM, LEFT = 280.0, 20.0, 44.0, 52.0
LABEL_GAP = 15.0
HOVERS = 80
"""Largest number of rounds with tooltips, which keeps the page small."""
LEAST, MOST = math.ulp(0.0), sys.float_info.max
"""Range of the ends of an axis, which are positive on a logarithmic axis."""
WIDE_RANGE = 12.0
"""Ratio of the largest to the smallest loss from which the axis is logarithmic."""


@dataclass(frozen=True)
class Line:
    """Curve of a method, with its style."""

    name: str
    style: str
    """A class of the style sheet: colour and dashes."""
    curve: Curve
    main: bool = False


@dataclass(frozen=True)
class _Frame:
    x: Scale
    y: Scale
    percent: bool

    def value(self, number: float) -> str:
        return score(number, "accuracy") if self.percent else plain(number)


def curves(lines: Sequence[Line], label: str, percent: bool) -> Markup:
    """Return the figure; `percent` for accuracies."""
    frame = _frame(lines, percent)
    ordered = sorted(lines, key=lambda each: each.main)  # the main method on top
    return drawing(
        HEIGHT,
        label,
        *_axes(frame),
        *(_band(frame, each) for each in ordered if each.curve.low != each.curve.high),
        *(_stroke(frame, each) for each in ordered),
        *_labels(frame, lines),
        *_hovers(frame, lines),
    )


def _frame(lines: Sequence[Line], percent: bool) -> _Frame:
    low = min(min(each.curve.low) for each in lines)
    high = max(max(each.curve.high) for each in lines)
    log = not percent and low > 0 and high / low > WIDE_RANGE
    if log:
        low, high = max(low / 1.1, LEAST), min(high * 1.1, MOST)
    else:
        room = min(0.04 * (high - low), 0.04 * MOST) or 0.05 * abs(high) or 0.5
        low, high = max(low - room, -MOST), min(high + room, MOST)
        if percent:
            low, high = max(0.0, low), min(1.0, high)
    first = min(each.curve.rounds[0] for each in lines)
    last = max(each.curve.rounds[-1] for each in lines)
    right = WIDTH - 12 - 8.4 * max(len(each.name) for each in lines)
    return _Frame(Scale(first, last, LEFT, right), Scale(low, high, HEIGHT - BOTTOM, TOP, log), percent)


def _axes(frame: _Frame) -> list[Markup]:
    drawn = []
    ticks = frame.y.ticks()
    for tick, label in zip(ticks, tick_labels(ticks, frame.percent), strict=True):
        y = frame.y(tick)
        drawn += [
            line(frame.x.start, y, frame.x.stop, y, "grid"),
            text(frame.x.start - 8, y + 4, label, "tick", "end"),
        ]
    for round_ in whole_ticks(int(frame.x.low), int(frame.x.high)):
        drawn.append(text(frame.x(round_), HEIGHT - BOTTOM + 17, str(round_), "tick", "middle"))
    middle = (frame.x.start + frame.x.stop) / 2
    drawn.append(text(middle, HEIGHT - 5, "round", "axis", "middle"))
    if frame.y.log:
        drawn.append(text(frame.x.start, TOP - 3, "logarithmic scale", "axis"))
    return drawn


def _places(frame: _Frame, rounds: Sequence[int], values: Sequence[float]) -> list[tuple[float, float]]:
    return [(frame.x(r), frame.y(v)) for r, v in zip(rounds, values, strict=True)]


def _band(frame: _Frame, each: Line) -> Markup:
    there = _places(frame, each.curve.rounds, each.curve.high)
    back = _places(frame, each.curve.rounds, each.curve.low)[::-1]
    return path(there + back, f"band {each.style}", closed=True)


def _stroke(frame: _Frame, each: Line) -> Markup:
    places = _places(frame, each.curve.rounds, each.curve.mean)
    classes = f"curve {each.style}{' strong' if each.main else ''}"
    if len(places) == 1:
        return tag("circle", cx=places[0][0], cy=places[0][1], r=4.0, class_=f"dot {each.style}")
    return path(places, classes)


def _labels(frame: _Frame, lines: Sequence[Line]) -> list[Markup]:
    """Return the name of each line at its end, moved so that names do not overlap."""
    ordered = sorted(lines, key=lambda each: frame.y(each.curve.mean[-1]))
    wanted = [frame.y(each.curve.mean[-1]) for each in ordered]
    return [
        text(frame.x.stop + 7, y + 4, each.name, f"name {each.style}{' strong' if each.main else ''}")
        for each, y in zip(ordered, apart(wanted, LABEL_GAP, TOP, HEIGHT - BOTTOM), strict=True)
    ]


def apart(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Return ascending places at least `gap` apart, near the wanted ones and, if they fit, inside [low, high]."""
    places: list[float] = []
    for want in wanted:
        places.append(max(want, places[-1] + gap) if places else max(want, low))
    limit = high
    for i in reversed(range(len(places))):
        places[i] = min(places[i], limit)
        limit = places[i] - gap
    return places


def _hovers(frame: _Frame, lines: Sequence[Line]) -> list[Markup]:
    rounds = sorted({r for each in lines for r in each.curve.rounds})
    every = -(-len(rounds) // HOVERS)
    chosen = rounds[::-every][::-1]  # counted from the end, so that the last round is among them
    width = (frame.x.stop - frame.x.start) / max(1, len(chosen) - 1)
    drawn = []
    for round_ in chosen:
        x = frame.x(round_)
        dots = [
            tag("circle", cx=x, cy=frame.y(_at(each.curve, round_)), r=3.5, class_=f"dot {each.style}")
            for each in lines
            if round_ in each.curve.rounds
        ]
        hit = box(x - width / 2, frame.y.stop, width, frame.y.start - frame.y.stop, "hit")
        guide = line(x, frame.y.stop, x, frame.y.start, "guide")
        drawn.append(mark(hit, guide, *dots, title=f"After round {round_}", note=_note(frame, lines, round_)))
    return drawn


def _at(curve: Curve, round_: int) -> float:
    return curve.mean[curve.rounds.index(round_)]


def _note(frame: _Frame, lines: Sequence[Line], round_: int) -> str:
    words = []
    for each in lines:
        if round_ in each.curve.rounds:
            at = each.curve.rounds.index(round_)
            low, high = each.curve.low[at], each.curve.high[at]
            between = f" ({frame.value(low)} to {frame.value(high)})" if low != high else ""
            words.append(f"{each.name}: {frame.value(each.curve.mean[at])}{between}")
    return "\n".join(words)
