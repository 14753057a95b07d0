"""Measured results for the pages: the summary of docs/scoreboard.md, if that page has been written.

The page "Which method?" shows the table, and the page of each method what was measured with it.
"""

from __future__ import annotations

import re

from coterie.cli.reference import page_name
from coterie.methods.base import Method
from website.links import ROOT

MEASURED = "<!-- measured results -->"
"""Comment that the table replaces."""
PAGE = ROOT / "docs" / "scoreboard.md"
ABSENT = "The scoreboard has not been computed in this checkout, so that no table is shown here.\n"
READING = (
    "Rank is the mean rank over the scenarios (cases) in which a method can be used: lower is better. Gain is the "
    "share of the difference between one model for all clients (`fedavg`) and known groups (`oracle`) that a method "
    "gains, and 95 % counts the scenarios with at least 95 % of it. K says whether a method finds the number of "
    "clusters or is given the true one. [Scoreboard](scoreboard.md) explains the other columns and has the scenarios "
    "one by one.\n"
)


def measured() -> str:
    """Return the table of methods that do not know the groups, or a sentence that there is none."""
    table = _table()
    if not table:
        return ABSENT
    rows = [line for line in table if _cells(line)[1] != "truth"]
    return "\n".join([*(with_links(line, "methods/") for line in rows), "", READING])


def standing(name: str) -> str:
    """Return the section about a method on the scoreboard; empty for methods without a rank."""
    rows = {_cells(line)[0].strip("`"): _cells(line) for line in _table()[2:]}
    if name not in rows or rows[name][2] == "-":
        return ""
    text = f"{_rank(rows[name])}."
    if f"{name}-auto" in rows:
        text += f" With `clusters=auto`: {_rank(rows[f'{name}-auto']).lower()}."
    best = re.search(rf"^- `{re.escape(name)}`: (.*)$", PAGE.read_text(), re.MULTILINE)
    if best is not None:
        sentence = re.sub(r"(best|worst) on (\w+) ", r"\1 on \2 scenarios ", best[1])
        text += f" {sentence[0].upper()}{sentence[1:]}"
    return f"## On the scoreboard\n\n{text} [Scoreboard](../scoreboard.md) explains the figures.\n\n"


def with_links(line: str, folder: str) -> str:
    """Return a line of a table or a list whose first name, if it is that of a method, leads to its page."""
    match = re.match(r"(\| |- )`([^`]+)`", line)
    kind = Method.members.get(match[2]) if match is not None else None
    if match is None or kind is None:
        return line
    return f"{match[1]}[`{match[2]}`]({folder}{page_name(kind)}){line[match.end() :]}"


def _table() -> list[str]:
    """Return the lines of the first table of the scoreboard; empty if the page has not been written."""
    table = re.search(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE) if PAGE.is_file() else None
    return table[0].splitlines() if table is not None else []


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


def _rank(cells: list[str]) -> str:
    _, clusters, rank, cases, gain, *_ = cells
    given = " with the true number of clusters" if clusters == "given" else ""
    return f"Mean rank {rank} in {cases} scenarios{given}, {gain} of the possible gain"
