"""Criterion of each number of groups above the best one, with that of a smooth spread as a line."""

from __future__ import annotations

from markupsafe import Markup

from coterie.diagnosis.values import Candidate, Structure
from coterie.report.figures.svg import WIDTH, Scale, drawing, line, path, tag, text, tick_labels
from coterie.report.figures.titled import titled
from coterie.report.formats import plain, plural

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 300.0, 26.0, 46.0, 64.0, 22.0


def criterion_figure(structure: Structure, label: str) -> Markup:
    """Return the figure; smaller is better, and the best of all is 0.

    Args:
        structure: At least one candidate, and the criterion of a smooth spread if it was fitted.
        label: Text for screen readers.
    """
    values = [candidate.criterion for candidate in structure.candidates]
    least = min(values if structure.continuum is None else [*values, structure.continuum])
    smooth = None if structure.continuum is None else structure.continuum - least
    heights = [value - least for value in values] + ([] if smooth is None else [smooth])
    room = 0.06 * max(heights) or 1.0
    counts = [candidate.clusters for candidate in structure.candidates]
    x = Scale(min(counts) - 0.5, max(counts) + 0.5, LEFT, WIDTH - RIGHT)
    y = Scale(-room, max(heights) + room, HEIGHT - BOTTOM, TOP)
    curve = path([(x(each.clusters), y(each.criterion - least)) for each in structure.candidates], "curve self0")
    points = [
        _point(each, each.criterion - least, each.clusters == structure.clusters, x, y) for each in structure.candidates
    ]
    return drawing(HEIGHT, label, *_axes(x, y, counts), *_smooth(smooth, y), curve, *points)


def _axes(x: Scale, y: Scale, counts: list[int]) -> list[Markup]:
    ticks = [tick for tick in y.ticks() if tick >= 0]
    drawn = []
    for tick, label in zip(ticks, tick_labels(ticks, percent=False), strict=True):
        drawn += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 8, y(tick) + 4, label, "tick", "end"),
        ]
    drawn += [text(x(k), HEIGHT - BOTTOM + 17, str(k), "tick", "middle") for k in counts]
    drawn.append(text(LEFT, 14, "criterion above the best", "axis", "start"))
    return [*drawn, text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "number of groups", "axis", "middle")]


def _smooth(height: float | None, y: Scale) -> list[Markup]:
    if height is None:
        return []
    # the name stands below the line if there is no room above it
    place = y(height) + (16 if y(height) < TOP + 20 else -6)
    mark = line(LEFT, y(height), WIDTH - RIGHT, y(height), "curve one0")
    name = text(WIDTH - RIGHT, place, "smooth spread", "name one0", "end")
    return [titled(f"A smooth spread is {plain(height)} above the best", mark), name]


def _point(candidate: Candidate, height: float, chosen: bool, x: Scale, y: Scale) -> Markup:
    kind = "point c0" if chosen else "point key"
    dot = tag("circle", cx=x(candidate.clusters), cy=y(height), r=6.0 if chosen else 4.0, class_=kind)
    return titled(f"{plural(candidate.clusters, 'group')}: {plain(height)} above the best", dot)
