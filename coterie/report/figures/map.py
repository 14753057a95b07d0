"""The clients as points: near one another where the same models fit them equally well."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, colour, drawing, mark, tag, text

Floats = npt.NDArray[np.float64]

HEIGHT, MARGIN = 330.0, 42.0
RADIUS = 5.0
SHOWN = 2000
"""At most so many clients are drawn; of more, every second (third, ...) one."""
SHAPES = ("circle", "square", "triangle", "diamond", "down", "cross")
GOLDEN = math.pi * (3 - math.sqrt(5))
"""The angle by which sunflower seeds follow one another: no two of them fall on one spot."""


@dataclass(frozen=True)
class ClientMap:
    """The drawing and what its caption has to say."""

    svg: Markup
    shares: tuple[float, float]
    """Parts of the variance that the two directions hold."""
    spread_out: int
    """Clients drawn beside their true place because others are on it."""
    shown: int


def client_map(rows: Sequence[Mapping[str, Any]], truths: Sequence[str], label: str) -> ClientMap | None:
    """None unless there are losses under at least two models. `truths` fixes which group has which shape."""
    known = [i for i, row in enumerate(rows) if len(row.get("losses") or ()) > 1]
    if len(known) < 2:
        return None
    chosen = known[:: -(-len(known) // SHOWN)]
    flat, shares = project(np.array([rows[i]["losses"] for i in chosen], dtype=float))
    places, radii, moved = spread_out(_to_page(flat))
    points = [_point(i, rows[i], place, radius, truths) for i, place, radius in zip(chosen, places, radii, strict=True)]
    axis = text(WIDTH / 2, HEIGHT - 6, f"first direction ({100 * shares[0]:.0f} % of the variance)", "axis", "middle")
    side = tag(
        "text",
        f"second ({100 * shares[1]:.0f} %)",
        class_="axis",
        text_anchor="middle",
        transform=f"translate(13 {HEIGHT / 2 - 8:.0f}) rotate(-90)",
    )
    frame = tag("rect", x=24, y=4, width=WIDTH - 28, height=HEIGHT - 28, rx=6, class_="frame")
    return ClientMap(drawing(HEIGHT, label, frame, axis, side, *points), shares, moved, len(chosen))


def project(losses: Floats) -> tuple[Floats, tuple[float, float]]:
    """The two main directions of the log losses (m, K) -> (m, 2), and their shares of the variance.

    The logarithm makes "twice as bad" the same step everywhere. Signs are fixed (largest coefficient positive), so
    that the same run gives the same picture.
    """
    logs = np.log(np.maximum(np.nan_to_num(losses, nan=1e12, posinf=1e12), 1e-12))
    centred = logs - logs.mean(axis=0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    flat = centred @ (directions * signs[:, None]).T
    total = float((sizes**2).sum())
    shares = [float(s * s / total) if total > 0 else 0.0 for s in sizes] + [0.0]
    flat = np.hstack([flat, np.zeros((len(flat), 2))])[:, :2]
    return flat, (shares[0], shares[1])


def _to_page(flat: Floats) -> Floats:
    """One scale for both directions, so that distances on the page are true."""
    low, high = flat.min(axis=0), flat.max(axis=0)
    extent = np.maximum(high - low, 1e-12)
    room = np.array([WIDTH - 2 * MARGIN - 24, HEIGHT - 2 * MARGIN - 24])
    scale = float((room / extent).min()) if (high > low).any() else 0.0
    middle = np.array([(24 + WIDTH - 4) / 2, (4 + HEIGHT - 24) / 2])
    page = (flat - (low + high) / 2) * scale * np.array([1, -1]) + middle
    return np.asarray(page, dtype=np.float64)


def spread_out(places: Floats) -> tuple[Floats, list[float], int]:
    """Points that fall on one spot (to a pixel) become a sunflower around it; also their radii and how many moved."""
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


def _point(at: int, row: Mapping[str, Any], place: Floats, radius: float, truths: Sequence[str]) -> Markup:
    truth = row.get("truth")
    shape = SHAPES[truths.index(str(truth)) % len(SHAPES)] if truth is not None else "circle"
    return mark(symbol(shape, float(place[0]), float(place[1]), radius, f"point {colour(row['cluster'])}"), client=at)


def symbol(shape: str, x: float, y: float, r: float, class_: str) -> Markup:
    """A shape of about the same area as a circle of radius r."""
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
