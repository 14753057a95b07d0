"""`coterie scoreboard`: rank all methods with their defaults over many scenarios."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coterie.cli.options import workers_option
from coterie.cli.progress import cell_progress
from coterie.cli.show import plain_table
from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import ConfigError
from coterie.experiments.compare import MOST_SEEDS
from coterie.experiments.pools import chosen_pool
from coterie.experiments.results import read
from coterie.experiments.scoreboard import KEPT_AS, Scores, find_scoreboard, run_scoreboard
from coterie.training.runs.outputs import check_output, write_output

out = Terminal()
err = Terminal(stderr=True)

DATA = "COTERIE_SCOREBOARD_DATA"


@click.command(name="scoreboard")
@click.option("--small", is_flag=True, help="Run a small version, which takes two minutes and stores nothing.")
@click.option("--show", is_flag=True, help="Show the finished cells without running any.")
@click.option("--only", metavar="TEXT", help="Run only scenarios whose name contains this text.")
@click.option("--methods", help="Run only these methods, separated by commas.")
@click.option(
    "--seeds", type=click.IntRange(1, MOST_SEEDS), help="Number of seeds of each cell. [default: 3; 1 with --small]"
)
@click.option("--again", is_flag=True, help="Run cells again that another version of the code has measured.")
@click.option("--jobs", type=click.IntRange(min=1), help="Number of parallel cells. [default: one for each core]")
@workers_option
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar=DATA,
    help=f"Folder with your own data files, such as usps.npz; by default ${DATA}. 'coterie data get' downloads others.",
)
@click.option(
    "--results",
    type=click.Path(path_type=Path),
    help="File to which finished cells are added. [default: benchmarks/scoreboard/results.jsonl of the checkout]",
)
@click.option(
    "--page",
    "page_file",
    type=click.Path(path_type=Path),
    help="Write all finished cells as a Markdown page, and a picture of the ranks next to it, as SVG.",
)
def scoreboard_command(
    small: bool,
    show: bool,
    only: str | None,
    methods: str | None,
    seeds: int | None,
    again: bool,
    jobs: int | None,
    workers: str | None,
    folder: Path | None,
    results: Path | None,
    page_file: Path | None,
) -> None:
    """Run all methods with their defaults over many scenarios, and rank them.

    The command takes one or two hours. It may be interrupted and started again: cells in the results file are not run
    again. It needs a checkout of the repository; scenarios without their data are left out.

    \b
    coterie scoreboard --small
    coterie scoreboard --only digits --methods fedavg,oracle,ifca --seeds 1
    coterie scoreboard --methods cfl,hcfl+ --again
    coterie scoreboard --show --page docs/scoreboard.md
    """
    if small and show:
        raise ConfigError("--small stores nothing that --show could show: give only one of the two")
    board = find_scoreboard()
    drawing = None if page_file is None else page_file.with_suffix(".svg")
    if page_file is not None and drawing is not None:
        check_output(page_file)
        check_output(drawing)
    file = results or board.results
    if show:
        scores = Scores(read(file, KEPT_AS), ())
    else:
        for line in board.absent(folder, only, small):
            err.print(on_one_line(line), soft_wrap=True, highlight=False)
        with cell_progress(err) as (on_start, on_progress, on_cell):
            try:
                scores = run_scoreboard(
                    board,
                    folder=folder,
                    seeds=seeds,
                    only=only,
                    methods=methods,
                    small=small,
                    again=again,
                    pool=chosen_pool(jobs, workers),
                    results=file,
                    on_start=on_start,
                    on_progress=on_progress,
                    on_cell=on_cell,
                )
            except KeyboardInterrupt:
                stored = "" if small else f"; finished cells are stored in {file}, the same command continues"
                err.print(on_one_line(f"interrupted{stored}"), soft_wrap=True)
                sys.exit(130)
    table = board.summary(scores.found)
    plain_table(out, table.title, table.header, [[cell.strip("`") for cell in row] for row in table.rows])
    if page_file is not None and drawing is not None:
        write_output(drawing, board.picture(scores.found))
        write_output(page_file, board.page(scores.found, drawing.name))
        out.print(f"page    {on_one_line(page_file)}", soft_wrap=True)
    for line in scores.failed:
        err.print(f"failed  {on_one_line(line)}", style="red", soft_wrap=True)
    if scores.failed:
        sys.exit(2)
