"""Runs the cells of a reproduction in parallel processes, and stores each finished cell at once."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import ConfigError, CoterieError
from coterie.experiments.checkout import code_version
from coterie.experiments.pools import Pool, Processes
from coterie.experiments.reproduction import Cell, Figures, Found, Reproduction
from coterie.experiments.results import Measured, append


@dataclass(frozen=True)
class _Measure:
    """Function that measures a cell in a worker process."""

    out: Path

    def __call__(self, cell: Cell) -> Measured:
        folder, started = folder_of(self.out, cell), time.perf_counter()
        resumed = cell.done(folder) > 0
        return Measured(cell.measure(folder), time.perf_counter() - started, resumed)


OnProgress = Callable[[Cell, int], None]
"""Function that is called repeatedly with a cell and its finished work."""
OnCell = Callable[[Cell, Figures, float], None]
"""Function that is called with a finished cell, its figures and its duration in seconds."""


def folder_of(out: Path, cell: Cell) -> Path:
    """Return the folder for the run of a cell, named by the cell and its seed."""
    return out / f"{re.sub('[^a-z0-9.=]+', '-', cell.name.lower()).strip('-')}-seed{cell.seed}"


def open_cells(reproduction: Reproduction, found: Found, seeds: int, quick: bool, only: str | None) -> list[Cell]:
    """Return the cells without a result whose name contains `only`.

    Raises:
        ConfigError: if no name of a cell contains `only`.
    """
    cells = reproduction.cells(seeds, quick)
    chosen = [cell for cell in cells if only is None or only.lower() in cell.name.lower()]
    if not chosen:
        names = sorted({cell.name for cell in cells})
        raise ConfigError(
            f"no cell of {reproduction.name} contains {only!r} in its name: choose from {'; '.join(names)}"
        )
    return [cell for cell in chosen if cell.seed not in found.get(cell.name, {})]


def run_cells(
    kept_as: str,
    cells: Sequence[Cell],
    out: Path,
    results: Path,
    pool: Pool | None = None,
    on_progress: OnProgress = lambda cell, done: None,
    on_cell: OnCell = lambda cell, figures, seconds: None,
) -> list[str]:
    """Run or resume cells, append each finished cell to the results file, and return one line for each failure."""
    failed: list[str] = []
    version = code_version()

    def watch(unfinished: Sequence[Cell]) -> None:
        for cell in unfinished:
            on_progress(cell, cell.done(folder_of(out, cell)))

    # workers may have another current folder
    for cell, outcome in (pool or Processes()).run(_Measure(out.absolute()), cells, watch, out):
        if isinstance(outcome, CoterieError):
            failed.append(f"{cell.name}, seed {cell.seed}: {outcome}")
            continue
        append(results, kept_as, cell, outcome, version)
        on_progress(cell, cell.work)
        on_cell(cell, outcome.figures, outcome.seconds)
    return failed
