"""A user's own table: one row for each sample, and a column that names the client of each row."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, hash_ids, keys_for_clients
from coterie.core.readings import PLAIN, is_mark, number_text
from coterie.core.schema import ColumnNote, Floats, Schema, Values, missing_cells
from coterie.core.validation import Split, split
from coterie.data.arrays import stack_shard
from coterie.data.columns import LONGEST_WHOLE, Columns, open_columns, shown
from coterie.data.encode import (
    features_of,
    marks_are_missing,
    refuse_holes,
    scaled,
    target_of,
    texts_of,
)
from coterie.data.fitting import Missing, TableSettings, Task, client_remarks, fit_schema, is_suspicious
from coterie.data.summary import ColumnSummary, TableSummary, merge, summarize
from coterie.errors import ColumnWarning, ConfigError, InputError, unknown_name
from coterie.options import check_seed

Ints = npt.NDArray[np.int64]
Names = Sequence[str] | str | None
"""Names of columns, as a list or separated by commas."""

RECOMMENDED: dict[str, object] = {"rounds": 200, "local_steps": 10, "restarts": 5}
RECOMMENDED |= {"patience": 5, "client_weight": "samples"}
"""Clients may be of any size, so that samples count alike. The step size depends on the data, see `stable_step`. At
that step 200 rounds of 10 steps shrink the error by e^-10 along every direction whose curvature is a two-hundredth of
the largest client's or more."""
SMALL = 0.1
"""Standard deviation of the first predictions, as a share of that of the target."""
HOLDOUT = 0.25
NUMBER_LEVELS = (
    "is categorical, but its levels are numbers: write them as texts such as 'level 3', or convert the column to "
    "numbers"
)
"""Reason why a column of a data frame is left out: it would be read as numbers."""
MOST_COMPARED, FINE = 2000, 0.3
"""First rows of a table from which it is judged whether rows are alike by chance: not if a column has different values
in this many of them."""


def from_table(
    source: object,
    *,
    client: str,
    target: str,
    features: Names = None,
    drop: Names = None,
    task: Task | None = None,
    missing: Missing = "impute",
    holdout: float | None = HOLDOUT,
    standardize: bool = True,
    seed: int = 0,
    name: str = "own-table",
    schema: Schema | None = None,
) -> FederatedDataset:
    """Return the clients whose samples are the rows of a table.

    `column_notes` of the result has a note about every column. Columns that are left out are also named in a warning.

    Args:
        source: A DataFrame of pandas or polars, a pyarrow Table, a dict of columns, or a path to .csv, .tsv or
            .parquet.
        client: Column that names the client of each row; ids are its values as text, in the order of first appearance.
        target: Column to predict. Rows without a target are left out with a warning.
        features: Columns to predict from, as a list or separated by commas; by default all others that can be used.
            Numbers are used as they are, true/false as 1 and 0, dates as days since the earliest one, and texts as a
            feature of zeros and ones for each level but the most frequent one.
        drop: Columns to leave out, as a list or separated by commas.
        task: `classification` or `regression`. By default texts, true/false and two different whole numbers are
            classes, all other numbers are a regression.
        missing: `impute` replaces missing values by the mean of training rows and adds a feature of zeros and ones that
            marks them; `refuse` raises an error.
        holdout: Share of each client's rows that is held out as test samples; which ones follows from `seed` and the
            client's id. A client with one row keeps it for training. 0 or None: no test data.
        standardize: Whether features are scaled to mean 0 and standard deviation 1 over all training rows.
        seed: Seed of the split into training and test rows.
        name: Name of the data.
        schema: Columns, scaling and classes of an earlier table (`FederatedDataset.schema`, `Result.schema`), by which
            this one is read. Two tables can only be compared, trained on one after the other or held by two nodes in
            this way.

    Returns:
        The federation of these clients.

    Raises:
        InputError: if the table cannot be read, or could be read in two ways.
        ConfigError: if an argument does not fit.

    Example:
        >>> import coterie
        >>> table = {"site": ["a", "b"] * 20, "hours": list(range(40)), "score": [h * (1 + h % 2) for h in range(40)]}
        >>> data = coterie.from_table(table, client="site", target="score")
        >>> data.schema.feature_names
        ('hours',)
        >>> print(data.column_notes[0].action, data.column_notes[0].detail)
        client 2 clients, 40 rows
    """
    if schema is not None and (task is not None or drop is not None or missing != "impute"):
        raise ConfigError("the schema says how the table is read: leave out task, drop and missing")
    opened = open_table(
        source, client=client, target=target, features=features, drop=drop, holdout=holdout, seed=seed, schema=schema
    )
    _refuse_odd_clients(opened, holdout)
    notes: tuple[ColumnNote, ...] = ()
    if schema is None:
        if task is None and target in opened.columns.categorical and len(set(opened.targets.tolist())) > 2:
            raise InputError(f"target {target!r} {NUMBER_LEVELS}; or choose task='classification'")
        settings = TableSettings(target, opened.asked, opened.left_out, task, missing, standardize)
        schema, notes = fit_schema(merge([opened.summary()]), settings)
    else:
        notes = _notes_of(schema)
    data = opened.dataset(schema, notes, name)
    for text in _warnings(data, opened):
        warnings.warn(text, ColumnWarning, stacklevel=2)
    return data


