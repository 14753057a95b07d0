"""State that clients keep from round to round, such as soft cluster weights or personal models.

Every row is stored with the round that it belongs to. The server sends the last round that it accepted from a client,
and the client continues from its state of that round. In a new run no round has been accepted yet, so stored rows are
ignored. A row of a different round is an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.shard import Positions
from coterie.errors import TrainingError

ROUNDS = "rounds"
NEVER = -1
"""Accepted round of a client that has not replied yet."""


@dataclass
class ClientStateStore:
    """State of all clients in one process."""

    count: int
    """Number of clients (m)."""
    arrays: Params = field(default_factory=dict)
    """Rows of all clients, {name: (m, ...)}."""
    rounds: Tensor = field(init=False)
    """Round that each client's rows belong to, (m,)."""
    lock: Lock = field(default_factory=Lock)
    """Lock for writing from several threads."""

    def __post_init__(self) -> None:
        self.rounds = torch.full((self.count,), NEVER, dtype=torch.int64)

    def copy(self) -> Params:
        """Return a copy of the state of all clients for a checkpoint."""
        return {name: value.clone() for name, value in self.arrays.items()} | {ROUNDS: self.rounds.clone()}

    def clear(self) -> None:
        """Remove the state of all clients."""
        self.restore({ROUNDS: torch.full((self.count,), NEVER, dtype=torch.int64)})

    def rows(self, places: Tensor) -> Params:
        """Return the state of the clients at these places, in the form of `copy`."""
        return {name: value[places] for name, value in self.arrays.items()} | {ROUNDS: self.rounds[places]}

    def replace_rows(self, places: Tensor, rows: Params) -> None:
        """Replace the state of the clients at these places by rows in the form of `copy`."""
        self.rounds[places] = rows[ROUNDS]
        for name, value in rows.items():
            if name == ROUNDS:
                continue
            kept = self.arrays.get(name, value.new_zeros(self.count, *value.shape[1:]))
            kept = _grown_to(kept, value.shape)
            kept[places] = _grown_to(value, kept.shape)
            self.arrays[name] = kept

    def restore(self, copied: Params) -> None:
        """Restore the state that `copy` returned."""
        self.arrays = {name: value.clone() for name, value in copied.items() if name != ROUNDS}
        self.rounds = copied[ROUNDS].clone()


@dataclass(frozen=True)
class ClientStates:
    """State of some of the clients in a store."""

    store: ClientStateStore
    places: Positions
    """Rows of these clients in the store, (m,)."""

    @classmethod
    def of(cls, count: int) -> ClientStates:
        """Return an empty state for `count` clients."""
        return cls(ClientStateStore(count), np.arange(count))

    def take(self, positions: Positions) -> ClientStates:
        """Return the state of these clients only."""
        return ClientStates(self.store, self.places[positions])

    def read(self, name: str, positions: Positions, accepted: Tensor, default: Tensor) -> Tensor:
        """Return an array of these clients' state after their last accepted round.

        Args:
            name: Name of the array.
            positions: Positions of the clients, (B,).
            accepted: Last accepted round of each client, (B,), or `NEVER`.
            default: Rows of clients without an accepted round, (B, ...).

        Returns:
            One row for each client, in the shape of `default`.

        Raises:
            TrainingError: if a client's stored state belongs to a different round.
        """
        known = accepted >= 0
        if not bool(known.any()):
            return default
        at = torch.from_numpy(self.places[positions])
        stale = known & (self.store.rounds[at] != accepted)
        if name not in self.store.arrays or bool(stale.any()):
            first = int(stale.nonzero()[0]) if bool(stale.any()) else 0
            raise TrainingError(
                f"the server continues from round {int(accepted[first])}, but a client has stored its {name} of round "
                f"{int(self.store.rounds[at[first]])}: resume from a checkpoint of this run"
            )
        rows = _cut_to(self.store.arrays[name][at], default.shape).to(default)
        return torch.where(known.to(rows.device).reshape(-1, *(1,) * (rows.dim() - 1)), rows, default)

    def write(self, positions: Positions, round_: int, rows: Params) -> None:
        """Store the state of these clients after a round.

        Args:
            positions: Positions of the clients, (B,).
            round_: The round that the rows belong to.
            rows: New rows by name, {name: (B, ...)}.
        """
        at = torch.from_numpy(self.places[positions])
        with self.store.lock:
            for name, value in rows.items():
                if name not in self.store.arrays:
                    self.store.arrays[name] = value.new_zeros(self.store.count, *value.shape[1:], device="cpu")
                self.store.arrays[name] = _grown_to(self.store.arrays[name], value.shape)
                kept = self.store.arrays[name]
                inside = kept[tuple(slice(length) for length in (self.store.count, *value.shape[1:]))]
                inside[at] = value.cpu()
            self.store.rounds[at] = round_


def joined_rows(parts: Sequence[Params]) -> Params:
    """Return the states of several groups of clients, in the form of `ClientStateStore.copy`, as one."""
    count = sum(len(part[ROUNDS]) for part in parts)
    whole, first = ClientStateStore(count), 0
    for part in parts:
        places = torch.arange(first, first + len(part[ROUNDS]))
        whole.replace_rows(places, part)
        first += len(places)
    return whole.arrays | {ROUNDS: whole.rounds}


def _grown_to(array: Tensor, shape: torch.Size) -> Tensor:
    """Return the array padded with zeros to at least `shape` along every axis but the first, as K or n has grown."""
    missing = [max(0, wanted - has) for has, wanted in zip(array.shape[1:], shape[1:], strict=True)]
    if not any(missing):
        return array
    return torch.nn.functional.pad(array, [part for length in reversed(missing) for part in (0, length)])


def _cut_to(rows: Tensor, shape: torch.Size) -> Tensor:
    """Return the rows in this shape; entries beyond it belong to other clients or to a former number of clusters."""
    return _grown_to(rows, shape)[tuple(slice(length) for length in shape)]
