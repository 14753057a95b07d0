"""Run the unfinished cells of all reproductions, the cheapest first, and write the pages.

    python -m papers.nightly --list
    python -m papers.nightly --hours 8

Every finished cell is stored at once, and an interrupted one is resumed, so that the command can be stopped at any time
and continues where it stopped.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from coterie.data.loaders.store import is_here
from coterie.experiments.estimates import OpenCell, in_words, open_cells_of
from coterie.experiments.page import pages
from coterie.experiments.pools import Processes
from coterie.experiments.reproduce import RESULTS
from coterie.experiments.reproducing import run_cells
from coterie.experiments.reproduction import Cell, Figures
from coterie.training.runs.outputs import write_output
from papers import PAPERS, REPRODUCTIONS

BATCH_SECONDS = 600.0
"""Cells are started in batches of about this time, between which the time limit is checked."""
HOUR = 3600.0


def in_order(cells: Sequence[OpenCell]) -> list[OpenCell]:
    """Return the cells by their estimate, those without one last.

    Cells that take about equally long (within a factor of two) keep their order, in which neighbours share their data.
    """
    return sorted(cells, key=lambda each: math.inf if each.seconds is None else round(math.log2(max(each.seconds, 1))))


def batches(cells: Sequence[OpenCell], seconds: float = BATCH_SECONDS) -> list[list[OpenCell]]:
    """Return successive cells of the same reproduction, together as long as they take about `seconds` at most."""
    made: list[list[OpenCell]] = []
    for _, group in groupby(cells, key=lambda each: each.reproduction.name):
        made.append([])
        for each in group:
            time_so_far = sum(one.seconds or seconds for one in made[-1])
            if made[-1] and time_so_far + (each.seconds or seconds) > seconds:
                made.append([])
            made[-1].append(each)
    return made


def affordable(cells: Sequence[OpenCell], longest: float) -> list[OpenCell]:
    """Return the cells whose data sets are here and whose estimate is at most `longest` hours."""
    return [
        each
        for each in cells
        if all(is_here(name) for name in each.reproduction.needs)
        and (each.seconds is None or each.seconds <= longest * HOUR)
    ]


@click.command()
@click.option("--hours", type=float, help="Start no more cells after this time. [default: no limit]")
@click.option("--longest", default=2.0, show_default=True, help="Leave out cells that take longer, in hours.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel cells. [default: one for each core]")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of the data sets. [default: $COTERIE_DATA]")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, show_default="reproductions.jsonl")
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/reproduce"), show_default=True)
@click.option("--page", type=click.Path(path_type=Path), help="Write the pages to this file and next to it.")
@click.option("--list", "only_list", is_flag=True, help="Print the unfinished cells with estimates, and run nothing.")
def main(
    hours: float | None,
    longest: float,
    jobs: int | None,
    data: Path | None,
    results: Path,
    out: Path,
    page: Path | None,
    only_list: bool,
) -> None:
    """Run the unfinished cells of all reproductions, the cheapest first."""
    if data is not None:
        os.environ["COTERIE_DATA"] = str(data.absolute())
    unfinished = open_cells_of(REPRODUCTIONS.values(), results)
    show(Console(), unfinished)
    failed: list[str] = []
    if not only_list:
        stop = math.inf if hours is None else time.monotonic() + hours * HOUR
        failed = _run(in_order(affordable(unfinished, longest)), stop, jobs, results, out)
    if page is not None:
        for name, text in pages(PAPERS, results, page.name).items():
            target = page.parent / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_output(target, text)
    for line in failed:
        click.echo(f"failed  {line}", err=True)
    sys.exit(2 if failed else 0)


def _run(cells: Sequence[OpenCell], stop: float, jobs: int | None, results: Path, out: Path) -> list[str]:
    """Run cells batch by batch until the time is up, and return one line for each failure."""

    def on_cell(cell: Cell, figures: Figures, seconds: float) -> None:
        click.echo(f"{cell.name}, seed {cell.seed}: {seconds:.0f} s")

    failed: list[str] = []
    for batch in batches(cells):
        if time.monotonic() >= stop:
            break
        key = batch[0].reproduction.kept_as
        failed += run_cells(
            key, [each.cell for each in batch], out / key, results, Processes(jobs), lambda cell, done: None, on_cell
        )
    return failed


def show(console: Console, cells: Sequence[OpenCell]) -> None:
    """Print the number of unfinished cells of each reproduction, with the estimated time on one core."""
    table = Table("reproduction", "unfinished cells", "estimated time, one core", "data sets")
    for name, group in groupby(cells, key=lambda each: each.reproduction.name):
        own = list(group)
        known = [each.seconds for each in own if each.seconds is not None]
        needs = own[0].reproduction.needs
        missing = [each for each in needs if not is_here(each)]
        words = f"{', '.join(missing)} not here" if missing else "here"
        table.add_row(name, str(len(own)), in_words(sum(known)) if known else "not measured", words)
    console.print(table)


if __name__ == "__main__":
    main()
