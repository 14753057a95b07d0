"""What clients keep for themselves, on the disk of their node: one small file for each client and round.

::

    FOLDER/RUN/CLIENT/000012.safetensors      run and client by digest, the state after round 12

A file is whole or absent. The server names the round of a client's that it accepted last, and the client goes on from
the file of that round: a lost answer or a server that resumes from an earlier checkpoint finds the right one. Files
from the oldest checkpoint on that the server may go back to are kept, older ones are deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coterie.core.client_state import ClientStates
from coterie.core.clusters import Params
from coterie.core.shard import ClientId
from coterie.errors import ConfigError
from coterie.files import write_atomically
from coterie.training.runs.files import read_tensors, tensor_bytes

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Store:
    """The states of a node's clients in one run."""

    folder: Path
    """Of the node; several runs and nodes may share it."""
    run: str

    def load(self, clients: Sequence[ClientId], accepted: Tensor) -> tuple[ClientStates, tuple[ClientId, ...]]:
        """The states of these clients after the rounds in `accepted` (m,), and who should have one and has none."""
        states, lost = ClientStates.of(len(clients)), []
        for i, (client, round_) in enumerate(zip(clients, accepted.tolist(), strict=True)):
            if round_ < 0:
                continue
            kept = self._read(client, round_)
            if kept is None:
                lost.append(client)
            else:
                states.write(np.array([i]), round_, {name: row[None] for name, row in kept.items()})
        return states, tuple(lost)

    def save(self, clients: Sequence[ClientId], states: ClientStates, before: Tensor) -> None:
        """Write what clients keep whose round is another than `before` (m,); it is on the disk on return."""
        store = states.store
        for i in torch.nonzero(store.rounds != before).flatten().tolist():
            path = self._path(clients[i], int(store.rounds[i]))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, tensor_bytes({name: rows[i] for name, rows in store.arrays.items()}))

    def forget(self, clients: Sequence[ClientId], keep_from: Sequence[int]) -> None:
        """Delete what each client kept before its round in `keep_from`."""
        for client, first in zip(clients, keep_from, strict=True):
            for path in self._home(client).glob(f"*{SUFFIX}"):
                if path.stem.isdecimal() and int(path.stem) < first:
                    path.unlink(missing_ok=True)

    def _read(self, client: ClientId, round_: int) -> Params | None:
        """None where there is no file, or one that a disk has damaged: both are lost."""
        path = self._path(client, round_)
        if not path.is_file():
            return None
        try:
            return read_tensors(str(path))
        except ConfigError:
            return None

    def _path(self, client: ClientId, round_: int) -> Path:
        return self._home(client) / f"{round_:06d}{SUFFIX}"

    def _home(self, client: ClientId) -> Path:
        return self.folder / digest(self.run) / digest(client)


def digest(name: str) -> str:
    """A name for a folder, whatever is in the text."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
