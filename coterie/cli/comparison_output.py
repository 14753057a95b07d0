"""Options of commands that show a comparison: its figures as CSV, LaTeX and drawing, and paired differences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import unknown_name
from coterie.experiments.comparison import Comparison, check_figure
from coterie.training.runs.outputs import check_output


@dataclass(frozen=True)
class Outputs:
    """Files to write about a comparison, and the method that the others are compared with."""

    csv: Path | None
    latex: Path | None
    figure: Path | None
    against: str | None

    def check(self, methods: list[str] | None = None) -> None:
        """Raise an error for files that cannot be written or drawn, before anything runs.

        Args:
            methods: Names of the methods that will be compared.
        """
        for path in (self.csv, self.latex):
            if path is not None:
                check_output(path)
        if self.figure is not None:
            check_figure(self.figure)
        if methods is not None and self.against is not None and self.against not in methods:
            raise unknown_name("method of the comparison", self.against, methods)

    @property
    def asked(self) -> bool:
        return any(value is not None for value in (self.csv, self.latex, self.figure, self.against))

    def write(self, folder: Path, console: Terminal) -> None:
        """Print the differences and write the files."""
        if not self.asked:
            return
        found = Comparison.read(folder)
        if self.against is not None:
            for row in found.differences(self.against):
                console.print(str(row), highlight=False, soft_wrap=True)
        if self.csv is not None:
            found.to_csv(self.csv, each_seed=True)
        if self.latex is not None:
            found.to_latex(self.latex)
        if self.figure is not None:
            found.figure(self.figure)
        for path in (self.csv, self.latex, self.figure):
            if path is not None:
                console.print(f"written  {on_one_line(path)}", highlight=False, soft_wrap=True)


def comparison_outputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command; they arrive as `csv_file`, `latex_file`, `figure_file` and `against`."""
    file = click.Path(path_type=Path)
    for option in (
        click.option("--against", metavar="METHOD", help="Also print paired differences from this method over seeds."),
        click.option("--figure", "figure_file", type=file, help="Also draw the scores, as .svg or .pdf."),
        click.option("--latex", "latex_file", type=file, help="Also write means over seeds as a LaTeX table."),
        click.option("--csv", "csv_file", type=file, help="Also write the figures of every run as CSV."),
    ):
        command = option(command)
    return command
