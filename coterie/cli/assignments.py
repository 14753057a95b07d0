"""`coterie assignments`: the cluster of every client, as a table."""

from __future__ import annotations

from pathlib import Path

import click

from coterie.cli.csv_output import PRINTED, write_csv
from coterie.cli.plugins import PluginCommand
from coterie.cli.terminal import Terminal, on_one_line
from coterie.training.predicting import client_columns
from coterie.training.result import load
from coterie.training.runs.outputs import check_output

out = Terminal()


@click.command(name="assignments", cls=PluginCommand)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--csv", "file", type=click.Path(path_type=Path), default=PRINTED, help="CSV file to write. [default: -, print]"
)
def assignments_command(folder: Path, file: Path) -> None:
    """Write the cluster of every client with its certainty, number of samples and scores as CSV.

    \b
    coterie assignments runs/table-ifca-seed0 --csv groups.csv
    """
    if file != PRINTED:
        check_output(file)
    columns = client_columns(load(folder).clients)
    write_csv(file, list(columns), zip(*columns.values(), strict=True))
    if file != PRINTED:
        out.print(f"written  {on_one_line(file)}", highlight=False, soft_wrap=True)
