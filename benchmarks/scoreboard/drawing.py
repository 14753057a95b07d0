"""Data of a scenario: clients that train, and new clients that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

import coterie
from coterie.core.dataset import FederatedDataset

Values = npt.NDArray[Any]
Columns = Mapping[str, Values]

EVERY = 5
"""Every fifth client is a newcomer."""
SUPPORT = 10
"""Labelled samples by which a newcomer is placed; it is scored on others."""


@dataclass(frozen=True)
class Newcomer:
    """A client that did not train."""

    support: Any
    """Its labelled samples, as `Result.predict` takes them."""
    x: Any
    """The samples on which it is scored."""
    y: Values


@dataclass(frozen=True)
class Drawn:
    """A federation and its newcomers."""

    data: FederatedDataset
    newcomers: Sequence[Newcomer]

    @property
    def groups(self) -> int | None:
        """The true number of groups, None if it is unknown."""
        return None if self.data.truth is None else int(self.data.truth.max()) + 1


@dataclass(frozen=True)
class Client:
    """Samples of one client; the last ones are held out."""

    x: Values
    y: Values
    train: int
    """Number of samples that are not held out."""
    group: int | None = None


def is_newcomer(position: int) -> bool:
    """Whether the client in this position does not train."""
    return position % EVERY == EVERY - 1


def federation(clients: Sequence[Client]) -> Drawn:
    """Return the clients as a federation, every fifth one as a newcomer."""
    stay = {f"c{i:03d}": client for i, client in enumerate(clients) if not is_newcomer(i)}
    known = all(client.group is not None for client in clients)
    data = coterie.from_arrays(
        {name: (c.x[: c.train], c.y[: c.train]) for name, c in stay.items()},
        test={name: (c.x[c.train :], c.y[c.train :]) for name, c in stay.items()},
        truth={name: client.group for name, client in stay.items()} if known else None,
    )
    seen = np.unique(np.concatenate([client.y for client in stay.values()]))
    others = [client for i, client in enumerate(clients) if is_newcomer(i)]
    return Drawn(data, [_newcomer(client, seen) for client in others])


def _newcomer(client: Client, seen: Values) -> Newcomer:
    """Return a client as a newcomer, without classes that no client trained on."""
    rows = np.arange(len(client.y))
    if client.y.dtype.kind in "iu":
        rows = np.flatnonzero(np.isin(client.y, seen))
    support, query = rows[rows < client.train][:SUPPORT], rows[rows >= client.train]
    return Newcomer((client.x[support], client.y[support]), client.x[query], client.y[query])


def table(columns: Columns, client: str, target: str, groups: Sequence[int] | None, seed: int) -> Drawn:
    """Return the rows of a table as a federation, every fifth client as a newcomer.

    Args:
        columns: Raw values by column; the rows of a client stand in random order.
        client: Column that names the client.
        target: Column to predict.
        groups: True group of each client in the order of first appearance, if it is known.
        seed: Seed of the split into training and held-out rows.
    """
    names, first = np.unique(columns[client], return_index=True)
    names = names[np.argsort(first)]
    newcomers = [name for i, name in enumerate(names) if is_newcomer(i)]
    stay = ~np.isin(columns[client], newcomers)
    data = coterie.from_table({k: v[stay] for k, v in columns.items()}, client=client, target=target, seed=seed)
    if groups is not None:
        own = {str(name): group for name, group in zip(names, groups, strict=True)}
        names_of_groups = tuple(str(group) for group in range(max(groups) + 1))
        truth = np.array([own[name] for name in data.clients])
        data = replace(data, truth=truth, group_names=names_of_groups)
    return Drawn(data, [_table_newcomer(columns, columns[client] == name, client, target) for name in newcomers])


def _table_newcomer(columns: Columns, own: npt.NDArray[np.bool_], client: str, target: str) -> Newcomer:
    rows = {name: values[own] for name, values in columns.items() if name != client}
    support = {name: values[:SUPPORT] for name, values in rows.items()}
    query = {name: values[SUPPORT:] for name, values in rows.items() if name != target}
    return Newcomer(support, query, rows[target][SUPPORT:])
