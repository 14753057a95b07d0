"""The picture of ranks: a row for each method, a column for each scenario."""

from __future__ import annotations

from markupsafe import Markup

from benchmarks.scoreboard.entries import Knows
from benchmarks.scoreboard.standing import Standing
from coterie.report.figures.svg import tag

CELL, LEFT, TOP, RIGHT, FOOT = 24.0, 190.0, 130.0, 60.0, 40.0
GAP = 8.0
"""Between two families of scenarios."""
DARK, LIGHT = (16, 78, 139), (238, 243, 248)
"""Colours of the first and of the last rank."""


def picture(standing: Standing) -> str:
    """Return the picture as SVG: the darker a cell, the better the rank; the best methods in the mean are on top."""
    entries = [entry for entry in standing.entries if entry.knows is not Knows.TRUTH]
    places = _places(standing)
    width = (max(places.values(), default=LEFT) + CELL) + RIGHT
    height = TOP + CELL * len(entries) + FOOT
    parts = [tag("rect", x=0.0, y=0.0, width=width, height=height, fill="white")]
    for name, x in places.items():
        at = f"translate({x + CELL * 0.65:.1f} {TOP - 6:.1f}) rotate(-60)"
        parts.append(tag("text", name, transform=at))
    parts.append(tag("text", "mean", x=width - RIGHT + 10, y=TOP - 6, font_weight="bold"))
    for row, entry in enumerate(entries):
        y = TOP + CELL * row
        label = f"{entry.name} (K given)" if entry.knows is Knows.GIVEN else entry.name
        parts.append(tag("text", label, x=LEFT - 8, y=y + CELL * 0.68, text_anchor="end"))
        for name, x in places.items():
            ranking = standing.ranking[name]
            if entry.name in ranking:
                parts.append(_cell(x, y, ranking[entry.name], len(ranking), f"{entry.name}, {name}"))
        rank = standing.mean_rank(entry.name)
        if rank is not None:
            parts.append(tag("text", f"{rank:.1f}", x=width - RIGHT + 10, y=y + CELL * 0.68, font_weight="bold"))
    foot = "Rank of each method in each scenario, 1 is the best; an empty place: the method cannot be used there"
    parts.append(tag("text", foot, x=10.0, y=height - 14))
    return str(
        tag(
            "svg",
            *parts,
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=width,
            height=height,
            font_family="sans-serif",
            font_size=11,
            role="img",
            aria_label="Ranks of all methods in all scenarios",
        )
    )


def _places(standing: Standing) -> dict[str, float]:
    """Return the left edge of each scenario's column."""
    places: dict[str, float] = {}
    x, before = LEFT, ""
    for name in standing.names:
        family = standing.scenarios[name].family
        x += GAP if before not in ("", family) else 0.0
        places[name], before = x, family
        x += CELL
    return places


def _cell(x: float, y: float, rank: float, last: int, title: str) -> Markup:
    share = (rank - 1) / max(last - 1, 1)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(DARK, LIGHT, strict=True))
    ink = "white" if share < 0.5 else "#223"
    square = tag("rect", x=x + 1, y=y + 1, width=CELL - 2, height=CELL - 2, rx=2, fill=f"rgb({red},{green},{blue})")
    number = tag("text", f"{rank:.0f}", x=x + CELL / 2, y=y + CELL * 0.66, fill=ink, text_anchor="middle", font_size=10)
    return tag("g", tag("title", f"{title}: rank {rank:g} of {last}"), square, number)