def _notes_of(schema: Schema) -> tuple[ColumnNote, ...]:
    """Return notes of a table that is read by the schema of another one."""
    task = f"classification: {len(schema.classes)} classes" if schema.classes else "regression"
    used = [ColumnNote(column.name, "used", f"{column.kind}, read by the given schema") for column in schema.columns]
    return (*used, ColumnNote(schema.target, "target", f"{task}, read by the given schema"))


def _refuse_odd_clients(opened: OpenTable, holdout: float | None) -> None:
    """Raise InputError for one client alone, and for clients none of whom has a row to hold out."""
    name, ids = opened.client, opened.ids
    if len(ids) < 2:
        raise InputError(f"client column {name!r} holds only {shown(ids[0])}: there must be two clients or more")
    if holdout and len(opened.rows) == len(ids):
        raise InputError(
            f"every row has another client, so none can be held out: is {name!r} the client column? if it is, pass "
            "holdout=0"
        )


def _warnings(data: FederatedDataset, opened: OpenTable) -> list[str]:
    """Return texts about decisions that a user of Python should see; the command line prints all notes instead."""
    notes = data.column_notes
    asked = {*opened.left_out, *(opened.columns.names if opened.asked is not None else ())}
    dropped = [
        f"{note.column} ({note.detail})" for note in notes if note.action == "dropped" and note.column not in asked
    ]
    found = [f"columns that are left out: {'; '.join(dropped)}"] if dropped else []
    for note in notes:
        partly = note.action == "target" and (opened.without_target or "--task" in note.detail)
        if note.action != "dropped" and (partly or is_suspicious(note)):
            what = "column" if note.action == "used" else note.action
            found.append(f"{what} {note.column!r}: {note.detail}")
    return found


def table(
    *,
    table: str | None = None,
    client: str | None = None,
    target: str | None = None,
    features: str | None = None,
    drop: str | None = None,
    task: Task | None = None,
    missing: Missing = "impute",
    holdout: float = HOLDOUT,
    seed: int = 0,
) -> FederatedDataset:
    """The scenario: `from_table` of a file. Its path is kept in full, so that a run can go on from any folder."""
    if table is None or client is None or target is None:
        given = {"table": table, "client": client, "target": target}
        absent = [f"--{name}" for name, value in given.items() if value is None]
        raise ConfigError(f"a table needs --table FILE, --client COLUMN and --target COLUMN: add {', '.join(absent)}")
    chosen = {"client": client, "target": target, "features": features, "drop": drop, "task": task}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ColumnWarning)  # the command line prints the notes on all columns
        built = from_table(
            table,
            client=client,
            target=target,
            features=features,
            drop=drop,
            task=task,
            missing=missing,
            holdout=holdout,
            seed=seed,
        )
    options = {"table": str(Path(table).resolve()), **chosen, "missing": missing, "holdout": holdout}
    return replace(built, name="table", options={name: value for name, value in options.items() if value is not None})


