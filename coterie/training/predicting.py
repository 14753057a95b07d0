"""Predictions for the rows of many clients at once: clients that trained, and new ones assigned by labelled rows."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.readings import number_text, same_name
from coterie.core.schema import Mask, Schema, missing_cells
from coterie.core.shard import ClientId
from coterie.data.columns import Columns, open_columns, shown
from coterie.data.encode import marks_are_missing, refuse_holes, target_of, texts_of
from coterie.errors import ColumnWarning, InputError, unknown_name
from coterie.evaluate.misfit import MISFIT

if TYPE_CHECKING:
    from coterie.training.records import ClientResult
    from coterie.training.result import Result

MOST_NAMED = 5
"""Largest number of clients that an error names."""
TRAINED, PLACED, SHARED = "training", "labelled rows", "one model"
UNFIT = "labelled rows that fit no cluster"
"""Values of the column `placed_by`: how a client got its model."""
OWN_COLUMNS = ("client", "cluster", "certainty", "placed_by", "prediction")
"""Columns of the predictions, before the probabilities of classes."""


@dataclass(frozen=True)
class EncodedSamples:
    """Samples that are already encoded as model inputs."""

    values: torch.Tensor
    """Features of the samples, (n, ...)."""


@dataclass
class Predictions:
    """Predictions for the rows of a table: one value per row in each column, in the order of the table."""

    columns: dict[str, list[Any]] = field(default_factory=dict)
    """Values of each column by its name; the id column first, if there is one."""
    labels: npt.NDArray[Any] | None = None
    """Labels of the rows (n,), if all rows have one."""

    def rows(self) -> Iterator[list[Any]]:
        """Yield the values of each row, in the order of the columns."""
        yield from map(list, zip(*self.columns.values(), strict=True))

    def to_frame(self) -> Any:
        """Return the predictions as a pandas DataFrame."""
        return data_frame(self.columns)


def predict_rows(result: Result, source: object, client: str, id_column: str | None = None) -> Predictions:
    """Return predictions for rows of many clients; see `Result.predict_frame`.

    Raises:
        InputError: if the run was not made from a table, the rows do not fit, or a new client cannot be assigned.
    """
    columns = _open_rows(result, source, client, id_column)
    owners, targets = _owners(columns, client), _Targets(columns, result.schema)
    predictor = _RowPredictor(result, torch.from_numpy(result.encode(source)), targets)
    rows_of: dict[ClientId, list[int]] = {}
    for row, owner in enumerate(owners):
        rows_of.setdefault(owner, []).append(row)
    trained = {row.id: row for row in result.clients}
    warn_of_spellings([owner for owner in rows_of if owner not in trained], list(trained))
    unplaced = [
        owner
        for owner, rows in rows_of.items()
        if not predictor.predict(owner, np.array(rows, dtype=np.int64), trained.get(owner))
    ]
    if unplaced:
        raise InputError(_refusal(unplaced, result.schema.target))
    _warn_of_misfits(predictor.misfits)
    _warn_of_changes(predictor.changed)
    ids = {} if id_column is None else {id_column: columns.values(id_column).tolist()}
    labels = targets.labels(np.arange(len(owners))) if targets.there.all() else None
    return Predictions(ids | {"client": owners} | predictor.columns(), labels)


def _open_rows(result: Result, source: object, client: str, id_column: str | None) -> Columns:
    """Return the columns of a table after checking that it suits the run and has the named columns."""
    if not result.schema.is_table:
        raise InputError(
            "the run was not made from a table, so the columns of a table have no meaning for it: call predict with "
            "the samples of each client"
        )
    columns = open_columns(source, {client, *texts_of(result.schema), *([] if id_column is None else [id_column])})
    for what, name in (("client column", client), ("id column", id_column)):
        if name is not None and name not in columns.names:
            raise unknown_name(what, name, columns.names)
    if id_column in OWN_COLUMNS:
        raise InputError(f"the predictions already have a column {id_column!r}: rename the id column of the table")
    return columns


def labels_if_complete(result: Result, source: object) -> npt.NDArray[Any] | None:
    """Return the labels (n,) in the target column of a table; None if it is absent or has missing values."""
    schema = result.schema
    columns = open_columns(source, texts_of(schema))
    targets = _Targets(columns, schema)
    return targets.labels(np.arange(len(targets.there))) if targets.there.all() else None


class _RowPredictor:
    """Predicts the rows of one client after another, and stores the predictions in the order of the rows."""

    def __init__(self, result: Result, encoded: torch.Tensor, targets: _Targets) -> None:
        self.result = result
        self.encoded = encoded
        self.targets = targets
        rows = len(encoded)
        self.clusters: list[Any] = [None] * rows
        self.certainties: list[Any] = [None] * rows
        self.placed: list[Any] = [None] * rows
        self.predicted: list[Any] = [None] * rows
        self.probabilities: npt.NDArray[np.float64] | None = None
        self.usual = result.usual_loss
        self.misfits: list[ClientId] = []
        """New clients whose labelled rows fit no cluster."""
        self.changed: list[ClientId] = []
        """Clients that trained whose labelled rows do not fit their cluster."""

    def predict(self, client: ClientId, rows: npt.NDArray[np.int64], trained: ClientResult | None) -> bool:
        """Predict the rows of a client, with its figures if it trained; return whether it has a model."""
        result, samples = self.result, EncodedSamples(self.encoded[torch.from_numpy(rows)])
        if trained is not None:
            self._add(rows, samples, {"client": trained.id}, trained.cluster, trained.get("certainty"), TRAINED)
            self._check(trained, rows)
            return True
        labelled = rows[self.targets.there[rows]]
        if len(labelled):
            support = self._support(labelled)
            with self._misfits_of(client):
                cluster = int(result.weigh(*support).argmax())
                certainty = float(result.certainty(*support)[cluster]) if result.has_certainty else None
                self._add(rows, samples, {"support": support}, cluster, certainty, PLACED)
            if client in self.misfits:  # the certainty compares clusters of which none fits
                for row in rows.tolist():
                    self.certainties[row], self.placed[row] = None, UNFIT
            return True
        if result.serves_new_clients:
            self._add(rows, samples, {}, 0 if len(result.parameters) == 1 else None, None, SHARED)
            return True
        return False

    def _support(self, labelled: npt.NDArray[np.int64]) -> tuple[EncodedSamples, npt.NDArray[Any]]:
        return EncodedSamples(self.encoded[torch.from_numpy(labelled)]), self.targets.labels(labelled)

    def _check(self, trained: ClientResult, rows: npt.NDArray[np.int64]) -> None:
        """Note a client that trained if its labelled rows fit its models much worse than those of the training did."""
        labelled = rows[self.targets.there[rows]]
        if len(labelled):
            loss = self.result.loss_of(trained.id, *self._support(labelled))
            if self.usual.grown(loss, trained.loss, len(labelled)):
                self.changed.append(trained.id)

    @contextmanager
    def _misfits_of(self, client: ClientId) -> Iterator[None]:
        """Collect a client whose labelled rows fit no cluster, instead of a warning for each step of its placement."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        if any(MISFIT in str(each.message) for each in caught):
            self.misfits.append(client)
        for each in caught:
            if MISFIT not in str(each.message):
                warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)

    def _add(
        self,
        rows: npt.NDArray[np.int64],
        samples: EncodedSamples,
        model_of: Mapping[str, Any],
        cluster: int | None,
        certainty: float | None,
        placed: str,
    ) -> None:
        """Predict the samples and store the values; `model_of` are the arguments that choose the model."""
        if self.result.learner.classes is None:
            predicted = self.result.predict(samples, **model_of)
        else:
            shares = self.result.predict_proba(samples, **model_of)
            if self.probabilities is None:
                self.probabilities = np.full((len(self.predicted), shares.shape[1]), np.nan)
            self.probabilities[rows] = shares
            predicted = self.result.schema.class_labels(shares.argmax(axis=1))
        for row, value in zip(rows.tolist(), predicted.tolist(), strict=True):
            self.predicted[row] = value
            self.clusters[row], self.certainties[row], self.placed[row] = cluster, certainty, placed

    def columns(self) -> dict[str, list[Any]]:
        """Return the predictions as columns by name."""
        found = {
            "cluster": self.clusters,
            "certainty": self.certainties,
            "placed_by": self.placed,
            "prediction": self.predicted,
        }
        if self.probabilities is not None:
            names = self.result.schema.class_labels(np.arange(self.probabilities.shape[1])).tolist()
            columns = self.probabilities.T.tolist()
            found |= {f"probability {name}": shares for name, shares in zip(names, columns, strict=True)}
        return found


