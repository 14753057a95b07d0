"""The number of clusters over the rounds, with a mark at every change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, Scale, drawing, line, mark, path, tag, text, whole_ticks

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 250.0, 30.0, 42.0, 46.0, 16.0
KINDS = {"split": "up", "remove": "down"}
"""Classes of the style sheet; anything else is a merger or regrouping."""


@dataclass(frozen=True)
class Change:
    """One change of K."""

    round: int
    """Round after which it happened, counted from one."""
    kind: str
    K: int
    """Number of clusters afterwards."""
    why: str


def growth_figure(counts: Sequence[int], changes: Sequence[Change], label: str) -> Markup:
    """Return the figure; `counts` are the numbers of clusters after each round."""
    most = max([*counts, *(change.K for change in changes)])
    x = Scale(1, len(counts), LEFT, WIDTH - RIGHT)
    y = Scale(0, most, HEIGHT - BOTTOM, TOP)
    curve = path(_steps(counts, x, y), "curve found0")
    return drawing(HEIGHT, label, *_axes(x, y), curve, *(_mark(change, x, y) for change in changes), *_legend(changes))


def _steps(counts: Sequence[int], x: Scale, y: Scale) -> list[tuple[float, float]]:
    """Return a step function that changes after each round with a change."""
    points = [(x(1), y(counts[0]))]
    for at in range(1, len(counts)):
        points += [(x(at + 1), y(counts[at - 1])), (x(at + 1), y(counts[at]))]
    return points


def _axes(x: Scale, y: Scale) -> list[Markup]:
    drawn = []
    for tick in whole_ticks(0, int(y.high)):
        drawn += [
            line(x.start, y(tick), x.stop, y(tick), "grid"),
            text(x.start - 8, y(tick) + 4, str(tick), "tick", "end"),
        ]
    drawn += [text(x(t), HEIGHT - BOTTOM + 17, str(t), "tick", "middle") for t in whole_ticks(1, int(x.high))]
    return [*drawn, text((x.start + x.stop) / 2, HEIGHT - 5, "round", "axis", "middle")]


def _mark(change: Change, x: Scale, y: Scale) -> Markup:
    dot = tag("circle", cx=x(change.round), cy=y(change.K), r=4.5, class_=KINDS.get(change.kind, "even"))
    return mark(dot, title=f"After round {change.round}: {change.kind}, {change.K} clusters", note=change.why)


def _legend(changes: Sequence[Change]) -> list[Markup]:
    """Return a legend of the kinds of changes that occur, at the top."""
    drawn = []
    for at, kind in enumerate(dict.fromkeys(change.kind for change in changes)):
        left = LEFT + 6 + 84 * at
        drawn += [
            tag("circle", cx=left, cy=12.0, r=4.5, class_=KINDS.get(kind, "even")),
            text(left + 10, 16, kind, "axis"),
        ]
    return drawn
