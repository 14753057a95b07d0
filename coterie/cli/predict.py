"""`coterie predict`: what the models of a finished run say of new samples."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import click
import numpy as np
import numpy.typing as npt

from coterie.cli.terminal import Terminal, on_one_line
from coterie.data.loaders.store import read_npz
from coterie.errors import ConfigError, InputError
from coterie.training.result import Result, load
from coterie.training.runs.outputs import check_output, write_output

out = Terminal()
err = Terminal(stderr=True)

Array = npt.NDArray[Any]
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What the formulas of spreadsheets begin with."""


@click.command(name="predict")
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    help="Samples: an .npz with x, or for a run of a table a .csv or .parquet with its feature columns. If they have "
    "labels (y, or the target column), the score is shown, too.",
)
@click.option("--client", help="The samples are of this client, who trained.")
@click.option("--cluster", type=int, help="Predict by the model of this cluster.")
@click.option(
    "--support",
    type=click.Path(path_type=Path),
    help="The samples are of somebody new, of whom this file has a few labelled ones; of the same kind as --data.",
)
@click.option("--out", "to", type=click.Path(path_type=Path), help="CSV file to write. [default: print]")
def predict_command(
    folder: Path, file: Path, client: str | None, cluster: int | None, support: Path | None, to: Path | None
) -> None:
    """Predict for samples of a client that trained, or of somebody new.

    Whoever trained predicts by its cluster's model, or by its own mixture of all models. Somebody new is placed by a
    few labelled samples; without any only where one model serves everybody.

    \b
    coterie predict runs/rotated-digits-ifca-seed0 --data new.npz --client turn090-03
    coterie predict runs/table-ifca-seed0 --data pupils.csv --support some.csv --out predicted.csv
    """
    if sum(given is not None for given in (client, cluster, support)) > 1:
        raise ConfigError("--client, --cluster and --support exclude each other: give the one that says whose samples")
    if to is not None:
        check_output(to)
    result = load(folder)
    samples = _read(file, result)
    labelled = None if support is None else _read(support, result)
    if labelled is not None and labelled.y is None:
        what = f"column {result.schema.target!r}" if result.schema.is_table else "array y"
        raise InputError(f"{support} has no {what}: somebody new is placed by labelled samples")
    predicted = result.predict(
        samples.x,
        client=client,
        cluster=cluster,
        support=None if labelled is None or labelled.y is None else (labelled.x, labelled.y),
    )
    score = None if samples.y is None else _score(result, predicted, samples.y)
    _write(to, predicted.tolist())
    console = err if to is None else out  # what is printed in place of a file holds nothing else
    if score is not None:
        console.print(score, highlight=False)
    if to is not None:
        console.print(f"written  {on_one_line(to)}", highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class _Samples:
    """Samples for `Result.predict`, and their labels (n,) if the file has some."""

    x: Path | Array
    y: Array | None


def _read(file: Path, result: Result) -> _Samples:
    if result.schema.is_table:
        return _Samples(file, result.labels_in(file))
    if not file.is_file():
        raise InputError(f"{file} is no file: give the path of an .npz file with x")
    if file.suffix.lower() != ".npz":
        raise InputError(f"{file} is no .npz file, and the run was not made from a table: give its samples as array x")
    arrays = read_npz(file, ("x",), ("y",))
    return _Samples(arrays["x"], arrays.get("y"))


def _score(result: Result, predicted: Array, y: Array) -> str:
    """`accuracy 0.9310` or `rmse 0.1200`."""
    if y.shape != predicted.shape:
        raise InputError(
            f"{len(predicted)} samples but labels of shape {y.shape}: give one label a sample, or no labels"
        )
    if result.learner.classes is None:
        return f"rmse     {np.sqrt(np.mean((predicted - y) ** 2)):.4f}"
    return f"accuracy {np.mean(predicted == y):.4f}"


def _write(to: Path | None, predicted: Sequence[object]) -> None:
    """One prediction a line below a header, to a file or to standard output."""
    if to is None:
        _lines(sys.stdout, predicted)
        return
    text = io.StringIO()
    _lines(text, predicted)
    write_output(to, text.getvalue())


def _lines(file: TextIO, predicted: Sequence[object]) -> None:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["prediction"])
    writer.writerows([_cell(value)] for value in predicted)


def _cell(value: object) -> object:
    """Return the value as a spreadsheet may read it: a text that would be a formula begins with an apostrophe."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
