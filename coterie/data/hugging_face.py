"""Clients from data sets of the `datasets` library (Hugging Face) and from partitions of Flower Datasets.

Both are used through their documented methods, so that neither has to be installed for anything else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import as_array
from coterie.core.dataset import FederatedDataset
from coterie.core.schema import Schema, Values
from coterie.core.shard import Shard
from coterie.core.validation import validation_split
from coterie.data.arrays import from_arrays, stack_shard
from coterie.data.dataset_rows import arrow_table, class_names, is_array, is_dataset
from coterie.data.encode import encode, encode_target
from coterie.data.partition import by_column
from coterie.data.table import HOLDOUT, from_table
from coterie.errors import ConfigError, InputError, unknown_name

TRAIN, TEST = "train", "test"
"""Names of the splits of a DatasetDict that are used."""
OWNER = "client of the row"
"""Column that holds the names of partitions; no data set has one of this name."""
BRIGHTEST = 255
"""Value of a white pixel."""


def from_hf(
    source: object,
    *,
    target: str,
    client: str | None = None,
    features: Sequence[str] | str | None = None,
    holdout: float | None = HOLDOUT,
    seed: int = 0,
    name: str = "hugging-face",
) -> FederatedDataset:
    """Return the clients of a Hugging Face data set, or of the partitions of a Flower data set.

    Columns of single values are read as `from_table` reads a table: they are encoded and standardised, and the schema
    describes how. One column of arrays, such as embeddings, is used as it is; pixels of images are divided by 255.

    Args:
        source: A `datasets.Dataset`; a `DatasetDict`, whose split "train" trains and whose split "test" is held out; a
            `FederatedDataset` of Flower Datasets; or {client id: Dataset}.
        target: Column to predict. A column of type `ClassLabel` is a classification and keeps the names of its classes.
        client: Column that names the client of each row. Leave it out where the partitions are the clients.
        features: Columns to predict from, as a list or separated by commas; one column if it holds arrays. By default
            every other column that `from_table` can use.
        holdout: Share of each client's rows that is held out where the source has no split "test"; 0 or None for none.
        seed: Seed of the choice of held-out rows.
        name: Name of the data set.

    Returns:
        The clients.

    Raises:
        ConfigError: if a column does not exist, or `client` is missing or superfluous.
        InputError: if the source is of another kind, or its values cannot be used.

    Example:
        >>> import coterie
        >>> import datasets  # doctest: +SKIP
        >>> patients = datasets.load_from_disk("patients")  # doctest: +SKIP
        >>> data = coterie.from_hf(patients, client="hospital", target="label")  # doctest: +SKIP
    """
    train, test = _splits(source, client)
    owner = OWNER if client is None else client
    for column in (owner, target):
        if column not in train.names:
            raise unknown_name("column", column, [each for each in train.names if each != OWNER])
    chosen = _listed(features)
    arrays = [column for column in chosen or () if train.is_array(column)]
    if not arrays:
        data = _from_columns(train, test, owner, target, chosen, holdout, seed)
    elif len(chosen or ()) > 1:
        raise ConfigError(f"column {arrays[0]!r} holds arrays and must be the only feature: name it alone")
    else:
        data = _from_array_column(train, test, owner, target, arrays[0], holdout, seed)
    return replace(data, name=name)


# ---- columns of a data set -------------------------------------------------------------------------------------------


class _Rows:
    """Rows of a data set, or of the partitions of one, with the column of their clients."""

    def __init__(self, parts: Mapping[str | None, Any]) -> None:
        self.parts = parts
        self.first = next(iter(parts.values()))

    @property
    def names(self) -> list[str]:
        own = list(map(str, self.first.column_names))
        return own if None in self.parts else [*own, OWNER]

    def kind(self, column: str) -> Any:
        """Return the type of a column, as the data set describes it."""
        if column not in self.first.features:
            raise unknown_name("column", column, self.first.column_names)
        return self.first.features[column]

    def is_array(self, column: str) -> bool:
        """Whether each value of a column is an array, a list or an image."""
        return is_array(self.kind(column))

    def is_image(self, column: str) -> bool:
        """Whether a column holds images."""
        return type(self.kind(column)).__name__ == "Image"

    def class_names(self, column: str) -> tuple[str, ...]:
        """Return the names of the classes of a column of type ClassLabel; none for others."""
        return class_names(self.kind(column))

    def values(self, column: str) -> npt.NDArray[Any]:
        """Return the values of a column (n, ...) over all parts."""
        if column == OWNER:
            return np.repeat(np.array([str(part) for part in self.parts]), [len(p) for p in self.parts.values()])
        found = [as_array(part.with_format("numpy")[:][column], f"column {column!r}") for part in self.parts.values()]
        if len({values.shape[1:] for values in found}) > 1 or any(values.dtype.kind == "O" for values in found):
            return self._objects(found, column)
        return np.concatenate(found)

    def _objects(self, found: list[npt.NDArray[Any]], column: str) -> npt.NDArray[Any]:
        """Return texts as they are; arrays of different shapes are refused."""
        whole = np.concatenate([values.ravel() if values.dtype.kind in "OUT" else values for values in found])
        if self.is_array(column):
            shapes = sorted({np.shape(value) for value in whole})
            raise InputError(f"column {column!r} holds arrays of the shapes {shapes[:3]}: bring all to one shape first")
        return whole

    def table(self, columns: Sequence[str]) -> Any:
        """Return an Arrow table of these columns; classes by their names."""
        arrow: Any = import_module("pyarrow")
        tables = []
        for owner, part in self.parts.items():
            table = arrow_table(part, [column for column in columns if column != OWNER])
            if owner is not None:
                table = table.append_column(OWNER, arrow.array([str(owner)] * len(part)))
            tables.append(table)
        return arrow.concat_tables(tables)


def _splits(source: Any, client: str | None) -> tuple[_Rows, _Rows | None]:
    """Return the rows that train and those that are held out."""
    if hasattr(source, "load_partition") and hasattr(source, "partitioners"):
        _check_client(client, needed=False, what="the partitions of a Flower data set")
        return _Rows(_flower_partitions(source, TRAIN)), _flower_test(source)
    if isinstance(source, Mapping):
        if not source or not all(is_dataset(part) for part in source.values()):
            raise InputError("expected a dict of datasets.Dataset, got one that is empty or holds something else")
        if client is None:
            return _Rows({str(name): part for name, part in source.items()}), None
        if TRAIN not in source:
            raise InputError(f"the DatasetDict has no split {TRAIN!r}, only {', '.join(map(repr, source))}: pass one")
        return _Rows({None: source[TRAIN]}), _Rows({None: source[TEST]}) if TEST in source else None
    if not is_dataset(source):
        raise InputError(
            f"expected a datasets.Dataset, a DatasetDict, a Flower FederatedDataset or {{client id: Dataset}}, got "
            f"{type(source).__name__}"
        )
    _check_client(client, needed=True, what="one Dataset")
    return _Rows({None: source}), None


def _check_client(client: str | None, needed: bool, what: str) -> None:
    if needed and client is None:
        raise ConfigError(f"{what} needs client=COLUMN, the column that names the client of each row")
    if not needed and client is not None:
        raise ConfigError(f"{what} are the clients: leave client={client!r} out")


def _flower_partitions(source: Any, split: str) -> dict[str | None, Any]:
    partitioner = source.partitioners[split]
    # the number is known to a partitioner only after it has seen its data set, which loading one partition brings
    first = source.load_partition(0, split)
    count = int(partitioner.num_partitions)
    return {str(index): first if index == 0 else source.load_partition(index, split) for index in range(count)}


def _flower_test(source: Any) -> _Rows | None:
    return _Rows(_flower_partitions(source, TEST)) if TEST in source.partitioners else None


def _listed(features: Sequence[str] | str | None) -> list[str] | None:
    if features is None:
        return None
    return [name.strip() for name in features.split(",")] if isinstance(features, str) else list(features)


# ---- columns of single values ----------------------------------------------------------------------------------------


def _from_columns(
    train: _Rows,
    test: _Rows | None,
    owner: str,
    target: str,
    chosen: list[str] | None,
    holdout: float | None,
    seed: int,
) -> FederatedDataset:
    if chosen is None:
        left = [name for name in train.names if name not in (owner, target)]
        arrays = [name for name in left if train.is_array(name)]
        if arrays:
            raise ConfigError(
                f"column {arrays[0]!r} holds arrays, so that it is not clear what to predict from: name the features, "
                f"such as features={arrays[0]!r}"
            )
        columns = [*left, owner, target]
    else:
        columns = [*chosen, owner, target]
    share = 0.0 if test is not None else holdout
    data = from_table(train.table(columns), client=owner, target=target, features=chosen, holdout=share, seed=seed)
    if test is None:
        return data
    rows = test.table(columns)
    x, y = encode(data.schema, rows), encode_target(data.schema, rows)
    assert y is not None, "the table has been made with the target"
    return replace(data, test=_in_order(data, x, y, rows.column(owner).to_pylist()))


# ---- one column of arrays --------------------------------------------------------------------------------------------


def _from_array_column(
    train: _Rows, test: _Rows | None, owner: str, target: str, column: str, holdout: float | None, seed: int
) -> FederatedDataset:
    classes = _classes(train, target)
    x, y = _arrays(train, target, column, classes)
    data = from_arrays({name: (x[own], y[own]) for name, own in by_column(train.values(owner)).items()})
    if classes:
        data = replace(data, labels=(), schema=Schema(classes=classes))
    if test is not None:
        return replace(data, test=_in_order(data, *_arrays(test, target, column, classes), test.values(owner).tolist()))
    return data if not holdout else validation_split(data, holdout, seed)


def _classes(rows: _Rows, target: str) -> tuple[str, ...]:
    """Return the names of the classes; none for numbers, which `from_arrays` reads."""
    named = rows.class_names(target)
    if named:
        return named
    values = rows.values(target)
    if values.dtype.kind == "O" and any(value is None or value != value for value in values.tolist()):
        raise InputError(f"column {target!r} has missing values: drop those rows")
    return tuple(sorted(set(map(str, values)))) if values.dtype.kind in "OUT" else ()


def _arrays(rows: _Rows, target: str, column: str, classes: tuple[str, ...]) -> tuple[Values, Values]:
    """Return samples (n, ...) and labels (n,); classes that are texts by their numbers."""
    x, y = rows.values(column), rows.values(target)
    if rows.is_image(column):
        x = (x / BRIGHTEST).astype(np.float32)
    if y.dtype.kind in "OUT":
        y = Schema(classes=classes).class_numbers(y.tolist(), f"column {target!r}")
    if classes and (y < 0).any():
        raise InputError(f"column {target!r} has {int((y < 0).sum())} rows without a label (-1): drop those rows")
    return x, y


def _in_order(data: FederatedDataset, x: Values, y: Values, owners: Sequence[object]) -> Shard:
    """Return held-out samples in the order of the training clients; a client without any owns none."""
    rows = by_column(np.array(owners, dtype=object))
    new_clients = sorted(set(rows) - set(data.clients))
    if new_clients:
        raise InputError(f"client {new_clients[0]!r} is only in the split {TEST!r}: every client needs training rows")
    own = [rows.get(name, np.arange(0)) for name in data.clients]
    order = np.concatenate(own)
    labels = y[order].astype(np.float64 if data.train.y.is_floating_point() else np.int64)
    return stack_shard(data.clients, x[order].astype(data.train.x.numpy().dtype), labels, [len(each) for each in own])
