"""The choice of the number of clusters by trial runs: the answer, and the section with the table and the figure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coterie.report.figures.choice import choice_figure
from coterie.report.formats import ABSENT, count, plain, plural, signed
from coterie.report.reading import RunData

COLUMNS = ("K", "held-out loss", "behind the lowest", "agreement", "in use")


def section(run: RunData) -> dict[str, Any] | None:
    """Return the section about the choice; None if the number of clusters was not left to trial runs."""
    found = run.metrics.get("chosen")
    if not found:
        return None
    label = f"Held-out loss for 1 to {plural(len(found['table']), 'cluster')}; {found['clusters']} chosen"
    return {
        "how": how(found),
        "cautions": found["warnings"],
        "columns": COLUMNS,
        "rows": list(
            zip(table_rows(found), (row["clusters"] == found["clusters"] for row in found["table"]), strict=True)
        ),
        "svg": choice_figure(found["table"], found["clusters"], label),
    }


def answer(found: Mapping[str, Any]) -> str:
    """Return the answer in words."""
    return str(found["answer"])


def how(found: Mapping[str, Any]) -> str:
    """Return a sentence about the trial runs."""
    trials = len(found["table"]) * found["seeds"]
    return (
        f"{plural(trials, 'trial run')} of at most {plural(found['rounds'], 'round')}, "
        f"{plural(found['seeds'], 'seed')} for every number of clusters K, with {100 * found['share']:g} % of each "
        f"client's training samples held out; {plural(found['judged'], 'client')} judged."
    )


def table_rows(found: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """Return the texts under `COLUMNS` for each K."""
    return [
        (
            str(row["clusters"]),
            plain(row["loss"], 4),
            _behind(row),
            ABSENT if row["agreement"] is None else signed(f"{row['agreement']:.2f}"),
            count(row["in_use"]),
        )
        for row in found["table"]
    ]


def _behind(row: Mapping[str, Any]) -> str:
    """Return the difference to the lowest loss with its standard error; `lowest` for the lowest loss itself."""
    if row["behind"] == 0 and row["se"] == 0:
        return "lowest"
    return f"{plain(row['behind'], 2)} ± {plain(row['se'], 2)}"
