"""The subject of a run: its data, target, samples, clients and features."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.core.schema import Date, Number, Schema
from coterie.errors import InputError
from coterie.training.records import ClientResult

MOST_NAMED = 3
TABLES = ("table", "own-table")


@dataclass(frozen=True)
class Subject:
    """Facts about the data of a run, read from its result.json."""

    features: tuple[int, ...] = ()
    """Shape of one sample."""
    classes: int | None = None
    """Number of classes; None for a regression."""
    labels: tuple[str, ...] = ()
    """Labels of the classes."""
    target: str = ""
    names: tuple[str, ...] = ()
    """Names of the features of a table."""
    columns: tuple[tuple[str, str, str], ...] = ()
    """Notes about the columns of a table: name, action, detail."""
    shares: tuple[str, ...] = ()
    """Names of the features of zeros and ones."""
    dates: tuple[tuple[str, float], ...] = ()
    """Names of the features that are dates, each with the day that is 0, in days since 1970."""


def subject_of(summary: Mapping[str, Any]) -> Subject:
    """Return the subject that a result.json describes; runs of earlier versions contain less."""
    try:
        schema = Schema.of_plain(summary["schema"]) if "schema" in summary else Schema()
    except InputError:
        schema = Schema()
    notes = summary.get("columns") or ()
    return Subject(
        tuple(summary.get("features") or ()),
        summary.get("classes"),
        tuple(map(str, schema.classes)),
        schema.target,
        schema.feature_names,
        tuple((note["column"], note["action"], note["detail"]) for note in notes),
        tuple(set(schema.feature_names) - {each.name for each in schema.columns if isinstance(each, Number | Date)}),
        tuple((each.name, each.origin) for each in schema.columns if isinstance(each, Date)),
    )


def title(config: Mapping[str, Any]) -> str:
    """Return the name of the data in two or three words, such as `table pupils.csv` or `scenario school`."""
    scenario = str(config.get("scenario", "arrays"))
    if scenario in TABLES:
        return f"table {Path(str(config['table'])).name}" if "table" in config else "a table"
    return "arrays" if scenario == "arrays" else scenario


def sentence(config: Mapping[str, Any], subject: Subject, clients: Sequence[ClientResult]) -> str:
    """Return a sentence about the data, such as `Regression of score from 27 features: 11,529 training samples ...`."""
    sizes = sorted(client.n for client in clients)
    each = f" ({sizes[0]:,} to {sizes[-1]:,} each)" if sizes and sizes[0] < sizes[-1] else ""
    who = f"{len(sizes)} client{'s' * (len(sizes) != 1)}"
    column = config.get("client")
    by = f", one for each {column}" if isinstance(column, str) else ""
    return f"{_task(subject)}: {sum(sizes):,} training samples of {who}{each}{by}."


def _task(subject: Subject) -> str:
    what = subject.target or "the target"
    count = math.prod(subject.features) if subject.features else 0
    shape = " x ".join(map(str, subject.features))
    inputs = f"samples of shape {shape}" if len(subject.features) > 1 else f"{count} feature{'s' * (count != 1)}"
    if subject.names and len(subject.names) <= MOST_NAMED:
        inputs = ", ".join(subject.names)
    source = f" from {inputs}" if count else ""
    if subject.classes is None:
        return f"Regression of {what}{source}"
    labels = f" ({', '.join(subject.labels)})" if 0 < len(subject.labels) <= MOST_NAMED else ""
    return f"Classification of {subject.target or 'samples'} in {subject.classes} classes{labels}{source}"
