"""What clients keep for themselves from round to round: soft weights, personal models.

Every row is of a round. The server names the last round of a client's that it accepted, and the client goes on from
there: a fresh run (no round accepted yet) finds nothing, whatever was kept, and a row of another round is an error
rather than a guess.
"""

from __future__ import annotations

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
"""The accepted round of a client that was not heard of yet."""


@dataclass
class ClientStateStore:
    """The rows of all clients that live together: {name: (m, ...)}."""

    count: int
    arrays: Params = field(default_factory=dict)
    rounds: Tensor = field(init=False)
    """(m,) the round that each row is of."""
    lock: Lock = field(default_factory=Lock)

    def __post_init__(self) -> None:
        self.rounds = torch.full((self.count,), NEVER, dtype=torch.int64)

    def copy(self) -> Params:
        """Everything, to be written to a checkpoint."""
        return {name: value.clone() for name, value in self.arrays.items()} | {ROUNDS: self.rounds.clone()}

    def clear(self) -> None:
        """Forget everything."""
        self.restore({ROUNDS: torch.full((self.count,), NEVER, dtype=torch.int64)})

    def restore(self, copied: Params) -> None:
        """The inverse of `copy`."""
        self.arrays = {name: value.clone() for name, value in copied.items() if name != ROUNDS}
        self.rounds = copied[ROUNDS].clone()


@dataclass(frozen=True)
class ClientStates:
    """The rows of some of the clients of a store."""

    store: ClientStateStore
    places: Positions
    """(m,) where their rows are."""

    @classmethod
    def of(cls, count: int) -> ClientStates:
        """For so many clients, with nothing kept yet."""
        return cls(ClientStateStore(count), np.arange(count))

    def take(self, positions: Positions) -> ClientStates:
        """Only these clients."""
        return ClientStates(self.store, self.places[positions])

    def read(self, name: str, positions: Positions, accepted: Tensor, default: Tensor) -> Tensor:
        """The rows of these clients after the rounds in `accepted` (B,), or `default` (B, ...) where there is none."""
        known = accepted >= 0
        if not bool(known.any()):
            return default
        at = torch.from_numpy(self.places[positions])
        stale = known & (self.store.rounds[at] != accepted)
        if name not in self.store.arrays or bool(stale.any()):
            first = int(stale.nonzero()[0]) if bool(stale.any()) else 0
            raise TrainingError(
                f"the server goes on from round {int(accepted[first])} of a client that has kept "
                f"{name} of round {int(self.store.rounds[at[first]])}: resume from a checkpoint of this run"
            )
        rows = _cut_to(self.store.arrays[name][at], default.shape).to(default)
        return torch.where(known.to(rows.device).reshape(-1, *(1,) * (rows.dim() - 1)), rows, default)

    def write(self, positions: Positions, round_: int, rows: Params) -> None:
        """Keep these rows {name: (B, ...)} as those of this round."""
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


def _grown_to(array: Tensor, shape: torch.Size) -> Tensor:
    """With zeros behind every axis but the first that is shorter than `shape`: K or the samples have become more."""
    missing = [max(0, wanted - has) for has, wanted in zip(array.shape[1:], shape[1:], strict=True)]
    if not any(missing):
        return array
    return torch.nn.functional.pad(array, [part for more in reversed(missing) for part in (0, more)])


def _cut_to(rows: Tensor, shape: torch.Size) -> Tensor:
    """(B, ...) of this shape: what lies beyond was never this client's, or of another K."""
    return _grown_to(rows, shape)[tuple(slice(length) for length in shape)]
