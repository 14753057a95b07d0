"""Forest plot of clients: the deviation of each from the pooled model, with its interval."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from coterie.diagnosis.values import ClientDiagnosis
from coterie.report.figures.svg import WIDTH, Scale, drawing, even_ticks, line, tag, text, tick_labels
from coterie.report.figures.titled import faintness, group_class, titled
from coterie.report.formats import plain, plural

SHOWN = 60
"""Largest number of clients with a row: half of them the largest ones, half those with the largest deviations."""
LEFT, RIGHT, TOP, BOTTOM, STEP = 132.0, 14.0, 8.0, 42.0, 13.0
LETTERS = 15
"""Largest number of characters of a client's name; the tooltip has the whole name."""
REACH = 3.0
"""Length of the axis as a multiple of the range of four fifths of the estimates; longer intervals end in an arrow."""


@dataclass(frozen=True)
class ClientForest:
    """The drawing, and the clients that it leaves out."""

    svg: Markup
    others: tuple[ClientDiagnosis, ...]


def client_forest(clients: Sequence[ClientDiagnosis], unit: str, label: str) -> ClientForest:
    """Return the forest plot.

    Args:
        clients: All clients.
        unit: Unit of the deviations, for the axis.
        label: Text for screen readers.
    """
    shown = selected(clients)
    rows = sorted(shown, key=lambda client: client.deviation.value)
    others = tuple(client for client in clients if client.id not in {row.id for row in shown})
    x = _scale(rows)
    bottom = TOP + STEP * (len(rows) + bool(others))
    parts = [*_axis(x, bottom, unit), *(_row(at, client, x) for at, client in enumerate(rows))]
    if others:
        parts.append(_summary(len(rows), others, x))
    return ClientForest(drawing(bottom + BOTTOM, label, *parts), others)


def selected(clients: Sequence[ClientDiagnosis]) -> list[ClientDiagnosis]:
    """Return all clients if there are few, else the most deviating ones and the largest of the rest."""
    if len(clients) <= SHOWN:
        return list(clients)
    by_distance = sorted(clients, key=lambda client: -client.distance)
    deviating, rest = by_distance[: SHOWN // 2], by_distance[SHOWN // 2 :]
    return [*deviating, *sorted(rest, key=lambda client: -client.samples)[: SHOWN - len(deviating)]]


def _scale(rows: Sequence[ClientDiagnosis]) -> Scale:
    """Return an axis with zero and all that lies within a few times the usual size of the estimates."""
    sizes = sorted(abs(row.deviation.value) for row in rows)
    reach = REACH * sizes[int(0.8 * (len(sizes) - 1))]
    low = min(0.0, *(max(row.deviation.low, -reach) for row in rows))
    high = max(0.0, *(min(row.deviation.high, reach) for row in rows))
    room = 0.03 * (high - low) or 0.5
    return Scale(low - room, high + room, LEFT, WIDTH - RIGHT)


def _axis(x: Scale, bottom: float, unit: str) -> list[Markup]:
    ticks = even_ticks(x.low, x.high, 5)
    drawn = []
    for tick, label in zip(ticks, tick_labels(ticks, percent=False), strict=True):
        drawn += [
            line(x(tick), TOP, x(tick), bottom, "zero" if tick == 0 else "grid"),
            text(x(tick), bottom + 16, label, "tick", "middle"),
        ]
    return [*drawn, text((x.start + x.stop) / 2, bottom + 35, f"deviation in {unit}", "axis", "middle")]


def _row(at: int, client: ClientDiagnosis, x: Scale) -> Markup:
    y = TOP + STEP * (at + 0.5)
    kind = f"{group_class(client.group)} {faintness(client)}"
    drawn = [_name(client.id, client.samples, y), *_interval(client.deviation.low, client.deviation.high, y, x, kind)]
    deviation = client.deviation
    if x.low <= deviation.value <= x.high:
        drawn.append(tag("circle", cx=x(deviation.value), cy=y, r=3.0, class_=f"point {kind}"))
    note = f"{client.id}, {plural(client.samples, 'sample')}: {plain(deviation.value)}, 95 % interval "
    return titled(f"{note}{plain(deviation.low)} to {plain(deviation.high)}", *drawn)


def _name(name: str, samples: int, y: float) -> Markup:
    short = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
    size = tag("tspan", f" {samples:,}", class_="size")
    return tag("text", short, size, x=LEFT - 8, y=y + 4, class_="axis small", text_anchor="end")


def _interval(low: float, high: float, y: float, x: Scale, kind: str) -> list[Markup]:
    """Return the line of an interval; an end beyond the axis is an arrow."""
    left, right = min(max(low, x.low), x.high), max(min(high, x.high), x.low)
    drawn = [line(x(left), y, x(right), y, f"span {kind}")]
    if low < x.low:
        drawn.append(_arrow(x.start, y, 5, kind))
    if high > x.high:
        drawn.append(_arrow(x.stop, y, -5, kind))
    return drawn


def _arrow(end: float, y: float, back: float, kind: str) -> Markup:
    return tag(
        "path", d=f"M{end + back:.1f} {y - 3:.1f}L{end:.1f} {y:.1f}L{end + back:.1f} {y + 3:.1f}", class_=f"tip {kind}"
    )


def _summary(at: int, others: Sequence[ClientDiagnosis], x: Scale) -> Markup:
    """Return a row for all clients without a row: their mean, weighted by samples, and the middle half of them."""
    y = TOP + STEP * (at + 0.5)
    values = sorted(client.deviation.value for client in others)
    samples = sum(client.samples for client in others)
    mean = sum(client.deviation.value * client.samples for client in others) / max(samples, 1)
    low, high = values[len(values) // 4], values[(3 * len(values)) // 4]
    note = f"{plural(len(others), 'other client')}, {samples:,} samples: mean {plain(mean)}, half of them between "
    diamond = tag("path", d=_diamond(x(min(max(mean, x.low), x.high)), y), class_="point key")
    parts = [_name(f"{len(others):,} others", samples, y), *_interval(low, high, y, x, "key"), diamond]
    return titled(f"{note}{plain(low)} and {plain(high)}", *parts)


def _diamond(x: float, y: float) -> str:
    return f"M{x - 5:.1f} {y:.1f}L{x:.1f} {y - 4.5:.1f}L{x + 5:.1f} {y:.1f}L{x:.1f} {y + 4.5:.1f}Z"