class _Targets:
    """The target column of a table, which may be absent or have missing values."""

    def __init__(self, columns: Columns, schema: Schema) -> None:
        self.schema = schema
        self.values = columns.values(schema.target) if schema.target in columns.names else None
        rows = len(columns.values(columns.names[0]))
        self.there: Mask = np.zeros(rows, dtype=bool)
        """Whether each row has a target, (n,)."""
        if self.values is not None:
            self.there = ~missing_cells(self.values, marks_are_missing(schema))

    def labels(self, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
        """Return the labels or numbers of rows that have a target."""
        assert self.values is not None, "the table has a target column if any row has a target"
        numbers = target_of(self.values[rows], self.schema)
        return self.schema.class_labels(numbers.astype(np.int64)) if self.schema.classes else numbers


def _owners(columns: Columns, client: str) -> list[ClientId]:
    """Return the client of each row."""
    values = columns.values(client)
    if not len(values):
        raise InputError("the table has no rows: give at least one")
    refuse_holes(missing_cells(values, marks=False), client)
    return [number_text(value) if isinstance(value, float) else str(value) for value in values.tolist()]


def warn_of_spellings(new: Sequence[ClientId], known: Iterable[ClientId]) -> None:
    """Warn about new clients whose name is probably another spelling of that of a client that trained."""
    trained = {same_name(name): name for name in known} if new else {}
    alike = [(name, trained[same_name(name)]) for name in new if same_name(name) in trained]
    if alike:
        count = (
            "1 client is treated as new, but has"
            if len(alike) == 1
            else f"{len(alike)} clients are treated as new, but have"
        )
        warnings.warn(
            f"{count} almost the name of one that trained (such as {shown(alike[0][0])} and "
            f"{shown(alike[0][1])}): write the names as in the training data",
            ColumnWarning,
            stacklevel=3,
        )


def _warn_of_misfits(clients: Sequence[ClientId]) -> None:
    """Warn about new clients whose labelled rows fit no cluster."""
    if clients:
        count = "1 new client fits" if len(clients) == 1 else f"{len(clients)} new clients fit"
        warnings.warn(
            f"{count} no cluster ({_named(clients)}): the loss of the best model on the labelled rows is far above "
            "that of the clients that trained, so that cluster, certainty and predictions mean little; check units and "
            "labels, or train again with such clients",
            ColumnWarning,
            stacklevel=4,
        )


def _warn_of_changes(clients: Sequence[ClientId]) -> None:
    """Warn about clients that trained, whose labelled rows do not fit their cluster."""
    if clients:
        do = (
            "1 client that trained does not fit its"
            if len(clients) == 1
            else (f"{len(clients)} clients that trained do not fit their")
        )
        warnings.warn(
            f"{do} cluster any more ({_named(clients)}): the loss on their labelled rows is far above that of the "
            "training; check units and labels, or train again if the clients have changed",
            ColumnWarning,
            stacklevel=4,
        )


def _named(clients: Sequence[ClientId]) -> str:
    """Return the first clients, and the number of the others."""
    named = ", ".join(map(shown, clients[:MOST_NAMED]))
    return named + (f" and {len(clients) - MOST_NAMED} more" if len(clients) > MOST_NAMED else "")


def _refusal(new_clients: Sequence[ClientId], target: str) -> str:
    count = "1 client was" if len(new_clients) == 1 else f"{len(new_clients)} clients were"
    return (
        f"{count} not in the training data and cannot be assigned without labelled rows ({_named(new_clients)}): add "
        f"a few of their rows with a value in column {target!r}, or leave these clients out"
    )


def client_columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the scalar figures of clients as columns: id, cluster, certainty, samples, score, loss, and all others."""
    first = ("id", "cluster", "certainty", "n", "score", "loss")
    single = [name for row in rows for name, value in row.items() if not isinstance(value, list | dict)]
    names = [name for name in first if name in single] + [n for n in dict.fromkeys(single) if n not in first]
    return {"samples" if name == "n" else name: [row.get(name) for row in rows] for name in names}


def data_frame(columns: Mapping[str, Sequence[Any]]) -> Any:
    """Return columns as a pandas DataFrame.

    Raises:
        InputError: if pandas is not installed.
    """
    try:
        pandas: Any = import_module("pandas")
    except ImportError:
        raise InputError("a data frame needs pandas: pip install pandas") from None
    return pandas.DataFrame(dict(columns))
