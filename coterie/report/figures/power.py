"""Probability of placing a client in its group against its number of samples, with the clients' sizes as a rug."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from markupsafe import Markup

from coterie.diagnosis.values import Power
from coterie.report.figures.svg import WIDTH, Scale, drawing, line, path, tag, text
from coterie.report.figures.titled import titled
from coterie.report.formats import plural

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 300.0, 16.0, 66.0, 52.0, 18.0
RUG = 12.0
"""Length of the lines of the rug."""
WANTED = 0.95
"""Probability from which a client counts as placed."""


def power_figure(power: Power, sizes: Sequence[int], label: str) -> Markup:
    """Return the curve.

    Args:
        power: The curve and the number of samples that is needed.
        sizes: Number of samples of each client.
        label: Text for screen readers.
    """
    needed = power.samples_needed
    places = [point.samples for point in power.curve] + [*sizes] + ([] if needed is None else [needed])
    x = Scale(max(1, min(places)), max(places), LEFT, WIDTH - RIGHT, log=True)
    lowest = min(point.probability for point in power.curve)
    y = Scale(min(0.5, lowest), 1.0, HEIGHT - BOTTOM, TOP)
    curve = path([(x(point.samples), y(point.probability)) for point in power.curve], "curve strong found0")
    dots = [
        titled(
            f"{plural(point.samples, 'sample')}: {100 * point.probability:.0f} %",
            tag("circle", cx=x(point.samples), cy=y(point.probability), r=3.2, class_="dot found0"),
        )
        for point in power.curve
    ]
    marker = [] if needed is None else _needed(needed, x, y)
    return drawing(HEIGHT, label, *_axes(x, y), *_rug(sizes, x), *marker, curve, *dots)


def _axes(x: Scale, y: Scale) -> list[Markup]:
    drawn = []
    for tick in y.ticks(5):
        drawn += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 8, y(tick) + 4, f"{100 * tick:.0f} %", "tick", "end"),
        ]
    for tick in x.ticks():
        drawn.append(text(x(tick), HEIGHT - BOTTOM + RUG + 20, f"{tick:,g}", "tick", "middle"))
    wanted = line(LEFT, y(WANTED), WIDTH - RIGHT, y(WANTED), "switch")
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*drawn, wanted, text(middle, HEIGHT - 10, "samples of the client (logarithmic)", "axis", "middle")]


def _rug(sizes: Sequence[int], x: Scale) -> list[Markup]:
    """Return one line for each number of samples that occurs."""
    top = HEIGHT - BOTTOM
    return [
        titled(
            f"{plural(count, 'client')} of {plural(size, 'sample')}",
            line(x(max(size, 1)), top + 2, x(max(size, 1)), top + 2 + RUG, "rug"),
        )
        for size, count in sorted(Counter(sizes).items())
    ]


def _needed(needed: int, x: Scale, y: Scale) -> list[Markup]:
    """Return a guide from the curve to the axis; its text stands where there is room."""
    place = x(needed)
    right = place > (LEFT + WIDTH - RIGHT) / 2
    return [
        line(place, y(WANTED), place, y.start, "zero"),
        text(place + (-6 if right else 6), y.start - 8, f"95 % with {needed:,}", "axis", "end" if right else "start"),
    ]
