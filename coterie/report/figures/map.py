"""Clients as points between the clusters: the better a model fits a client, the nearer the point is to its corner."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, box, colour, drawing, mark, tag, text

Floats = npt.NDArray[np.float64]

HEIGHT, MARGIN = 340.0, 66.0
RADIUS = 5.0
SHOWN = 2000
"""Largest number of clients that are drawn; of more, every second (third, ...) one."""
SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")
GOLDEN = math.pi * (3 - math.sqrt(5))
"""Golden angle, by which the points of a spiral never coincide."""


@dataclass(frozen=True)
class ClientMap:
    """A drawing with the figures of its caption."""

    svg: Markup
    spread_out: int
    """Number of clients that are drawn next to their place because other clients have the same one."""
    shown: int
    elsewhere: int
    """Number of clients whose held-out samples the model of another cluster fits best; they are drawn hollow."""


def client_map(rows: Sequence[Mapping[str, Any]], truths: Sequence[str], label: str) -> ClientMap | None:
    """Return the map; None without losses under two models. `truths` determines the shape of each group."""
    known = [i for i, row in enumerate(rows) if len(row.get("losses") or ()) > 1]
    if len(known) < 2:
        return None
    chosen = known[:: -(-len(known) // SHOWN)]
    used = sorted({int(rows[i]["cluster"]) for i in known})
    corners = _corners(len(used))
    shares = fit_shares(np.array([rows[i]["losses"] for i in chosen], dtype=float)[:, used])
    places, radii, moved = spread_out(shares @ corners)
    nearest = [used[int(best)] for best in shares.argmax(axis=1)]
    points = [
        _point(i, rows[i], place, radius, truths, elsewhere=best != rows[i]["cluster"])
        for i, place, radius, best in zip(chosen, places, radii, nearest, strict=True)
    ]
    elsewhere = sum(best != rows[i]["cluster"] for i, best in zip(chosen, nearest, strict=True))
    outline = tag("path", d="M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "Z", class_="frame")
    names = [_corner_name(k, corner) for k, corner in zip(used, corners, strict=True)]
    return ClientMap(drawing(HEIGHT, label, outline, *names, *points), moved, len(chosen), elsewhere)


def fit_shares(losses: Floats) -> Floats:
    """Return the shares of the models in a client, (m, K), in proportion to 1 / loss^2; rows sum to one.

    Twice the loss counts a quarter, whatever the unit; equal losses count equally.
    """
    safe = np.maximum(np.nan_to_num(losses, nan=np.inf), 1e-12)
    ratio = (safe.min(axis=1, keepdims=True) / safe) ** 2
    return np.asarray(ratio / ratio.sum(axis=1, keepdims=True))


def _corners(count: int) -> Floats:
    """Return a regular polygon on the page, its first corner on top; two clusters are the ends of a level line."""
    turn = np.arange(count) / max(count, 1) * 2 * np.pi - (np.pi if count == 2 else np.pi / 2)
    radius = np.array([WIDTH / 2 - MARGIN - 40, HEIGHT / 2 - MARGIN])
    return np.asarray(np.stack([np.cos(turn), np.sin(turn)], axis=1) * radius + np.array([WIDTH / 2, HEIGHT / 2]))


def _corner_name(cluster: int, corner: Floats) -> Markup:
    """Return the cluster's name, outside its corner and clear of the points."""
    below = corner[1] > HEIGHT / 2 + 1
    x, y = float(corner[0]), float(corner[1]) + (52 if below else -44)
    chip = box(x - 44, y - 10, 11, 11, f"cell {colour(cluster)}")
    return Markup("").join([chip, text(x - 28, y, f"cluster {cluster}", "axis")])


def spread_out(places: Floats) -> tuple[Floats, list[float], int]:
    """Return points without coincidences, which become spirals, their radii and the number of moved points."""
    groups: dict[tuple[int, int], list[int]] = {}
    for i, (x, y) in enumerate(places):
        groups.setdefault((round(x), round(y)), []).append(i)
    out, radii, moved = places.copy(), [RADIUS] * len(places), 0
    for members in groups.values():
        step = min(1.15 * RADIUS, 34 / math.sqrt(len(members)))
        for at, i in enumerate(members):
            distance = step * math.sqrt(at)
            out[i] += distance * np.array([math.cos(at * GOLDEN), math.sin(at * GOLDEN)])
            radii[i] = min(RADIUS, step * 0.87)
            moved += at > 0
    return out, radii, moved


def _point(
    at: int, row: Mapping[str, Any], place: Floats, radius: float, truths: Sequence[str], *, elsewhere: bool
) -> Markup:
    truth = row.get("truth")
    shape = SHAPES[truths.index(str(truth)) % len(SHAPES)] if truth is not None else "circle"
    kind = f"point{' hollow' if elsewhere else ''} {colour(row['cluster'])}"
    return mark(symbol(shape, float(place[0]), float(place[1]), radius, kind), client=at)


def symbol(shape: str, x: float, y: float, r: float, class_: str) -> Markup:
    """Return a shape of about the same area as a circle of radius r."""
    if shape == "circle":
        return tag("circle", cx=x, cy=y, r=r, class_=class_)
    return tag("path", d=_outline(shape, x, y, r), class_=class_)


def _outline(shape: str, x: float, y: float, r: float) -> str:
    corners = {
        "square": [(-0.88, -0.88), (0.88, -0.88), (0.88, 0.88), (-0.88, 0.88)],
        "triangle": [(0, -1.3), (1.2, 0.85), (-1.2, 0.85)],
        "diamond": [(0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)],
        "down": [(0, 1.3), (1.2, -0.85), (-1.2, -0.85)],
        "cross": [
            *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
            *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
        ],
    }[shape]
    return "M" + "L".join(f"{x + r * a:.2f} {y + r * b:.2f}" for a, b in corners) + "Z"
