"""The rows of a node as its table has them, before the nodes have agreed on how to encode them.

::

    from coterie.flower.node import make_client_app
    from coterie.flower.raw_table import raw_table

    def load(context):
        return raw_table(context.node_config["table"], client="ward", target="outcome")

    app = make_client_app(load)

Every node sends names, counts, means and levels of its columns (`offer`), the server fits one schema to those of all
nodes, and every node encodes its rows by it (`dataset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from coterie.core.schema import Schema
from coterie.data.columns import open_columns
from coterie.data.fitting import Missing, TableSettings, Task
from coterie.errors import ConfigError, InputError, unknown_name
from coterie.flower.offer import LONGEST_LEVEL, Offer
from coterie.flower.untrusted import MOST_REASON, one_line

if TYPE_CHECKING:  # a node that has no table does not need the code that reads one
    from coterie.core.dataset import FederatedDataset
    from coterie.data.table import OpenTable

Names = Sequence[str] | str | None
MIN_LEVEL_ROWS = 3
"""Smallest number of a node's rows with a text that the node names, if nobody says otherwise."""
HOLDOUT = 0.25


@dataclass(frozen=True, eq=False)
class RawTable:
    """The table of one node with the decisions of its user; nothing is read yet. See `raw_table`."""

    source: object
    client: str
    target: str
    features: Names = None
    drop: Names = None
    task: Task | None = None
    missing: Missing = "impute"
    standardize: bool = True
    holdout: float | None = HOLDOUT
    seed: int = 0
    min_level_rows: int = MIN_LEVEL_ROWS

    def offer(self) -> Offer:
        """Return all that the server learns of the table before a schema is agreed on.

        Raises:
            InputError: if the table cannot be read.
            ConfigError: if an argument does not fit.
        """
        opened = self._open()
        settings = TableSettings(self.target, opened.asked, opened.left_out, self.task, self.missing, self.standardize)
        summary = opened.summary()
        # the classes of the target must be known to all nodes, so they are always named
        columns = tuple(
            column if column.name == self.target else column.naming(self.min_level_rows, LONGEST_LEVEL)
            for column in (
                replace(each, unreadable=one_line(each.unreadable)[:MOST_REASON]) for each in summary.columns
            )
        )
        train, test = (tuple(sizes.tolist()) for sizes in (opened.parts.train_sizes, opened.parts.held_out_sizes))
        return Offer(tuple(opened.ids), train, test, settings, replace(summary, columns=columns))

    def dataset(self, schema: Schema, most_values: int = 10**9) -> FederatedDataset:
        """Return the clients with their rows encoded by the schema that the nodes have agreed on.

        Args:
            schema: The schema.
            most_values: Largest number of values of all features together.

        Raises:
            InputError: if the table does not fit the schema.
        """
        if self.target != schema.target:
            raise InputError(f"it is to predict {self.target!r}, but the schema {schema.target!r}")
        names = open_columns(self.source).names
        absent = next((column.name for column in schema.columns if column.name not in names), None)
        if absent is not None:
            raise InputError(f"it has no column {absent!r}, which the schema reads")
        opened = self._open(schema)
        values = len(opened.rows) * len(schema.feature_names)
        if values > most_values:
            raise InputError(f"by this schema the table becomes {values} values, but at most {most_values} are allowed")
        return opened.dataset(schema)

    def dealt(self, part: int, parts: int) -> RawTable:
        """Return the rows of some of the clients, as if the table were split over nodes: for a trial.

        Args:
            part: Number of the part, from 0 on.
            parts: Number of parts. Clients are dealt to them in turns, in the order of first appearance.

        Raises:
            InputError: if there are fewer clients than parts.
        """
        columns = open_columns(self.source, {self.client})
        if self.client not in columns.names:
            raise unknown_name("client column", self.client, columns.names)
        place: dict[object, int] = {}
        mine = [
            row
            for row, client in enumerate(columns.values(self.client).tolist())
            if place.setdefault(client, len(place)) % parts == part
        ]
        if not mine:
            raise InputError(
                f"the table has {len(place)} clients for {parts} nodes, so this node has none: start fewer nodes"
            )
        return replace(self, source={name: columns.values(name)[mine] for name in columns.names})

    def _open(self, schema: Schema | None = None) -> OpenTable:
        from coterie.data.table import open_table

        chosen: dict[str, Any] = {"features": self.features, "drop": self.drop} if schema is None else {}
        return open_table(
            self.source,
            client=self.client,
            target=self.target,
            holdout=self.holdout,
            seed=self.seed,
            schema=schema,
            **chosen,
        )


def raw_table(
    source: object,
    *,
    client: str,
    target: str,
    features: Names = None,
    drop: Names = None,
    task: Task | None = None,
    missing: Missing = "impute",
    standardize: bool = True,
    holdout: float | None = HOLDOUT,
    seed: int = 0,
    min_level_rows: int = MIN_LEVEL_ROWS,
) -> RawTable:
    """Return the table of a node, which is encoded by the schema that all nodes agree on.

    The arguments are those of `coterie.from_table`, but the table may hold the rows of a single client. All nodes must
    give the same target, features, drop, task, missing and standardize.

    Args:
        source: A DataFrame of pandas or polars, a pyarrow Table, a dict of columns, or a path to .csv, .tsv or
            .parquet.
        client: Column that names the client of each row.
        target: Column to predict.
        features: Columns to predict from, as a list or separated by commas; by default all others that can be used.
        drop: Columns to leave out; nothing about them leaves the node.
        task: `classification` or `regression`; by default inferred from the target.
        missing: `impute` or `refuse`.
        standardize: Whether features are scaled to mean 0 and standard deviation 1 over the training rows of all nodes.
        holdout: Share of each client's rows that is held out as test samples; 0 or None: no test data.
        seed: Seed of the split into training and test rows.
        min_level_rows: Smallest number of rows of this node with a text that the node names to the server. Rarer texts
            are only counted, and become the level `other`. The classes of the target are always named.

    Returns:
        A value that the `load` of `make_client_app` returns.

    Raises:
        ConfigError: if an argument does not fit.
    """
    if not isinstance(min_level_rows, int) or min_level_rows < 1:
        raise ConfigError(f"min_level_rows must be a whole number from 1 on, got {min_level_rows!r}")
    return RawTable(source, client, target, features, drop, task, missing, standardize, holdout, seed, min_level_rows)
