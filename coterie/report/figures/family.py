"""Family tree of clusters: time from left to right, a line for each cluster, branches at splits, joins at merges."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, Scale, colour, drawing, line, mark, path, tag, text, whole_ticks
from coterie.report.formats import plural

LEFT, RIGHT, TOP, BOTTOM = 14.0, 140.0, 16.0, 42.0
TALL, HIGHEST, LOWEST = 600.0, 24.0, 3.0
"""Height of all lines together, and the largest and smallest height of one line."""
READABLE = 13.0
"""Height of a line below which it has no name."""
TURN = 5.0
"""Largest distance before its change at which a line starts to turn."""


@dataclass(frozen=True)
class Life:
    """A cluster from its first to its last round; after a split it continues as the first part.

    Lives are named by their places in a list of all, in the order in which they began.
    """

    begins: int
    """Round after which it exists, counted from one; 0: from the start."""
    parent: int | None = None
    """Life that it branched off from."""
    ends: int | None = None
    """Round after which it does not exist; None: it exists at the end."""
    joins: int | None = None
    """Life that it was merged into; None if it was removed."""
    number: int | None = None
    """Number of the cluster at the end."""
    size: int | None = None
    """Number of its clients at the end."""


def family_figure(lives: Sequence[Life], rounds: int, label: str) -> Markup:
    """Return the drawing of a run."""
    high = max(LOWEST, min(HIGHEST, TALL / len(lives)))
    rows = rows_of(lives)
    x = Scale(0, rounds, LEFT, WIDTH - RIGHT)
    places = [TOP + high * (row + 0.5) for row in rows]
    floor = TOP + high * len(lives)
    return drawing(
        floor + BOTTOM,
        label,
        *(_life(lives, at, places, x) for at in range(len(lives))),
        *(_name(life, place, x) for life, place in zip(lives, places, strict=True) if high >= READABLE),
        *(text(x(t), floor + 17, str(t), "tick", "middle") for t in whole_ticks(0, rounds)),
        text((x.start + x.stop) / 2, floor + 37, "after round", "axis", "middle"),
    )


def rows_of(lives: Sequence[Life]) -> list[int]:
    """Return the row of each life: below its parent, above the parent's earlier children, so that no branch crosses
    a line that is there by then."""
    order: list[int] = []
    for at, life in enumerate(lives):
        order.insert(len(order) if life.parent is None else order.index(life.parent) + 1, at)
    rows = [0] * len(lives)
    for row, at in enumerate(order):
        rows[at] = row
    return rows


def _life(lives: Sequence[Life], at: int, places: Sequence[float], x: Scale) -> Markup:
    life, y = lives[at], places[at]
    begin, end = x(life.begins), x(x.high if life.ends is None else life.ends)
    points = [(begin, y), (end, y)]
    if life.parent is not None:
        points = [(max(x.start, begin - TURN), places[life.parent]), *points]
    if life.joins is not None:
        points = [*points[:-1], (max(begin, end - TURN), y), (end, places[life.joins])]
    shade = colour(-1 if life.number is None else life.number)
    drawn = [path(points, f"life {shade}")]
    if life.ends is not None and life.joins is None:
        drawn.append(line(end, y - 4, end, y + 4, f"life {shade}"))
    hit = tag("path", d=f"M{begin:.2f} {y:.2f}H{end:.2f}", class_="reach")
    return mark(hit, *drawn, title=_title(life), note=_story(life))


def _title(life: Life) -> str:
    return "A cluster that is gone" if life.number is None else f"Cluster {life.number} at the end"


def _story(life: Life) -> str:
    words = ["there from the start" if life.begins == 0 else f"began after round {life.begins}"]
    if life.ends is not None:
        words.append(f"{'removed' if life.joins is None else 'merged'} after round {life.ends}")
    if life.size is not None:
        words.append(plural(life.size, "client"))
    return "\n".join(words)


def _name(life: Life, y: float, x: Scale) -> Markup:
    if life.number is None:
        return Markup("")
    size = "" if life.size is None else f": {plural(life.size, 'client')}"
    return text(x.stop + 8, y + 4, f"cluster {life.number}{size}", "tick")
