"""The table of a node, before the nodes have agreed on an encoding of its columns.

::

    from coterie.flower.node import make_client_app
    from coterie.flower.raw_table import raw_table

    def load(context):
        return raw_table(context.node_config["table"], client="ward", target="outcome")

    app = make_client_app(load)

Every node sends names, counts, means and levels of its columns (`offer`), the server fits one schema to them, and every
node encodes its rows by this schema (`dataset`).
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

if TYPE_CHECKING:  # a node without a table does not load the code that reads tables
    from coterie.core.dataset import FederatedDataset
    from coterie.data.table import OpenTable

Names = Sequence[str] | str | None
MIN_LEVEL_ROWS = 3
"""Default of the smallest number of rows with a text that a node names to the server."""
HOLDOUT = 0.25
"""Default share of each client's rows that is held out as test samples."""


@dataclass(frozen=True, eq=False)
class RawTable:
    """Table of one node with the settings to read it; see `raw_table`. The table is read when it is needed."""

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
        """Return the summary of the table, which is all that the server sees before the nodes agree on a schema.

        Raises:
            InputError: if the table cannot be read.
            ConfigError: if an argument is not allowed or does not suit the table.
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
            most_values: Largest allowed number of values of the encoded table.

        Raises:
            InputError: if the table does not fit the schema.
        """
        if self.target != schema.target:
            raise InputError(f"the target of the table is {self.target!r}, but that of the schema is {schema.target!r}")
        names = open_columns(self.source).names
        absent = next((column.name for column in schema.columns if column.name not in names), None)
        if absent is not None:
            raise InputError(f"the table has no column {absent!r}, which the schema needs")
        opened = self._open(schema)
        values = len(opened.rows) * len(schema.feature_names)
        if values > most_values:
            raise InputError(
                f"encoded by this schema the table has {values} values, but at most {most_values} are allowed"
            )
        return opened.dataset(schema)

    def dealt(self, part: int, parts: int) -> RawTable:
        """Return the rows of one part of the clients, to try a federation on a single table.

        Args:
            part: Index of the part, from 0.
            parts: Number of parts. Clients are assigned to parts in turns, in the order of first appearance.

        Returns:
            A table with the rows of these clients.

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
                f"the table has {len(place)} clients for {parts} nodes, so that this node has none: start fewer nodes"
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

    The arguments are those of `coterie.from_table`, but the table may have a single client. All nodes must use the same
    target, features, drop, task, missing and standardize.

    Args:
        source: A DataFrame of pandas or polars, a pyarrow Table, a dict of columns, or a path to .csv, .tsv or
            .parquet.
        client: Column that names the client of each row.
        target: Column to predict.
        features: Columns to predict from, as a list or separated by commas; by default all others that can be used.
        drop: Columns to leave out; nothing about them leaves the node.
        task: `classification` or `regression`; by default inferred from the target.
        missing: `impute` replaces missing values of features, `refuse` raises an error.
        standardize: Whether features are scaled to mean 0 and standard deviation 1 over the training rows of all nodes.
        holdout: Share of each client's rows that is held out as test samples; 0 or None: no test data.
        seed: Seed of the split into training and test rows.
        min_level_rows: Smallest number of this node's rows with a text for the node to name that text to the server.
            Rarer texts are only counted, and become the level `other`. The classes of the target are always named.

    Returns:
        The table, which the function `load` of `make_client_app` returns.

    Raises:
        ConfigError: if an argument is not allowed.

    Example:
        >>> from coterie.flower.raw_table import raw_table
        >>> columns = {"ward": ["a", "a", "b", "b"], "age": [30, 41, 52, 38], "days": [2.0, 3.5, 5.0, 3.0]}
        >>> table = raw_table(columns, client="ward", target="days", holdout=0)
        >>> table.offer().clients
        ('a', 'b')
    """
    if not isinstance(min_level_rows, int) or min_level_rows < 1:
        raise ConfigError(f"min_level_rows must be a whole number of at least 1, got {min_level_rows!r}")
    return RawTable(source, client, target, features, drop, task, missing, standardize, holdout, seed, min_level_rows)
