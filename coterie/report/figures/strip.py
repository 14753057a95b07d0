"""The formation of the groups: a row for each client and a column for each round, or the sizes if clients are many."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

from markupsafe import Markup

from coterie.report.figures.svg import WIDTH, Scale, box, colour, drawing, line, mark, path, text, whole_ticks
from coterie.report.reading import RunData
from coterie.training.records import RoundRecord

LEFT, RIGHT, TOP = 74.0, 8.0, 22.0
MOVES, GAP, BOTTOM = 54.0, 36.0, 42.0
"""Heights of the chart of moves, of the space above it, and of the axis below it."""
AREA = 260.0


@dataclass(frozen=True)
class Row:
    """Clusters of one client over the rounds."""

    client: int | None
    """Index of the client in the data of the page; None if it did not answer at the end."""
    clusters: tuple[int, ...]
    final: int
    truth: str


def formation(run: RunData, label: str) -> Markup | None:
    """Return the strip if records contain the cluster of every client, else the sizes; None if they contain neither."""
    records = run.records
    if records and all("assignments" in record for record in records):
        return _strip(run, label)
    if records and all("sizes" in record for record in records):
        return _areas(run, label)
    return None


def is_strip(run: RunData) -> bool:
    """Whether single clients are visible."""
    return bool(run.records) and all("assignments" in record for record in run.records)


def leaders(run: RunData) -> list[tuple[int, int, int]]:
    """Return (first round, last round, restart) for each leading restart, rounds counted from one."""
    if not run.records or any("restart" not in record for record in run.records):
        return []
    return [
        (part[0][0] + 1, part[-1][0] + 1, start)
        for start, group in groupby(enumerate(r["restart"] for r in run.records), key=lambda pair: pair[1])
        if (part := list(group))
    ]


def seen(run: RunData) -> list[int]:
    """Return every cluster that has a client in some round or at the end."""
    found = {row.cluster for row in run.clients}
    for record in run.records:
        found |= set(record.get("assignments", ()))
        found |= {k for k, size in enumerate(record.get("sizes", ())) if size}
    return sorted(k for k in found if k >= 0)


def rows_of(run: RunData) -> list[Row]:
    """Return all clients, ordered by final cluster, then true group, then as they came."""
    series = list(zip(*(record["assignments"] for record in run.records), strict=True))
    # the final rows name only the clients that answered; positions match only when all did
    same = len(series) == len(run.clients)
    rows = [
        Row(i if same else None, moves, run.clients[i].cluster, str(run.clients[i].get("truth", "")))
        if same
        else Row(None, moves, moves[-1], "")
        for i, moves in enumerate(series)
    ]
    return sorted(rows, key=lambda row: (row.final < 0, row.final, row.truth))


def _strip(run: RunData, label: str) -> Markup:
    rows = rows_of(run)
    high = max(1.2, min(14.0, 320 / len(rows)))
    inked = high - 0.7 if high >= 4 else high + 0.3  # rows apart where there is room, without seams where there is none
    x = _rounds(run)
    floor = TOP + high * len(rows)
    segments = _segments(run)
    starts = [start for first, last, start in leaders(run) for _ in range(first, last + 1)]
    drawn: list[Markup] = []
    for at, row in enumerate(rows):
        cells = [
            box(x(a), TOP + at * high, x(b) - x(a), inked, f"cell {colour(k)}{' other' if other else ''}")
            for a, b, k, other in _runs(row.clusters, segments)
        ]
        drawn.append(mark(*cells, client=row.client, note=story(row.clusters, starts)))
    return drawing(
        floor + GAP + MOVES + BOTTOM,
        label,
        *drawn,
        *_blocks(rows, high),
        *_leads(run, x, floor),
        *_moves(run, x, floor + GAP),
    )


def _rounds(run: RunData) -> Scale:
    """Return the scale of rounds: round t (from zero) lies between x(t) and x(t + 1)."""
    return Scale(0, len(run.records), LEFT, WIDTH - RIGHT)


def _segments(run: RunData) -> list[bool]:
    """Return for each round whether another restart than the final one was best."""
    won = run.metrics.get("restart")
    return [won is not None and record.get("restart", won) != won for record in run.records]


def _runs(clusters: Sequence[int], other: Sequence[int]) -> list[tuple[int, int, int, int]]:
    """Return intervals in which both stay the same: (first column, column after the last, cluster, the other)."""
    found, begin = [], 0
    for at in range(1, len(clusters) + 1):
        if at == len(clusters) or (clusters[at], other[at]) != (clusters[begin], other[begin]):
            found.append((begin, at, clusters[begin], other[begin]))
            begin = at
    return found


def story(clusters: Sequence[int], starts: Sequence[int] = (), most: int = 6) -> str:
    """Return lines such as `rounds 1 to 3: cluster 2`; `starts` is the leading restart of each round."""
    words = []
    several = len(set(starts)) > 1
    for a, b, k, start in _runs(clusters, starts if several else [0] * len(clusters)):
        when = f"round {a + 1}" if b == a + 1 else f"rounds {a + 1} to {b}"
        where = f"cluster {k}" if k >= 0 else "not heard yet"
        words.append(f"{when}: {where}" + (f" of restart {start}" if several and k >= 0 else ""))
    if len(words) > most:
        words = [f"changed {len(words) - 1} times; at the end:", *words[-most + 1 :]]
    return "\n".join(words)


def _blocks(rows: Sequence[Row], high: float) -> list[Markup]:
    """Return the names of the final clusters at the left, and lines between them."""
    drawn, at = [], 0
    for final, group in groupby(row.final for row in rows):
        size = len(list(group))
        top, bottom = TOP + at * high, TOP + (at + size) * high
        drawn.append(line(LEFT - 5, top + 1, LEFT - 5, bottom - 1, f"block {colour(final)}"))
        if size * high >= 12:
            name = f"cluster {final}" if final >= 0 else "not heard"
            drawn.append(text(LEFT - 10, (top + bottom) / 2 + 4, name, "tick", "end"))
        at += size
    return drawn


def _leads(run: RunData, x: Scale, floor: float) -> list[Markup]:
    """Return a line where another restart took the lead, with the numbers of the restarts above it."""
    parts = leaders(run)
    if len(parts) < 2:
        return []
    drawn = [line(x(b - 1), TOP - 4, x(b - 1), floor + 4, "switch") for b, _, _ in parts[1:]]
    for first, last, start in parts:
        if x(last) - x(first - 1) >= 46:
            drawn.append(text((x(first - 1) + x(last)) / 2, TOP - 8, f"restart {start}", "tick", "middle"))
    return drawn


def _moves(run: RunData, x: Scale, top: float) -> list[Markup]:
    """Return bars with the number of clients that changed their cluster in each round."""
    moved = [record.moved for record in run.records]
    most = max(moved)
    y = Scale(0, max(1, most), top + MOVES, top)
    width = x(1) - x(0)
    title = "clients that moved to another cluster, by round" if most else "no client ever moved to another cluster"
    drawn = [
        line(LEFT, y(0), WIDTH - RIGHT, y(0), "zero"),
        text(LEFT, top - 8, title, "axis"),
        text(LEFT - 8, y(0) + 4, "0", "tick", "end"),
    ]
    if most:
        drawn.append(text(LEFT - 8, y(most) + 5, str(most), "tick", "end"))
    for at, number in enumerate(moved):
        hit = box(x(at), top, width, MOVES, "hit")
        bar = box(x(at) + width * 0.12, y(number), width * 0.76, y(0) - y(number), "plainbar")
        drawn.append(mark(hit, bar, title=f"Round {at + 1}", note=_moved_note(run.records[at], number)))
    for round_ in whole_ticks(1, len(moved)):
        drawn.append(text(x(round_ - 0.5), top + MOVES + 16, str(round_), "tick", "middle"))
    drawn.append(text((LEFT + WIDTH - RIGHT) / 2, top + MOVES + 36, "round", "axis", "middle"))
    return drawn


def _moved_note(record: RoundRecord, number: int) -> str:
    sizes = record.get("sizes")
    held = (
        [f"cluster {k}: {size} clients" for k, size in enumerate(sizes) if size] if sizes and len(sizes) <= 12 else []
    )
    return "\n".join([f"{number} moved", *held])


def _areas(run: RunData, label: str) -> Markup:
    """Return sizes of the clusters stacked over the rounds; clients that have not answered yet on top."""
    x = _rounds(run)
    m = max(len(run.clients), *(sum(record["sizes"]) for record in run.records))
    y = Scale(0, m, TOP + AREA, TOP)
    K = max(len(record["sizes"]) for record in run.records)
    stacks: list[list[int]] = []
    for record in run.records:
        sizes = [*record["sizes"], *([0] * (K - len(record["sizes"])))]
        stacks.append([0, *(sum(sizes[: k + 1]) for k in range(K)), m])
    edges = list(zip(*stacks, strict=True))
    xs = [x(t + 0.5) for t in range(len(run.records))]
    drawn = [
        _area(xs, low, high, y, colour(k if k < K else -1))
        for k, (low, high) in enumerate(pairwise(edges))
        if any(high)
    ]
    labels = [text(LEFT - 8, y(v) + 4, str(v), "tick", "end") for v in (0, m // 2, m)]
    title = text(LEFT, TOP - 8, "clients in each cluster", "axis")
    return drawing(TOP + AREA + GAP + MOVES + BOTTOM, label, title, *drawn, *labels, *_moves(run, x, TOP + AREA + GAP))


def _area(xs: Sequence[float], low: Sequence[int], high: Sequence[int], y: Scale, class_: str) -> Markup:
    xs = [LEFT, *xs, WIDTH - RIGHT]
    there = [(x, y(v)) for x, v in zip(xs, [high[0], *high, high[-1]], strict=True)]
    back = [(x, y(v)) for x, v in zip(xs, [low[0], *low, low[-1]], strict=True)]
    return path([*there, *back[::-1]], f"cell {class_}", closed=True)