# ---- a table whose clients and rows are known ------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class OpenTable:
    """The table of one party before a schema is agreed: which rows belong to whom, which train and which test.

    A node of a federation sends `summary()`, receives the schema that was fitted to the summaries of all nodes, and
    makes its arrays with `dataset(schema)`.
    """

    columns: Columns
    client: str
    target: str
    asked: tuple[str, ...] | None
    """Feature columns that were named; None: all that can be used."""
    left_out: tuple[str, ...]
    """Columns that the user leaves out."""
    ids: list[str]
    """Clients in the order of first appearance."""
    rows: Ints
    """Rows of the table that have a target, (n,)."""
    owner: Ints
    """Position of the client of each of these rows, (n,)."""
    parts: Split
    """Split of these rows into training and test rows, client after client."""
    targets: Values
    """Target of each of these rows as the table has it, (n,)."""
    without_target: int
    """Number of rows without a target."""
    lost_clients: int
    """Number of clients none of whose rows has a target."""

    def summary(self) -> TableSummary:
        """Return the summary of all columns but that of the clients; it is all that leaves the party."""
        training = np.zeros(len(self.rows), dtype=bool)
        training[self.parts.train] = True
        wanted = self.columns.names if self.asked is None else (*self.asked, self.target)
        parts = []
        for name in self.columns.names:
            if name == self.client or name not in wanted or name in self.left_out:
                continue
            if name in self.columns.categorical and name != self.target:
                parts.append(ColumnSummary(name, len(self.rows), int(training.sum()), unreadable=NUMBER_LEVELS))
                continue
            try:
                values = self.targets if name == self.target else self.columns.values(name)[self.rows]
            except InputError as error:
                reason = str(error).removeprefix(f"column {name!r} ")
                parts.append(ColumnSummary(name, len(self.rows), int(training.sum()), unreadable=reason))
                continue
            parts.append(summarize(name, values, training, self.owner))
        return TableSummary(len(self.ids), len(self.rows), self.without_target, tuple(parts))

    def dataset(self, schema: Schema, notes: Sequence[ColumnNote] = (), name: str = "own-table") -> FederatedDataset:
        """Return the clients with their features and targets as the schema describes them.

        Args:
            schema: The schema of this table, or one that all parties agreed on.
            notes: What became of each column.
            name: Name of the data.

        Raises:
            InputError: if the table does not fit the schema.
        """
        y = target_of(self.targets, schema)
        filled = self._filled(schema)
        kept, aside = self.parts.train, self.parts.held_out
        train = stack_shard(self.ids, filled.train, y[kept], self.parts.train_sizes.tolist())
        test = stack_shard(self.ids, filled.test, y[aside], self.parts.held_out_sizes.tolist()) if len(aside) else None
        recommended = {
            "learner": usual_learner(schema),
            "lr": step_size(schema, filled.squares, self.parts.train_sizes),
        }
        explained = self._with_client(notes, self._copies(schema)) if notes else ()
        return FederatedDataset(name, train, test, recommended=recommended, schema=schema, column_notes=explained)

    def _copies(self, schema: Schema) -> int:
        """Return the number of rows that equal an earlier row of their client, in a table where few rows would."""
        known, finest = self.owner.astype(np.uint64), 0
        for name in (*(column.name for column in schema.columns), schema.target):
            values = self.targets if name == schema.target else self.columns.values(name)[self.rows]
            finest = max(finest, len(set(values[:MOST_COMPARED].tolist())))
            known = _mixed(known ^ _mixed(_as_bits(values)))
        return len(known) - len(np.unique(known)) if finest > FINE * min(len(known), MOST_COMPARED) else 0

    def _with_client(self, notes: Sequence[ColumnNote], copies: int) -> tuple[ColumnNote, ...]:
        """Return notes of all columns in the order of the table."""
        known = {note.column: note for note in notes}
        verb = "client has" if self.lost_clients == 1 else "clients have"
        lost = f"; {self.lost_clients} {verb} no row with a target" if self.lost_clients else ""
        odd = "".join(f"; {remark}" for remark in client_remarks(self.client, self.ids, len(self.rows), copies))
        detail = f"{len(self.ids)} clients, {len(self.rows)} rows{lost}{odd}"
        known[self.client] = ColumnNote(self.client, "client", detail)
        absent = ("left out by --drop", "not among the named features or the columns of the given schema")
        return tuple(
            known.get(name) or ColumnNote(name, "dropped", absent[name not in self.left_out])
            for name in self.columns.names
        )

    def _filled(self, schema: Schema) -> _Filled:
        """Fill column by column, so that memory holds one column in addition to the result."""
        kept, aside = self.parts.train, self.parts.held_out
        d = len(schema.feature_names)
        train, test = np.empty((len(kept), d)), np.empty((len(aside), d))
        squares = np.zeros(len(train))
        for j, (name, values) in enumerate(features_of(self.columns, schema, self.rows)):
            train[:, j], test[:, j] = (scaled(values[rows], schema.scales[j]) for rows in (kept, aside))
            squares += train[:, j] ** 2
            if not (np.isfinite(train[:, j]).all() and np.isfinite(test[:, j]).all()):
                raise InputError(f"feature {name!r} is too far from its mean in the schema: the scaled value overflows")
        return _Filled(train, test, squares)


@dataclass(frozen=True)
class _Filled:
    """The features of both parts, (rows, d), and the squared length of each training row."""

    train: Floats
    test: Floats
    squares: Floats


