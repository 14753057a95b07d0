"""The path of convex clustering as a picture: a tree whose heights are lambdas, as an SVG file."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from markupsafe import Markup

from coterie.report.figures.svg import COLOURS, Scale, box, even_ticks, line, log_ticks, tag, text
from coterie.report.formats import plain

WIDTH, HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 860.0, 470.0, 48.0, 58.0, 62.0, 58.0
FOOT = 12.0
"""Distance of the points below the smallest lambda."""
NAMED = 40
"""Largest number of points whose names are drawn."""
LETTERS = 12
"""Largest number of characters of a name; longer ones are cut."""
NAME_WIDTH = 6.4
FEW_TICKS = 3
"""Smallest number of logarithmic ticks; with fewer, lambdas are marked at even steps."""
TICK_GAP = 14.0
"""Smallest distance of two labels, so that they do not overlap."""
LIGHT = (
    "--paper: #ffffff; --ink: #1d2329; --soft: #5b6670; --grid: #eceef0; --rest: #9aa2a9; --k0: #0072b2; "
    "--k1: #e69f00; --k2: #009e73; --k3: #cc79a7; --k4: #56b4e9; --k5: #b8470b; --k6: #6f4fa0; --k7: #a8a432; "
    "--k8: #7c4a2d; --k9: #37474f"
)
DARK = (
    "--paper: #1b2025; --ink: #e6e9ec; --soft: #a7b0b8; --grid: #262c32; --rest: #6d767e; --k0: #3d9bd6; "
    "--k1: #e9ad2b; --k2: #27b48b; --k3: #dd94bb; --k4: #8fd0f5; --k5: #e0703a; --k6: #a78bd6; --k7: #c9c558; "
    "--k8: #b98560; --k9: #90a4ae"
)
STYLE = f"""
svg {{ {LIGHT}; font: 13px system-ui, sans-serif; background: var(--paper) }}
@media (prefers-color-scheme: dark) {{ svg {{ {DARK} }} }}
text {{ fill: var(--soft) }} .title {{ fill: var(--ink); font-weight: 600 }} .small {{ font-size: 11px }}
.grid {{ stroke: var(--grid) }} .rest {{ stroke: var(--rest) }} .chosen {{ stroke: var(--ink); stroke-dasharray: 5 4 }}
.branch {{ fill: none; stroke-width: 1.3 }}
""" + "\n".join(
    f".c{k} {{ stroke: var(--k{k}) }} .strip.c{k} {{ fill: var(--k{k}); stroke: none }}" for k in range(COLOURS)
)


@dataclass
class _Branch:
    """Points that are fused at a height; single points are fused at height 0."""

    points: list[int]
    height: float
    children: list[_Branch] = field(default_factory=list)
    x: float = 0.0


def clusterpath(
    tree: np.ndarray,
    lambdas: Sequence[float],
    counts: Sequence[int],
    selected: int,
    labels: Sequence[int],
    names: Sequence[str] | None = None,
) -> str:
    """An SVG file: points along the bottom in the order of the tree, lambda upwards, the clusters of one lambda in
    colour.

    `tree` is a linkage matrix (m - 1, 4) with lambdas as heights, `counts` the clusters at each of `lambdas`,
    `selected` the place of the lambda that was taken, `labels` (m,) its clusters, `names` those of the points (by
    default their numbers).
    """
    root = _grown(tree, len(labels))
    order = _ordered(root)
    bottom = HEIGHT - BOTTOM - (_name_room(names, len(labels)) if len(labels) <= NAMED else 0.0)
    x = Scale(-0.5, len(labels) - 0.5, LEFT, WIDTH - RIGHT)
    y = Scale(lambdas[0], lambdas[-1], bottom - FOOT, TOP, log=True)
    _place(root, {point: x(at) for at, point in enumerate(order)})
    points = "1 point" if len(labels) == 1 else f"{len(labels)} points"
    chosen = lambdas[selected]
    what = f"{counts[selected]} cluster{'s' if counts[selected] != 1 else ''} at λ = {plain(chosen)}"
    parts = [
        *_axes(y, lambdas, counts),
        *_branches(root, y, bottom, chosen, labels),
        *_strip(order, labels, x, bottom),
        *(_names(order, names, x, bottom) if len(labels) <= NAMED else []),
        line(LEFT, y(chosen), WIDTH - RIGHT, y(chosen), "chosen"),
        text(LEFT, 22, what, "title"),
        text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, f"{points} in the order of the tree", "", "middle"),
    ]
    label = f"Clusterpath of {points}: {what}"
    frame = f"0 0 {WIDTH:.0f} {HEIGHT:.0f}"
    drawn = tag(
        "svg",
        tag("style", STYLE),
        *parts,
        viewBox=frame,
        xmlns="http://www.w3.org/2000/svg",
        role="img",
        aria_label=label,
    )
    return f"{drawn}\n"


def _grown(tree: np.ndarray, m: int) -> _Branch:
    """Return the tree with all that fuses at one height as one branch."""
    branches = [_Branch([i], 0.0) for i in range(m)]
    for one, other, height, _ in tree:
        children: list[_Branch] = []
        for branch in (branches[int(one)], branches[int(other)]):
            children += branch.children if branch.height == height else [branch]
        points = branches[int(one)].points + branches[int(other)].points
        branches.append(_Branch(points, float(height), sorted(children, key=lambda child: min(child.points))))
    return branches[-1]


def _ordered(root: _Branch) -> list[int]:
    order, todo = [], [root]
    while todo:
        branch = todo.pop()
        order += [] if branch.children else branch.points
        todo += reversed(branch.children)
    return order


def _all_branches(root: _Branch) -> list[_Branch]:
    """Return every branch, those above before those below."""
    found = [root]
    for branch in found:
        found += branch.children
    return found


def _place(root: _Branch, places: dict[int, float]) -> None:
    for branch in reversed(_all_branches(root)):
        if branch.children:
            branch.x = (branch.children[0].x + branch.children[-1].x) / 2
        else:
            branch.x = places[branch.points[0]]


def _axes(y: Scale, lambdas: Sequence[float], counts: Sequence[int]) -> list[Markup]:
    """Return lambdas at the left; at the right the number of clusters where it changes."""
    drawn = [
        text(LEFT - 10, TOP - 14, "λ", "", "end"),
        text(WIDTH - 6, TOP - 14, "clusters", "", "end"),
    ]
    ticks = log_ticks(lambdas[0], lambdas[-1])
    for tick in ticks if len(ticks) >= FEW_TICKS else even_ticks(lambdas[0], lambdas[-1], FEW_TICKS):
        drawn += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 10, y(tick) + 4, f"{tick:g}", "", "end"),
        ]
    last = math.inf
    for at, count in enumerate(counts):
        place = y(lambdas[at])
        if (at == 0 or count != counts[at - 1]) and last - place >= TICK_GAP:
            drawn.append(text(WIDTH - RIGHT + 10, place + 4, str(count)))
            last = place
    return drawn


def _branches(root: _Branch, y: Scale, bottom: float, chosen: float, labels: Sequence[int]) -> list[Markup]:
    """Return an outline for each branch: a bar at its height, and a stem to each child in its colour."""
    drawn = []
    for branch in _all_branches(root):
        steps = []
        for child in branch.children:
            foot = y(child.height) if child.children else bottom
            steps.append(f"M{child.x:.1f} {foot:.1f}V{y(branch.height):.1f}")
        if not steps:
            continue
        bar = f"M{branch.children[0].x:.1f} {y(branch.height):.1f}H{branch.children[-1].x:.1f}"
        inside = branch.height <= chosen
        if inside:
            drawn.append(tag("path", d=bar + "".join(steps), class_=f"branch c{labels[branch.points[0]] % COLOURS}"))
            continue
        drawn.append(tag("path", d=bar, class_="branch rest"))
        for child, step in zip(branch.children, steps, strict=True):
            drawn += _stem(child, step, branch.height, y, bottom, chosen, labels)
    return drawn


def _stem(
    child: _Branch, step: str, height: float, y: Scale, bottom: float, chosen: float, labels: Sequence[int]
) -> list[Markup]:
    """Return the line from a child to its bar, in the colour of its cluster up to the chosen lambda."""
    if child.height > chosen:
        return [tag("path", d=step, class_="branch rest")]
    foot = y(child.height) if child.children else bottom
    lower, upper = f"M{child.x:.1f} {foot:.1f}V{y(chosen):.1f}", f"M{child.x:.1f} {y(chosen):.1f}V{y(height):.1f}"
    return [
        tag("path", d=lower, class_=f"branch c{labels[child.points[0]] % COLOURS}"),
        tag("path", d=upper, class_="branch rest"),
    ]


def _strip(order: Sequence[int], labels: Sequence[int], x: Scale, bottom: float) -> list[Markup]:
    """Return a coloured bar under each cluster of the chosen lambda, with its number of points if there is space."""
    drawn, begin = [], 0
    gap = min(1.5, 0.15 * (x(1) - x(0)))
    for at in range(1, len(order) + 1):
        if at < len(order) and labels[order[at]] == labels[order[begin]]:
            continue
        left, right = x(begin - 0.5) + gap, x(at - 0.5) - gap
        drawn.append(box(left, bottom + 3, right - left, 7, f"strip c{labels[order[begin]] % COLOURS}"))
        if right - left > 8 * len(str(at - begin)) and len(order) > NAMED:
            drawn.append(text((left + right) / 2, bottom + 24, str(at - begin), "small", "middle"))
        begin = at
    return drawn


def _name_room(names: Sequence[str] | None, m: int) -> float:
    longest = max(len(_short(name)) for name in names) if names else len(str(m - 1))
    return NAME_WIDTH * longest


def _short(name: str) -> str:
    return name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"


def _names(order: Sequence[int], names: Sequence[str] | None, x: Scale, bottom: float) -> list[Markup]:
    drawn = []
    for at, point in enumerate(order):
        place = f"translate({x(at) + 4:.1f} {bottom + 16:.1f}) rotate(-90)"
        drawn.append(
            tag(
                "text",
                _short(names[point]) if names else str(point),
                transform=place,
                class_="small",
                text_anchor="end",
            )
        )
    return drawn
