"""Gains and losses of the clients: one bar for each, from the largest gain to the largest loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from coterie.report.comparison import SAME, Gain
from coterie.report.figures.svg import WIDTH, Scale, box, drawing, even_ticks, line, mark, path, text
from coterie.report.formats import plain, signed

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 240.0, 14.0, 30.0, 52.0, 8.0
SINGLE = 1000
"""Number of clients beyond which the bars become one outline without tooltips."""


def gains_figure(found: Sequence[Gain], places: Mapping[str, int], label: str, percent: bool) -> Markup:
    """Return the figure; `places` holds the index of each client in the data of the page."""
    low = min(0.0, *(g.gain for g in found)) if found else 0.0
    high = max(0.0, *(g.gain for g in found)) if found else 0.0
    if low == high:
        low, high = -0.01, 0.01
    room = 0.05 * (high - low)
    x = Scale(0, len(found), LEFT, WIDTH - RIGHT)
    y = Scale(low - room * (low < 0), high + room * (high > 0), HEIGHT - BOTTOM, TOP)
    bars = _bars(found, places, x, y) if len(found) <= SINGLE else _outline(found, x, y)
    zero = line(LEFT, y(0), WIDTH - RIGHT, y(0), "zero")
    caption = text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 6, "clients, by gain", "axis", "middle")
    return drawing(HEIGHT, label, *_axis(y, percent), *bars, zero, caption)


def _axis(y: Scale, percent: bool) -> list[Markup]:
    drawn = []
    for tick in even_ticks(y.low, y.high, 5):
        label = _signed(100 * tick, 1 if y.high - y.low < 0.04 else 0) if percent else _plain_signed(tick)
        drawn += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 8, y(tick) + 4, label, "tick", "end"),
        ]
    return drawn


def _signed(value: float, decimals: int) -> str:
    return signed(f"{value:+.{decimals}f}") if value else "0"


def _plain_signed(value: float) -> str:
    return ("+" if value > 0 else "") + plain(value, 2)


def _bars(found: Sequence[Gain], places: Mapping[str, int], x: Scale, y: Scale) -> list[Markup]:
    width = x(1) - x(0)
    gap = min(1.5, width * 0.2)
    drawn = []
    for at, gain in enumerate(found):
        top, bottom = sorted((y(gain.gain), y(0)))
        kind = "up" if gain.gain > SAME else "down" if gain.gain < -SAME else "even"
        bar = box(x(at) + gap / 2, top if bottom - top > 1 else top - 0.5, width - gap, max(1.0, bottom - top), kind)
        hit = box(x(at), TOP, width, HEIGHT - TOP - BOTTOM, "hit")
        drawn.append(mark(hit, bar, client=places.get(gain.client)))
    return drawn


def _outline(found: Sequence[Gain], x: Scale, y: Scale) -> list[Markup]:
    drawn = []
    for kind, chosen in (("up", [g.gain > 0 for g in found]), ("down", [g.gain < 0 for g in found])):
        edge = [(x(at + 0.5), y(g.gain)) for at, (g, take) in enumerate(zip(found, chosen, strict=True)) if take]
        if edge:
            drawn.append(path([(edge[0][0], y(0)), *edge, (edge[-1][0], y(0))], kind, closed=True))
    return drawn
