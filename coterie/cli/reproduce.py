"""`coterie reproduce`: reproduce figures and tables of papers."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coterie.cli.options import workers_option
from coterie.cli.progress import cell_progress
from coterie.cli.show import claims as show_claims
from coterie.cli.show import plain_table
from coterie.cli.terminal import Terminal, on_one_line
from coterie.experiments.compare import MOST_SEEDS
from coterie.experiments.page import pages
from coterie.experiments.reproduce import RESULTS, find_reproduction, papers, reproduce, reproductions
from coterie.experiments.results import read
from coterie.training.runs.outputs import check_output, write_output

out = Terminal()
err = Terminal(stderr=True)


@click.command(name="reproduce")
@click.argument("name", required=False)
@click.option("--quick", is_flag=True, help="Run a small version, which takes one or two minutes and stores nothing.")
@click.option(
    "--seeds",
    type=click.IntRange(1, MOST_SEEDS),
    help="Number of seeds (trials) of each cell. [default: the number that 'coterie reproduce' lists]",
)
@click.option("--only", metavar="TEXT", help="Run only cells whose name contains this text.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel cells. [default: one for each core]")
@workers_option
@click.option(
    "--out",
    "folder",
    type=click.Path(path_type=Path),
    default=Path("runs/reproduce"),
    show_default=True,
    help="Folder of the runs, from which interrupted cells are resumed.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    default=RESULTS,
    show_default="papers/reproductions.jsonl of the checkout",
    help="File to which finished cells are added.",
)
@click.option(
    "--page",
    "page_file",
    type=click.Path(path_type=Path),
    help="Markdown file for a summary of the results so far; a page for each paper and a folder of pictures are "
    "written next to it.",
)
def reproduce_command(
    name: str | None,
    quick: bool,
    seeds: int | None,
    only: str | None,
    jobs: int | None,
    workers: str | None,
    folder: Path,
    results: Path,
    page_file: Path | None,
) -> None:
    """Reproduce a figure or table of a paper, and check its claims.

    Without NAME all reproductions are listed. A full run takes minutes to hours. It may be interrupted and started
    again: cells in the results file are not run again.

    \b
    coterie reproduce
    coterie reproduce ifca-figure3 --quick
    coterie reproduce ifca-table1 --only 1200x200 --seeds 1
    """
    if page_file is not None:
        check_output(page_file)
    if name is not None:
        _run(name, quick, seeds, only, jobs, workers, folder, results)
    elif page_file is None:
        _list(results)
    if page_file is not None:
        for file_name, text in pages(papers(), results, page_file.name).items():
            target = page_file.parent / file_name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_output(target, text)
        out.print(f"page    {on_one_line(page_file)}", soft_wrap=True)


def _run(
    name: str,
    quick: bool,
    seeds: int | None,
    only: str | None,
    jobs: int | None,
    workers: str | None,
    folder: Path,
    results: Path,
) -> None:
    reproduction = find_reproduction(name)
    with cell_progress(err) as (on_start, on_progress, on_cell):
        try:
            findings = reproduce(
                name,
                quick=quick,
                seeds=seeds,
                only=only,
                jobs=jobs,
                workers=workers,
                out=folder,
                results=results,
                on_start=on_start,
                on_progress=on_progress,
                on_cell=on_cell,
            )
        except KeyboardInterrupt:
            stored = "" if quick else f"; finished work is stored in {results} and {folder}, the same command continues"
            err.print(on_one_line(f"interrupted{stored}"), soft_wrap=True)
            sys.exit(130)
    out.print(f"{reproduction.title} ({reproduction.paper})", style="bold")
    if quick:
        out.print("quick version: much smaller than the experiment of the paper, so that claims need not hold")
    for table in findings.tables:
        plain_table(out, table.title, table.header, table.rows)
    show_claims(out, findings.claims)
    for line in findings.failed:
        err.print(f"failed  {on_one_line(line)}", style="red", soft_wrap=True)
    if findings.failed:
        sys.exit(2)


def _list(results: Path) -> None:
    rows = []
    for reproduction in reproductions().values():
        found = read(results, reproduction.kept_as)
        cells = reproduction.cells(reproduction.seeds, False)
        done = sum(cell.seed in found.get(cell.name, {}) for cell in cells)
        rows.append(
            [
                reproduction.name,
                reproduction.title,
                ", ".join(reproduction.needs) or "nothing",
                str(reproduction.seeds),
                f"{done} of {len(cells)}",
            ]
        )
    plain_table(out, "", ["name", "content", "data sets", "seeds", "finished cells"], rows)
    out.print("\n'coterie reproduce NAME --quick' runs a small version.")
