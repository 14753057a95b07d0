"""Every method with its defaults over many scenarios: `coterie scoreboard`.

`scenarios` draws clients and newcomers, `entries` lists the rows, `cells` measures one row on one scenario, `standing`
has the arithmetic of ranks and shares, `page` and `picture` show it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.scoreboard.cells import chosen_cells
from benchmarks.scoreboard.files import Files, how_to_get
from benchmarks.scoreboard.page import page, summary
from benchmarks.scoreboard.picture import picture
from benchmarks.scoreboard.scenarios import scenarios
from benchmarks.scoreboard.standing import Standing
from coterie.experiments.checkout import code_version
from coterie.experiments.reproduction import Cell, Figures, Found, Table


class Board:
    """Interface of the scoreboard for the command (`coterie.experiments.scoreboard.Scoreboard`)."""

    results = Path(__file__).parent / "results.jsonl"

    def cells(
        self, folder: Path | None, seeds: int | None, only: str | None, methods: str | None, small: bool
    ) -> Sequence[Cell]:
        """Return the cells of the scenarios whose data is here."""
        return chosen_cells(folder, seeds, only, methods, small)

    def is_outdated(self, cell: Cell, figures: Figures) -> bool:
        """Return whether another version of the code measured these figures of a cell."""
        return figures.get("version") != code_version()

    def absent(self, folder: Path | None, only: str | None, small: bool) -> Sequence[str]:
        """Return one line for each source of data that is absent: what is left out, and how to get it."""
        files, left_out = Files(folder), dict[str, list[str]]()
        for scenario in scenarios().values():
            if scenario.needs is not None and scenario.is_chosen(only, small) and not files.has(scenario.needs):
                left_out.setdefault(scenario.needs, []).append(scenario.name)
        return [f"left out: {', '.join(names)} ({how_to_get(needs)})" for needs, names in left_out.items()]

    def summary(self, found: Found) -> Table:
        """Return the summary of finished cells."""
        return summary(Standing(found, scenarios()))

    def page(self, found: Found, drawing: str) -> str:
        """Return the page in Markdown; `drawing` is the file name of the picture."""
        return page(Standing(found, scenarios()), drawing)

    def picture(self, found: Found) -> str:
        """Return the picture of ranks as SVG."""
        return picture(Standing(found, scenarios()))


SCOREBOARD = Board()
