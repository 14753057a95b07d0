"""`coterie scoreboard`: every method with its defaults over many scenarios."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from coterie.cli.progress import cell_progress
from coterie.cli.show import plain_table
from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import ConfigError
from coterie.experiments.compare import MOST_SEEDS
from coterie.experiments.results import read
from coterie.experiments.scoreboard import KEPT_AS, Scores, find_scoreboard, run_scoreboard
from coterie.training.runs.outputs import check_output, write_output

out = Terminal()
err = Terminal(stderr=True)

DATA = "COTERIE_SCOREBOARD_DATA"


@click.command(name="scoreboard")
@click.option("--small", is_flag=True, help="A small version that ends in two minutes and leaves nothing behind.")
@click.option("--show", is_flag=True, help="Run nothing: show the cells that are finished.")
@click.option("--only", metavar="TEXT", help="Only scenarios whose name contains this text.")
@click.option("--methods", help="Only these methods, separated by commas.")
@click.option("--seeds", type=click.IntRange(1, MOST_SEEDS), help="Seeds of each cell. [default: 3; 1 with --small]")
@click.option("--workers", type=click.IntRange(min=1), help="Cells at a time. [default: one a core]")
@click.option(
    "--data",
    "folder",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    envvar=DATA,
    help=f"Folder with files of your own, such as usps.npz; also ${DATA}. Others come from 'coterie data get'.",
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
    help="Write all finished cells as Markdown, and a picture of the ranks beside it, as SVG.",
)
def scoreboard_command(
    small: bool,
    show: bool,
    only: str | None,
    methods: str | None,
    seeds: int | None,
    workers: int | None,
    folder: Path | None,
    results: Path | None,
    page_file: Path | None,
) -> None:
    """Run every method with its defaults over many scenarios, and rank them.

    It runs in cells of a few seconds, takes an hour or two, and may be interrupted and started again: cells that are in
    the results file are not run again. It needs a checkout of the repository; scenarios whose data is absent are left
    out.

    \b
    coterie scoreboard --small
    coterie scoreboard --only digits --methods fedavg,oracle,ifca --seeds 1
    coterie scoreboard --show --page docs/scoreboard.md
    """
    if small and show:
        raise ConfigError("--small leaves nothing behind that --show could show: give one of the two")
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
                    workers=workers,
                    results=file,
                    on_start=on_start,
                    on_progress=on_progress,
                    on_cell=on_cell,
                )
            except KeyboardInterrupt:
                kept = "" if small else f"; {file} keeps what is done, the same command continues"
                err.print(on_one_line(f"interrupted{kept}"), soft_wrap=True)
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