def open_table(
    source: object,
    *,
    client: str,
    target: str,
    features: Names = None,
    drop: Names = None,
    holdout: float | None = HOLDOUT,
    seed: int = 0,
    schema: Schema | None = None,
) -> OpenTable:
    """Return a table with its clients, and with its rows split into training and test rows.

    The arguments are those of `from_table`. There may be one client only: a party may hold no more.

    Raises:
        InputError: if the table cannot be read, or a row has no client.
        ConfigError: if an argument does not fit.
    """
    check_seed(seed)
    if schema is not None:
        features = _columns_of(schema, target, features)
    share = _share(holdout)
    columns, asked, left_out = _opened(source, client, target, features, drop, schema)
    values = columns.values(target)
    if not len(values):
        raise InputError("the table has no rows: give at least two clients")
    gone = missing_cells(values, _marks_are_missing(values) if schema is None else marks_are_missing(schema))
    rows = np.flatnonzero(~gone)
    owners = columns.values(client)
    refuse_holes(missing_cells(owners, marks=False), client)
    if not len(rows):
        raise InputError(f"target {target!r} is missing in every row: there is nothing to predict")
    ids, owner = _clients(owners[rows], client)
    lost = len(set(owners[gone].tolist()) - set(owners[rows].tolist())) if len(rows) < len(values) else 0
    parts = _parts(ids, owner, share, seed)
    return OpenTable(
        columns, client, target, asked, left_out, ids, rows, owner, parts, values[rows], int(gone.sum()), lost
    )


def _marks_are_missing(values: Values) -> bool:
    """Whether texts such as NA mean a missing target: if all other cells are numbers."""
    cells = set(values.tolist()) - {None} if values.dtype.kind == "O" else set()
    return all(is_mark(cell) or PLAIN.read(cell) is not None for cell in cells)


def usual_learner(schema: Schema) -> str:
    """Return the learner of a table: logistic, or linear with first models of the size and at the mean of the target.

    Small first models let each client prefer a direction rather than the smallest model.

    Args:
        schema: How the table is read.
    """
    if schema.classes:
        return "logistic"
    mean, deviation = schema.target_scale
    scaled_features = any(scale != (0.0, 1.0) for scale in schema.scales)
    scale = SMALL * deviation if scaled_features and deviation else 1.0
    return f"linear:bias=true,scale={scale:.6g},center={mean:.6g}"


def step_size(schema: Schema, squares: Floats, sizes: Ints) -> float:
    """Return a step size of local training.

    Args:
        schema: How the features were made of the table.
        squares: Squared length of each training row, (N,).
        sizes: Number of training rows of each client.
    """
    return logistic_step(float(squares.mean())) if schema.classes else stable_step(squares, sizes)


def stable_step(squares: Floats, sizes: Ints) -> float:
    """Return a step size with which least squares converges for every client, from each row's squared length (N,).

    Steps converge below 2 / L, where L is the largest curvature of a client's loss: the largest eigenvalue of its
    X'X / n_i with the constant 1 as a feature, and at most the mean squared length of its rows. The
    step is one over the largest such mean.
    """
    first = np.cumsum(sizes) - sizes
    lengths = np.add.reduceat(squares, first) / sizes + 1
    return float(f"{1 / lengths.max():.2g}")


def logistic_step(length: float) -> float:
    """Return a step size for logistic regression, from the mean squared length of the rows.

    The curvature of the pooled logistic loss is at most a quarter of the mean squared length, with the constant 1 as a
    feature. Gradients are bounded, so that a client with a larger curvature overshoots but does not diverge.
    """
    return float(f"{4 / (length + 1):.2g}")


# ---- which columns -------------------------------------------------------------------------------------------


def _columns_of(schema: Schema, target: str, features: Names) -> tuple[str, ...]:
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
    source: object, client: str, target: str, features: Names, drop: Names, schema: Schema | None
) -> tuple[Columns, tuple[str, ...] | None, tuple[str, ...]]:
    """Return the table, the names of its feature columns if they were named, and those of the columns to leave out."""
    for what, column in (("client", client), ("target", target)):
        if not isinstance(column, str):
            raise ConfigError(f"{what} must be the name of a column, got {type(column).__name__}")
    if client == target:
        raise ConfigError(f"client and target are both {client!r}: they must be two columns")
    texts = {client, *(() if schema is None else texts_of(schema))}
    names = open_columns(source, texts).names
    for what, column in (("client", client), ("target", target)):
        if column not in names and len(names) == 1:
            raise InputError(
                f"there is no {what} column {column!r}, because the table has one column only, {shown(names[0])}: the "
                "first line of a file must name the columns, separated by commas, semicolons, tabs or |"
            )
        if column not in names:
            raise unknown_name(f"{what} column", column, names)
    roles = {client: "client", target: "target"}
    asked = None if features is None else _listed(features, "features", names, roles)
    left_out = () if drop is None else _listed(drop, "drop", names, roles)
    both = next((name for name in left_out if name in (asked or ())), None)
    if both is not None:
        raise ConfigError(f"{both!r} is among the features and among the columns to drop: name it in one of them")
    read = asked if asked is not None else [name for name in names if name not in left_out]
    return open_columns(source, texts, {client, target, *read}), asked, left_out


