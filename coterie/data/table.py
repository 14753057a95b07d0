"""A user's own table: one row a sample, one column says whose it is."""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, hash_ids, keys_for_clients
from coterie.core.schema import Column, Label, Schema
from coterie.core.validation import Split, split
from coterie.data.arrays import stack_shard
from coterie.data.columns import Columns, Values, open_columns, shown
from coterie.data.encode import features_of, refuse_holes, scaled, target_of, texts_of
from coterie.errors import ConfigError, InputError, unknown_name
from coterie.options import check_seed

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

RECOMMENDED: dict[str, object] = {"rounds": 200, "local_steps": 10, "restarts": 5}
"""The step size depends on the data, see `stable_step`. At that step 200 rounds of 10 steps shrink the error by e^-10
along every direction whose curvature is a two-hundredth of the largest client's or more."""
HOLDOUT = 0.25
MOST_LEVELS = 1000
"""A text column with more different values is taken for a mistake."""


def from_table(
    source: object,
    *,
    client: str,
    target: str,
    features: Sequence[str] | str | None = None,
    holdout: float | None = HOLDOUT,
    standardize: bool = True,
    seed: int = 0,
    name: str = "own-table",
    schema: Schema | None = None,
) -> FederatedDataset:
    """Return the clients whose samples are the rows of a table.

    source: a DataFrame of pandas or polars, a pyarrow Table, a dict of columns, or a path to .csv or .parquet.
    client: the column that says whose row it is; ids are its values as text, in the order of first appearance.
    target: the column to predict. Numbers, whole ones too, are a regression; texts and true/false are classes, numbered
        in sorted order.
    features: column names, as a list or separated by commas; by default every other column of numbers. A text column
        becomes a column of zeros and ones for each of its values but the first in sorted order.
    holdout: the share of each client's rows that is held out as test samples; which ones follows from `seed` and the
        client's id. A client with one row keeps it for training. 0 or None: no test data.
    standardize: shift and scale every feature to mean 0 and standard deviation 1 over all training rows. A
        feature that is the same in all training rows becomes 0, with a warning.
    schema: columns, scaling and classes of an earlier table (`FederatedDataset.schema`, `Result.schema`), which
        this one is read by. Two tables can only be compared, trained on one after the other or held by two nodes
        in this way.
    """
    check_seed(seed)
    if schema is not None:
        features = _columns_of(schema, target, features)
    columns, chosen = _opened(source, client, target, features, texts_of(schema or Schema()))
    share = _share(holdout)
    ids, owner = _clients(columns, client)
    rows = _rows(ids, owner, share, seed, client)
    if schema is None:
        y, classes = _target(columns, target)
        schema = Schema(_encoded(columns, chosen), (), target, classes)
    else:
        y = target_of(columns, schema)
    data = _fill(columns, schema, rows, standardize)
    train = stack_shard(ids, data.train, y[rows.kept], rows.kept_sizes.tolist())
    test = stack_shard(ids, data.test, y[rows.aside], rows.aside_sizes.tolist()) if len(rows.aside) else None
    return FederatedDataset(
        name,
        train,
        test,
        recommended={
            "learner": "linear:bias=true" if y.dtype.kind == "f" else "logistic",
            "lr": stable_step(data.squares, rows.kept_sizes),
        },
        schema=replace(schema, scales=data.scales),
    )


def table(
    *,
    table: str | None = None,
    client: str | None = None,
    target: str | None = None,
    features: str | None = None,
    holdout: float = HOLDOUT,
    seed: int = 0,
) -> FederatedDataset:
    """The scenario: `from_table` of a file. Its path is kept in full, so that a run can go on from any folder."""
    if table is None or client is None or target is None:
        given = {"table": table, "client": client, "target": target}
        absent = [f"--{name}" for name, value in given.items() if value is None]
        raise ConfigError(f"a table needs --table FILE, --client COLUMN and --target COLUMN: add {', '.join(absent)}")
    built = from_table(table, client=client, target=target, features=features, holdout=holdout, seed=seed)
    options = {"table": str(Path(table).resolve()), "client": client, "target": target, "features": features}
    kept = {name: value for name, value in (options | {"holdout": holdout}).items() if value is not None}
    return replace(built, name="table", options=kept)


