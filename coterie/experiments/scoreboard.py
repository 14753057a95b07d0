"""Scoreboard of all methods, which is in the folder `benchmarks` of the repository."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from coterie.errors import ConfigError
from coterie.experiments.checkout import import_from_checkout
from coterie.experiments.pools import Pool
from coterie.experiments.processes import leave_if_importing_main
from coterie.experiments.reproducing import OnCell, OnProgress, run_cells
from coterie.experiments.reproduction import Cell, Figures, Found, Table
from coterie.experiments.results import read

KEPT_AS = "scoreboard"
"""Name of the scoreboard in the file of finished cells."""


class Scoreboard(Protocol):
    """Protocol of the scoreboard that the folder `benchmarks` defines."""

    results: Path
    """File of finished cells in the checkout."""

    def cells(
        self, folder: Path | None, seeds: int | None, only: str | None, methods: str | None, small: bool
    ) -> Sequence[Cell]:
        """Return the cells of the scenarios whose data is stored on this machine."""
        ...

    def is_outdated(self, cell: Cell, figures: Figures) -> bool:
        """Whether another version of the code measured these figures of a cell."""
        ...

    def absent(self, folder: Path | None, only: str | None, small: bool) -> Sequence[str]:
        """Return one line for each missing source of data of the chosen scenarios."""
        ...

    def summary(self, found: Found) -> Table:
        """Return the summary of finished cells."""
        ...

    def page(self, found: Found, drawing: str) -> str:
        """Return the page in Markdown; `drawing` is the file name of the picture."""
        ...

    def picture(self, found: Found) -> str:
        """Return the picture of ranks as SVG."""
        ...


def find_scoreboard() -> Scoreboard:
    """Return the scoreboard of the checkout.

    Raises:
        ConfigError: if the package does not run from a checkout of the repository.
    """
    found: Scoreboard = import_from_checkout("benchmarks.scoreboard", "the scoreboard is").SCOREBOARD
    return found


@dataclass(frozen=True)
class Scores:
    """Finished cells of the scoreboard."""

    found: Found
    failed: Sequence[str]
    """Cells that failed, one line each."""


def run_scoreboard(
    board: Scoreboard,
    *,
    folder: Path | None = None,
    seeds: int | None = None,
    only: str | None = None,
    methods: str | None = None,
    small: bool = False,
    again: bool = False,
    pool: Pool | None = None,
    results: Path | None = None,
    on_start: Callable[[Sequence[Cell]], None] = lambda cells: None,
    on_progress: OnProgress = lambda cell, done: None,
    on_cell: OnCell = lambda cell, figures, seconds: None,
) -> Scores:
    """Run the missing cells of the scoreboard.

    Args:
        board: The scoreboard.
        folder: Folder with the user's data files.
        seeds: Number of seeds of each cell.
        only: Run only scenarios whose name contains this text.
        methods: Names of rows, separated by commas; by default all.
        small: Whether to run a small version, which takes about two minutes and stores nothing.
        again: Whether to run cells again that another version of the code has measured.
        pool: The worker processes; by default one for each core.
        results: File to which finished cells are added; by default that of the checkout.
        on_start: Function that is called with the cells that will be run.
        on_progress: Function that is called repeatedly with a cell and its finished work.
        on_cell: Function that is called with each finished cell, its figures and its duration in seconds.

    Returns:
        All finished cells of the file, and the failures.

    Raises:
        ConfigError: if no cell is left to run.
    """
    leave_if_importing_main()
    cells = board.cells(folder, seeds, only, methods, small)
    if not cells:
        raise ConfigError(
            "no cell is left, because no scenario with stored data has this text in its name: change --only, or "
            "download the data"
        )
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "results.jsonl" if small else results or board.results
        before = read(file, KEPT_AS)
        known = {(name, seed): figures for name, by_seed in before.items() for seed, figures in by_seed.items()}

        def is_open(cell: Cell) -> bool:
            figures = known.get((cell.name, cell.seed))
            return figures is None or (again and board.is_outdated(cell, figures))

        missing = [cell for cell in cells if is_open(cell)]
        on_start(missing)
        failed = run_cells(KEPT_AS, missing, Path(scratch), file, pool, on_progress, on_cell)
        return Scores(read(file, KEPT_AS), failed)
