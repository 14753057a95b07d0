"""Held-out loss against the number of clusters, with standard errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, Scale, box, drawing, line, mark, path, tag, text, tick_labels
from coterie.report.formats import plain, signed

HEIGHT, TOP, BOTTOM, LEFT, RIGHT = 250.0, 26.0, 42.0, 60.0, 24.0


def choice_figure(table: Sequence[Mapping[str, Any]], chosen: int, label: str) -> Markup:
    """Return the figure; `table` has clusters, loss, behind, se and agreement, and diverged numbers are left out."""
    rows = [row for row in table if row["loss"] is not None]
    ends = [row["loss"] + sign * (row["se"] or 0) for row in rows for sign in (-1, 1)]
    room = 0.05 * (max(ends) - min(ends)) or 0.5
    x = Scale(0.5, len(table) + 0.5, LEFT, WIDTH - RIGHT)
    y = Scale(min(ends) - room, max(ends) + room, HEIGHT - BOTTOM, TOP)
    curve = path([(x(row["clusters"]), y(row["loss"])) for row in rows], "curve self0")
    return drawing(HEIGHT, label, *_axes(x, y, len(table)), curve, *(_point(row, chosen, x, y) for row in rows))


def _axes(x: Scale, y: Scale, most: int) -> list[Markup]:
    ticks = y.ticks()
    drawn = []
    for tick, label in zip(ticks, tick_labels(ticks, percent=False), strict=True):
        drawn += [
            line(LEFT, y(tick), WIDTH - RIGHT, y(tick), "grid"),
            text(LEFT - 8, y(tick) + 4, label, "tick", "end"),
        ]
    drawn += [text(x(k), HEIGHT - BOTTOM + 17, str(k), "tick", "middle") for k in range(1, most + 1)]
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*drawn, text(middle, HEIGHT - 5, "clusters", "axis", "middle")]


def _point(row: Mapping[str, Any], chosen: int, x: Scale, y: Scale) -> Markup:
    K, loss, error = row["clusters"], row["loss"], row["se"] or 0.0
    kind = "c0" if chosen == K else "key"
    hit = box(x(K - 0.5), TOP, x(1) - x(0), HEIGHT - TOP - BOTTOM, "hit")
    bar = line(x(K), y(loss - error), x(K), y(loss + error), f"span {kind}")
    dot = tag("circle", cx=x(K), cy=y(loss), r=5.0 if chosen == K else 3.5, class_=f"point {kind}")
    name = [text(x(K) + 8, y(loss + error) - 8, "chosen", "axis")] if chosen == K else []
    return mark(hit, bar, dot, *name, title=f"K = {K}", note=_note(row))


def _note(row: Mapping[str, Any]) -> str:
    agreed = row["agreement"]
    words = [f"held-out loss {plain(row['loss'], 4)}"]
    if row["behind"]:
        words.append(f"{plain(row['behind'], 2)} ± {plain(row['se'], 2)} behind the lowest")
    if agreed is not None:
        words.append(f"agreement of the trial runs {signed(f'{agreed:.2f}')}")
    return "\n".join(words)