def stable_step(squares: Floats, sizes: Ints) -> float:
    """A step size with which least squares converges for every client, from each row's squared length (N,).

    Steps converge below 2 / L, where L is the largest curvature of a client's loss: the largest eigenvalue of its
    X'X / n_i with the constant 1 as a feature, and at most the mean squared length of its rows. The
    step is one over the largest such mean. The logistic loss is flatter than that.
    """
    first = np.cumsum(sizes) - sizes
    lengths = np.add.reduceat(squares, first) / sizes + 1
    return float(f"{1 / lengths.max():.2g}")


# ---- which columns -------------------------------------------------------------------------------------------


def _columns_of(schema: Schema, target: str, features: Sequence[str] | str | None) -> tuple[str, ...]:
    """Return the names of the feature columns of a schema that a table is to be read by."""
    if not isinstance(schema, Schema) or not schema.is_table:
        raise ConfigError("schema must be that of a table: take it from the data or the result of an earlier one")
    if features is not None or target != schema.target:
        raise ConfigError(
            f"the schema says which columns are read, and that the target is {schema.target!r}: leave features out, "
            "and name the same target"
        )
    return tuple(column.name for column in schema.columns)


def _opened(
    source: object, client: str, target: str, features: Sequence[str] | str | None, texts: Collection[str]
) -> tuple[Columns, tuple[str, ...]]:
    """The table and the names of its feature columns."""
    for what, column in (("client", client), ("target", target)):
        if not isinstance(column, str):
            raise ConfigError(f"{what} must be the name of a column, got {type(column).__name__}")
    if client == target:
        raise ConfigError(f"client and target are both {client!r}: they must be two columns")
    asked = None if features is None else _listed(features, client, target)
    columns = open_columns(source, {client, *texts}, None if asked is None else (client, target, *asked))
    for what, name in (("client", client), ("target", target), *(("feature", name) for name in asked or ())):
        if name not in columns.names:
            raise unknown_name(f"{what} column", str(name), columns.names)
    chosen = asked or tuple(n for n in columns.names if n not in (client, target) and columns.is_number(n))
    if not chosen:
        raise InputError(
            f"no column of numbers is left beside {client!r} and {target!r}: name the features, texts may be among them"
        )
    return columns, chosen


def _listed(features: Sequence[str] | str, client: str, target: str) -> tuple[str, ...]:
    if not isinstance(features, Sequence):
        raise ConfigError(f"features must be a list of column names, got {type(features).__name__}")
    names = features.split(",") if isinstance(features, str) else features
    found = tuple(str(name).strip() for name in names)
    if not found or not all(found):
        raise ConfigError(f"features must be column names separated by commas, got {features!r}")
    twice = [name for name in found if found.count(name) > 1]
    if twice:
        raise ConfigError(f"feature {twice[0]!r} is listed twice: name every column once")
    for what, name in (("client", client), ("target", target)):
        if name in found:
            raise ConfigError(f"{name!r} is the {what} and cannot be a feature: take it out of features")
    return found


def _share(holdout: float | None) -> float:
    if holdout is None:
        return 0.0
    if not isinstance(holdout, int | float) or isinstance(holdout, bool) or not 0 <= holdout < 1:
        raise ConfigError(f"holdout must be a share of at least 0 and below 1, got {holdout!r}")
    return float(holdout)


# ---- rows ----------------------------------------------------------------------------------------------------


