"""Map of the clients of a diagnosis: nearby clients have similar relations between features and target."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from coterie.diagnosis.values import ClientDiagnosis
from coterie.report.figures.svg import WIDTH, Scale, box, drawing, line, tag
from coterie.report.figures.titled import faintness, group_class, titled
from coterie.report.formats import plural

HEIGHT, MARGIN = 380.0, 16.0
SMALLEST, LARGEST = 3.0, 9.0
"""Radii of the points."""
SHOWN = 2000
"""Largest number of clients that are drawn: the largest ones."""


def client_scatter(clients: Sequence[ClientDiagnosis], label: str) -> Markup:
    """Return the map; the radius of a point grows with the logarithm of the client's number of samples.

    Args:
        clients: All clients.
        label: Text for screen readers.
    """
    # small clients are the least certain: they are drawn last and small, and never hide a large one
    drawn = sorted(clients, key=lambda client: -client.samples)[:SHOWN]
    x, y = _scales(drawn)
    frame = box(1, 1, WIDTH - 2, HEIGHT - 2, "frame")
    axes = [
        line(x(0.0), 1, x(0.0), HEIGHT - 1, "grid"),
        line(1, y(0.0), WIDTH - 1, y(0.0), "grid"),
    ]
    most = max(client.samples for client in drawn)
    return drawing(HEIGHT, label, frame, *axes, *(_point(client, x, y, most) for client in drawn))


def _scales(clients: Sequence[ClientDiagnosis]) -> tuple[Scale, Scale]:
    """Return axes with one unit for both directions, with the origin (the average client) inside."""
    left, right = (bound([0.0, *(client.x for client in clients)]) for bound in (min, max))
    low, high = (bound([0.0, *(client.y for client in clients)]) for bound in (min, max))
    width, height = WIDTH - 2 * MARGIN, HEIGHT - 2 * MARGIN
    unit = max((right - left) / width, (high - low) / height) or 1.0
    across, up = (left + right) / 2, (low + high) / 2
    x = Scale(across - unit * width / 2, across + unit * width / 2, MARGIN, WIDTH - MARGIN)
    y = Scale(up - unit * height / 2, up + unit * height / 2, HEIGHT - MARGIN, MARGIN)
    return x, y


def _point(client: ClientDiagnosis, x: Scale, y: Scale, most: int) -> Markup:
    share = math.log1p(client.samples) / math.log1p(most)
    kind = f"point {group_class(client.group)} {faintness(client)}"
    circle = tag("circle", cx=x(client.x), cy=y(client.y), r=SMALLEST + share * (LARGEST - SMALLEST), class_=kind)
    group = ""
    if client.group is not None and client.probability is not None:
        group = f", group {client.group + 1} with probability {100 * client.probability:.0f} %"
    return titled(f"{client.id}, {plural(client.samples, 'sample')}{group}", circle)
