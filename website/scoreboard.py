"""Measured results for the page "Which method?": the summary of docs/scoreboard.md, if that page has been written."""

from __future__ import annotations

import re

from website.links import ROOT

MEASURED = "<!-- measured results -->"
"""Where a page shows them."""
PAGE = ROOT / "docs" / "scoreboard.md"
ABSENT = "The scoreboard has not been computed in this checkout, so that no table is shown here.\n"


def measured() -> str:
    """Return the first table of the scoreboard and a link to it, or a sentence that there is none."""
    table = re.search(r"(?:^\|.*\n)+", PAGE.read_text(), re.MULTILINE) if PAGE.is_file() else None
    if table is None:
        return ABSENT
    return f"{table[0]}\n[Scoreboard](scoreboard.md) explains the columns and has the scenarios one by one.\n"