def _clients(columns: Columns, client: str) -> tuple[list[str], Ints]:
    """The ids in the order of first appearance, and the position of each row's client, (N,)."""
    values = columns.values(client)
    if not len(values):
        raise InputError("the table has no rows: give at least two clients")
    refuse_holes(values, client)
    if values.dtype.kind == "O":
        place: dict[str, int] = {}
        owner = np.fromiter((place.setdefault(value, len(place)) for value in values), np.int64, len(values))
        ids = list(place)
    else:
        levels, first, codes = np.unique(values, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        ids, owner = [str(level) for level in levels[order]], rank[codes]
        if len(set(ids)) != len(ids):
            raise InputError(f"two clients in column {client!r} are equal as text: give every client a name of its own")
    if len(ids) < 2:
        raise InputError(f"client column {client!r} holds only {shown(ids[0])}: there must be two clients or more")
    return ids, owner


def _rows(ids: list[str], owner: Ints, share: float, seed: int, client: str) -> Split:
    """Which rows of the table train and which test, client after client."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(ids))
    if share == 0:
        return Split(order, sizes, order[:0], np.zeros_like(sizes))
    if sizes.max() < 2:
        raise InputError(
            f"every row has a client of its own, so none can be held out: is {client!r} the client column? "
            "else say holdout=0"
        )
    parts = split(keys_for_clients(seed, Purpose.SCENARIO, 0, hash_ids(ids)), sizes, share)
    return replace(parts, kept=order[parts.kept], aside=order[parts.aside])


def _target(columns: Columns, target: str) -> tuple[Floats | Ints, tuple[Label, ...]]:
    """(N,) numbers, or classes in the sorted order of their names; and those names."""
    values = columns.values(target)
    refuse_holes(values, target)
    if values.dtype.kind in "fiu":
        return values.astype(np.float64, copy=False), ()
    levels = _levels(values, target) if values.dtype.kind == "O" else sorted(set(values.tolist()))
    if len(levels) < 2:
        raise InputError(f"target {target!r} is {shown(levels[0])} in every row: there is nothing to predict")
    schema = Schema(classes=tuple(levels))
    return schema.class_numbers(values.tolist(), f"target {target!r}"), schema.classes


def _levels(values: Values, name: str) -> list[str]:
    """The different texts of a column, sorted; numbers that are written as texts are refused."""
    levels = sorted(set(values))
    comma = next((level for level in levels if re.fullmatch(r"[-+]?\d+(,\d+)+", level.strip())), None)
    if comma is not None:
        raise InputError(f"column {name!r} holds {shown(comma)}, which is read as text: write numbers as 1234.5")
    if len(levels) > MOST_LEVELS:
        raise InputError(
            f"column {name!r} is text with {len(levels)} different values, such as {shown(levels[0])}: if these are "
            "numbers, write them as such; else leave it out"
        )
    return levels


# ---- features ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Filled:
    """The features of both parts, (rows, d), and the squared length of each training row."""

    train: Floats
    test: Floats
    squares: Floats
    scales: tuple[tuple[float, float], ...]
    """Mean and standard deviation that each feature was standardised with."""


def _encoded(columns: Columns, chosen: Sequence[str]) -> tuple[Column, ...]:
    """Return the chosen columns with their texts in sorted order."""
    return tuple(Column(name, _texts(columns, name)) for name in chosen)


def _texts(columns: Columns, name: str) -> tuple[str, ...]:
    """Return the different texts of a column in sorted order; none for a column of numbers."""
    values = None if columns.is_number(name) else columns.values(name)
    if values is None or values.dtype.kind != "O":
        return ()
    refuse_holes(values, name)
    levels = _levels(values, name)
    if len(levels) < 2:
        raise InputError(f"feature {name!r} is {shown(levels[0])} in every row: leave it out")
    return tuple(levels)


def _fill(columns: Columns, schema: Schema, rows: Split, standardize: bool) -> _Filled:
    """Column by column into place, so that beside the result there is one column in memory."""
    d = len(schema.feature_names)
    train, test = np.empty((len(rows.kept), d)), np.empty((len(rows.aside), d))
    squares = np.zeros(len(train))
    constant, scales = [], []
    for j, (name, values) in enumerate(features_of(columns, schema)):
        kept = values[rows.kept]
        scales.append(schema.scales[j] if schema.scales else _scale(kept) if standardize else (0.0, 1.0))
        constant += [name] if scales[j][1] == 0 and not schema.scales else []
        train[:, j], test[:, j] = scaled(kept, scales[j]), scaled(values[rows.aside], scales[j])
        squares += train[:, j] ** 2
    if constant:
        warnings.warn(
            f"the same value in all training rows, so set to 0: {', '.join(constant)}", UserWarning, stacklevel=3
        )
    return _Filled(train, test, squares, tuple(scales))


def _scale(values: Floats) -> tuple[float, float]:
    """Return mean and standard deviation; the latter is 0 only where all values are the same."""
    mean, deviation = float(values.mean()), float(values.std())
    if values.min() == values.max():
        return mean, 0.0
    if deviation == 0:  # the squares of very small values vanish
        size = float(np.abs(values - mean).max())
        deviation = size * float(((values - mean) / size).std())
    return mean, deviation
