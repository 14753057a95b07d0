"""`coterie predict`: predictions of a finished run for new samples."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from coterie.cli.csv_output import write_csv
from coterie.cli.plugins import PluginCommand
from coterie.cli.terminal import Terminal, on_one_line
from coterie.data.loaders.store import read_npz
from coterie.errors import ConfigError, InputError, shown
from coterie.training.predicting import PLACED, TRAINED, UNFIT, Predictions, labels_if_complete, predict_rows
from coterie.training.result import Result, load
from coterie.training.runs.outputs import check_output

out = Terminal()
err = Terminal(stderr=True)

Array = npt.NDArray[Any]


@click.command(name="predict", cls=PluginCommand)
@click.argument("folder", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--data",
    "file",
    required=True,
    type=click.Path(path_type=Path),
    help="Samples: an .npz with x, or for a run of a table a .csv or .parquet with its feature columns. If they have "
    "labels (y, or the target column), the score is shown, too.",
)
@click.option(
    "--client",
    "column",
    metavar="COLUMN",
    help="For a run of a table: the column that names the client of each row. Clients that trained predict by their "
    "cluster; new ones are placed by their rows that have a target.",
)
@click.option("--id", "id_column", metavar="COLUMN", help="With --client: a column to keep, which identifies the rows.")
@click.option("--client-id", metavar="ID", help="All samples are of this client, which trained.")
@click.option("--cluster", type=int, help="Predict by the model of this cluster.")
@click.option(
    "--support",
    type=click.Path(path_type=Path),
    help="All samples are of one new client, of which this file has a few labelled ones; of the same kind as --data.",
)
@click.option("--out", "to", type=click.Path(path_type=Path), help="CSV file to write. [default: print]")
def predict_command(
    folder: Path,
    file: Path,
    column: str | None,
    id_column: str | None,
    client_id: str | None,
    cluster: int | None,
    support: Path | None,
    to: Path | None,
) -> None:
    """Predict for samples of clients that trained, or of new ones.

    A client that trained predicts by its cluster's model, or by its own mixture of all models. A new client is placed
    by a few labelled samples, or needs none if there is only one model. With --client the file holds rows of
    many clients, and the output has their cluster, its certainty, and the probability of each class.

    \b
    coterie predict runs/table-ifca-seed0 --data patients.csv --client hospital --id patient --out predicted.csv
    coterie predict runs/table-ifca-seed0 --data pupils.csv --support some.csv
    coterie predict runs/rotated-digits-ifca-seed0 --data new.npz --client-id turn090-03
    """
    if sum(given is not None for given in (column, client_id, cluster, support)) > 1:
        raise ConfigError(
            "--client, --client-id, --cluster and --support exclude each other: give the one that says whose samples"
        )
    if id_column is not None and column is None:
        raise ConfigError("--id keeps a column in addition to the clients of rows: give --client COLUMN, too")
    if to is not None:
        check_output(to)
    result = load(folder)
    unassigned = all(given is None for given in (column, client_id, cluster, support))
    if unassigned and result.schema.is_table and not result.serves_new_clients:
        raise ConfigError(
            "the run has several models, so it must be known whose rows these are: give --client COLUMN for rows of "
            "many clients, --client-id ID if all are of one that trained, or --support FILE with a few labelled rows "
            "of a new one"
        )
    if column is None:
        found = _of_one_client(result, file, client_id, cluster, support)
    else:
        found = _of_many_clients(result, file, column, id_column)
    predicted = np.array(found.columns["prediction"])
    score = None if found.labels is None else _score(result, predicted, found.labels)
    write_csv(to, list(found.columns), found.rows())
    console = err if to is None else out  # what is printed in place of a file holds nothing else
    if score is not None:
        console.print(score, highlight=False)
        for caution in _cautions(found, client_id):
            console.print(f"note: {caution}", style="yellow", highlight=False, soft_wrap=True)
    if to is not None:
        console.print(f"written  {on_one_line(to)}", highlight=False, soft_wrap=True)


def _of_one_client(
    result: Result, file: Path, client_id: str | None, cluster: int | None, support: Path | None
) -> Predictions:
    samples = _read(file, result, complete=False)
    labelled = None if support is None else _read(support, result, complete=True)
    if labelled is not None and labelled.y is None:
        what = f"column {result.schema.target!r}" if result.schema.is_table else "array y"
        raise InputError(f"{support} has no {what}: new clients are assigned by labelled samples")
    given = None if labelled is None or labelled.y is None else (labelled.x, labelled.y)
    predicted = result.predict(samples.x, client=client_id, cluster=cluster, support=given)
    if samples.y is not None and samples.y.shape != predicted.shape:
        raise InputError(
            f"{len(predicted)} samples but labels of shape {samples.y.shape}: give one label a sample, or no labels"
        )
    return Predictions({"prediction": predicted.tolist()}, samples.y)


def _of_many_clients(result: Result, file: Path, column: str, id_column: str | None) -> Predictions:
    try:
        return predict_rows(result, file, column, id_column)
    except ConfigError as error:
        if column in result.assignments:
            raise ConfigError(
                f"{error}; --client names the column of clients: for samples that are all of client {shown(column)} "
                "give --client-id"
            ) from None
        raise


@dataclass(frozen=True)
class _Samples:
    """Samples for `Result.predict`, and their labels (n,) if the file has some."""

    x: Path | Array
    y: Array | None


def _read(file: Path, result: Result, complete: bool) -> _Samples:
    """Return the samples of a file with their labels; missing labels in a table are refused if `complete`."""
    if result.schema.is_table:
        return _Samples(file, result.labels_in(file) if complete else labels_if_complete(result, file))
    if not file.is_file():
        raise InputError(f"{file} is no file: give the path of an .npz file with x")
    if file.suffix.lower() != ".npz":
        raise InputError(f"{file} is no .npz file, and the run was not made from a table: give its samples as array x")
    arrays = read_npz(file, ("x",), ("y",))
    return _Samples(arrays["x"], arrays.get("y"))


def _cautions(found: Predictions, client_id: str | None) -> list[str]:
    """Return why the score may be better than that of new rows."""
    placed_by = {*found.columns.get("placed_by", ()), *([TRAINED] if client_id is not None else [])}
    reasons = {
        TRAINED: "rows that the run was trained on make the score too good, if the file holds some of them",
        **dict.fromkeys(
            (PLACED, UNFIT),
            "the score counts the labelled rows by which new clients were placed, which makes it too good",
        ),
    }
    return list(dict.fromkeys(text for how, text in reasons.items() if how in placed_by))


def _score(result: Result, predicted: Array, y: Array) -> str:
    """Return the score as text, such as `accuracy 0.9310` or `rmse 0.1200`."""
    if result.learner.classes is None:
        return f"rmse     {np.sqrt(np.mean((predicted - y) ** 2)):.4f}"
    return f"accuracy {np.mean(predicted == y):.4f}"
