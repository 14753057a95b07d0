"""The page docs/reproductions.md with the tables and claims of all reproductions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from coterie.experiments.reproduction import Claim, Reproduction, Table
from coterie.experiments.results import read

NOTE = "<!-- Written by `make reproductions` from papers/reproductions.jsonl; do not edit. -->\n"
VERDICTS = {True: "holds", False: "does not hold", None: "not run"}
SUMMARY = "How many of the claims of each figure or table hold; the sections below give the evidence for each."


def page(reproductions: Iterable[Reproduction], results: Path) -> str:
    """Return docs/reproductions.md: all reproductions with their results so far."""
    parts = [
        NOTE,
        "# Reproductions\n",
        "Results of the papers next to those of their reproductions. `coterie reproduce NAME` runs the cells that are "
        "not in `papers/reproductions.jsonl` yet, and adds them; `coterie reproduce NAME --quick` runs a small version "
        "in one or two minutes; `make reproductions` writes this page. Numbers of seeds are in brackets.\n",
    ]
    sections, rows = list[str](), list[list[str]]()
    for reproduction in reproductions:
        found = read(results, reproduction.kept_as)
        claims = reproduction.claims(found, False)
        sections.append(f"## {reproduction.name}\n")
        sections.append(f"{reproduction.title} ({reproduction.paper}). {reproduction.notes}\n")
        sections.append(f"```sh\ncoterie reproduce {reproduction.name}\n```\n")
        sections += [_markdown(table) for table in reproduction.tables(found, False)]
        sections.append(_verdicts(claims))
        counts = [str(sum(claim.holds is verdict for claim in claims)) for verdict in VERDICTS]
        rows.append([f"[{reproduction.name}](#{reproduction.name})", reproduction.paper, *counts])
    parts.append(_markdown(Table(SUMMARY, ["reproduction", "paper", *VERDICTS.values()], rows)))
    return "\n".join([*parts, *sections])


def _markdown(table: Table) -> str:
    lines = [f"{table.title}\n", _row(table.header), _row(["---"] * len(table.header)), *map(_row, table.rows), ""]
    return "\n".join(lines)


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _verdicts(claims: Iterable[Claim]) -> str:
    rows = [[claim.text, VERDICTS[claim.holds], claim.evidence] for claim in claims]
    return _markdown(Table("Claims", ["claim", "verdict", "found"], rows))
