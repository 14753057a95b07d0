"""Marks for pages without a script: the browser shows the title of an element as its tooltip."""

from __future__ import annotations

from markupsafe import Markup

from coterie.diagnosis.values import ClientDiagnosis
from coterie.report.figures.svg import colour, tag


def titled(note: str, *children: object) -> Markup:
    """Return a group of elements with a tooltip that needs no script."""
    return tag("g", tag("title", note), *children)


def group_class(group: int | None) -> str:
    """Return the class that colours a client's group; grey without groups."""
    return "key" if group is None else colour(group)


def faintness(client: ClientDiagnosis) -> str:
    """Return the class of clients whose group is not certain; empty for the others."""
    return "faint" if client.group is not None and not client.can_be_placed else ""
