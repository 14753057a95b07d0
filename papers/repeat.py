"""Run a sample of finished cells again and compare their figures with the stored ones.

    python -m papers.repeat

Run this after a change that must not change results. The sample takes cells that were quick, spread over all
reproductions whose data sets are here. Every cell runs in a new folder, in a worker process with one thread
(OMP_NUM_THREADS=1), as it did when it was stored: with more threads sums are added in another order, and a difference
in the last digit can grow over many rounds. Another processor or another version of torch can do the same.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median

import click
from rich.console import Console
from rich.table import Table

from coterie.data.loaders.store import is_here
from coterie.errors import CoterieError
from coterie.experiments.processes import in_processes
from coterie.experiments.reproduce import RESULTS
from coterie.experiments.reproducing import folder_of
from coterie.experiments.reproduction import Cell, Figures, Reproduction
from coterie.experiments.results import Finished, read_lines
from papers import REPRODUCTIONS
from papers.differences import TOLERANCE, Difference, largest_difference

RESUMED = 0.1
"""A cell that took less than this share of the usual time for its work was resumed: its stored time is not that of a
whole run."""


@dataclass(frozen=True)
class Repeat:
    """A finished cell that is run again."""

    kept_as: str
    cell: Cell
    stored: Figures

    @property
    def label(self) -> str:
        return f"{self.kept_as}: {self.cell.name}, seed {self.cell.seed}"


@dataclass(frozen=True)
class Measure:
    """Work of a worker process: run a cell in a new folder and return its figures."""

    out: Path

    def __call__(self, repeat: Repeat) -> Figures:
        return repeat.cell.measure(folder_of(self.out / repeat.kept_as, repeat.cell))


# ---- the sample ------------------------------------------------------------------------------------------------------


def sample(
    reproductions: Mapping[str, Reproduction], finished: Sequence[Finished], count: int, seconds: float
) -> list[Repeat]:
    """Return up to `count` finished cells that took at most `seconds`, spread evenly over the reproductions.

    Reproductions that share their cells count as one. Within each, the chosen cells are spread over its settings.
    """
    families: dict[str, list[Reproduction]] = {}
    for reproduction in reproductions.values():
        if all(is_here(name) for name in reproduction.needs):
            families.setdefault(reproduction.kept_as, []).append(reproduction)
    offers = [
        _spread_out(_quick(name, members, [line for line in finished if line.reproduction == name], seconds))
        for name, members in families.items()
    ]
    in_turn = (repeat for turn in zip_longest(*offers) for repeat in turn if repeat is not None)
    return [repeat for _, repeat in zip(range(count), in_turn, strict=False)]


def _quick(kept_as: str, members: Sequence[Reproduction], lines: Sequence[Finished], seconds: float) -> list[Repeat]:
    """Return one quick cell of each setting, that with the lowest seed, in the order of the reproduction."""
    stored = {(line.cell, line.seed): line for line in lines}
    seeds = 1 + max((line.seed for line in lines), default=-1)
    cells = {(cell.name, cell.seed): cell for member in members for cell in member.cells(seeds, False)}
    timed = {key: stored[key].seconds / cell.work for key, cell in cells.items() if key in stored}
    usual = median(timed.values()) if timed else 0.0
    found: dict[str, Repeat] = {}
    for (name, seed), pace in timed.items():
        line = stored[name, seed]
        if line.seconds <= seconds and pace >= RESUMED * usual and name not in found:
            found[name] = Repeat(kept_as, cells[name, seed], line.figures)
    return list(found.values())


def _spread_out(repeats: Sequence[Repeat]) -> list[Repeat]:
    """Return the same cells in an order in which every beginning is spread over the whole list."""
    if len(repeats) < 3:
        return list(repeats)
    middle = len(repeats) // 2
    halves = _spread_out(repeats[:middle]), _spread_out(repeats[middle + 1 :])
    rest = [repeat for pair in zip_longest(*halves) for repeat in pair if repeat is not None]
    return [repeats[middle], *rest]


# ---- the command -----------------------------------------------------------------------------------------------------


@click.command()
@click.option("--cells", default=30, show_default=True, type=click.IntRange(min=1), help="Number of cells to repeat.")
@click.option("--seconds", default=15.0, show_default=True, help="Longest time that a cell took when it was stored.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of worker processes. [default: one for each core]")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, show_default="reproductions.jsonl")
def main(cells: int, seconds: float, jobs: int | None, results: Path) -> None:
    """Run a sample of finished cells again and compare their figures with the stored ones.

    The exit code is 1 if a figure differs by more than 1e-6 relative to its size, or if a cell cannot be run.
    """
    chosen = sample(REPRODUCTIONS, read_lines(results), cells, seconds)
    outcomes: dict[str, Difference | CoterieError] = {}
    with tempfile.TemporaryDirectory() as scratch:
        for repeat, figures in in_processes(Measure(Path(scratch)), chosen, jobs, lambda waiting: None):
            if isinstance(figures, CoterieError):
                outcomes[repeat.label] = figures
            else:
                outcomes[repeat.label] = largest_difference(repeat.stored, figures)
            click.echo(f"{len(outcomes)} of {len(chosen)}: {repeat.label}", err=True)
    sys.exit(0 if show(Console(width=180), outcomes) else 1)


def show(console: Console, outcomes: Mapping[str, Difference | CoterieError]) -> bool:
    """Print a row for each cell with the figure that differs most; return whether all cells are the same."""
    table = Table("cell", "figure", "stored", "now", "relative", "same")
    for label, outcome in sorted(outcomes.items()):
        if isinstance(outcome, CoterieError):
            table.add_row(label, "", "", "", "", f"not run: {outcome}")
        else:
            figures = (outcome.figure, str(outcome.stored), str(outcome.now), f"{outcome.relative:.1e}")
            table.add_row(label, *figures, "yes" if outcome.same else "NO")
    console.print(table)
    same = sum(isinstance(outcome, Difference) and outcome.same for outcome in outcomes.values())
    console.print(f"{same} of {len(outcomes)} cells have the same figures (relative difference up to {TOLERANCE:g}).")
    return same == len(outcomes)


if __name__ == "__main__":
    main()