def _listed(given: Sequence[str] | str, what: str, names: Sequence[str], roles: dict[str, str]) -> tuple[str, ...]:
    """Names of columns from a list, or from a text that separates them by commas."""
    if not isinstance(given, Sequence):
        raise ConfigError(f"{what} must be a list of column names, got {type(given).__name__}")
    found = _split(given, names) if isinstance(given, str) else tuple(str(name).strip() for name in given)
    if not found or not all(found):
        raise ConfigError(f"{what} must be column names separated by commas, got {given!r}")
    for name in found:
        if name in roles:
            raise ConfigError(
                f"{name!r} is the {roles[name]} and cannot be a feature or dropped: take it out of {what}"
            )
        if name not in names:
            raise unknown_name("feature column" if what == "features" else "column to drop", name, names)
    twice = next((name for name in found if found.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{what}: {twice!r} is listed twice: name every column once")
    return found


def _split(text: str, names: Sequence[str]) -> tuple[str, ...]:
    """Split a text at commas, but not inside the name of a column."""
    parts, found = text.split(","), []
    while parts:
        length = next((n for n in range(len(parts), 1, -1) if ",".join(parts[:n]).strip() in names), 1)
        found.append(",".join(parts[:length]).strip())
        parts = parts[length:]
    return tuple(found)


def _share(holdout: float | None) -> float:
    if holdout is None:
        return 0.0
    if not isinstance(holdout, int | float) or isinstance(holdout, bool) or not 0 <= holdout < 1:
        raise ConfigError(f"holdout must be a share of at least 0 and below 1, got {holdout!r}")
    return float(holdout)


# ---- rows ----------------------------------------------------------------------------------------------------


def _as_bits(values: Values) -> npt.NDArray[np.uint64]:
    """Return a number for each cell, the same for equal cells, (n,)."""
    if values.dtype.kind == "O":
        place: dict[object, int] = {}
        return np.fromiter((place.setdefault(value, len(place)) for value in values), np.uint64, len(values))
    if values.dtype.kind == "M":
        return values.astype("datetime64[us]").view(np.uint64)
    return values.astype(np.float64).view(np.uint64)


def _mixed(bits: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Return the hashes of numbers (n,): the mixing steps of SplitMix64."""
    bits = bits + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return bits ^ (bits >> np.uint64(31))


def _clients(values: Values, client: str) -> tuple[list[str], Ints]:
    """Return the ids in the order of first appearance, and the position of each row's client, (n,)."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise InputError(f"client column {client!r} holds an infinite number: give every row the id of its client")
    if values.dtype.kind == "f" and (np.abs(values) >= LONGEST_WHOLE).any():
        odd = values[np.abs(values) >= LONGEST_WHOLE][0]
        raise InputError(
            f"client column {client!r} holds floating-point numbers such as {odd:.17g}, which have lost their last "
            "digits, so that several clients may have become one: give the ids as texts"
        )
    if values.dtype.kind == "M":
        raise InputError(f"client column {client!r} holds dates: name the column with the ids of the clients")
    if values.dtype.kind == "O":
        place: dict[str, int] = {}
        owner = np.fromiter((place.setdefault(value, len(place)) for value in values), np.int64, len(values))
        ids = list(place)
    else:
        levels, first, codes = np.unique(values, return_index=True, return_inverse=True)
        order = np.argsort(first)
        rank = np.empty_like(order)
        rank[order] = np.arange(len(order))
        floats = values.dtype.kind == "f"
        ids, owner = [number_text(level) if floats else str(level) for level in levels[order]], rank[codes]
    return ids, owner


def _parts(ids: list[str], owner: Ints, share: float, seed: int) -> Split:
    """Return the split of the rows into training and test rows, client after client."""
    order = np.argsort(owner, kind="stable")
    sizes = np.bincount(owner, minlength=len(ids))
    if share == 0:
        return Split(order, sizes, order[:0], np.zeros_like(sizes))
    parts = split(keys_for_clients(seed, Purpose.SCENARIO, 0, hash_ids(ids)), sizes, share)
    return replace(parts, train=order[parts.train], held_out=order[parts.held_out])
