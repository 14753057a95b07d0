"""States of clients on the disk of their node: one small file for each client and round.

::

    FOLDER/RUN/CLIENT/000012.safetensors      run and client are named by digests; the state after round 12

Files are written atomically. The server names the last round of each client that it accepted, and the client continues
from the file of that round. So the state is right after a lost answer, and when the server resumes from an earlier
checkpoint. Files are deleted once no checkpoint of the server can need them.
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
from coterie.files import read_tensors, write_atomically
from coterie.training.runs.files import tensor_bytes

SUFFIX = ".safetensors"


@dataclass(frozen=True)
class ClientStateFolder:
    """Folder with the states of a node's clients in one run."""

    folder: Path
    """State folder of the node; several runs and nodes may share it."""
    run: str
    """Name of the run."""

    def load(self, clients: Sequence[ClientId], accepted: Tensor) -> tuple[ClientStates, tuple[ClientId, ...]]:
        """Return the states of clients after the rounds in `accepted` (m,), and the clients whose state is lost."""
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
        """Write the states of clients whose round differs from `before` (m,); they are on the disk on return."""
        store = states.store
        for i in torch.nonzero(store.rounds != before).flatten().tolist():
            path = self._path(clients[i], int(store.rounds[i]))
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, tensor_bytes({name: rows[i] for name, rows in store.arrays.items()}))

    def delete_older(self, clients: Sequence[ClientId], keep_from: Sequence[int]) -> None:
        """Delete the states of each client from before its round in `keep_from`."""
        for client, first in zip(clients, keep_from, strict=True):
            for path in self._home(client).glob(f"*{SUFFIX}"):
                if path.stem.isdecimal() and int(path.stem) < first:
                    path.unlink(missing_ok=True)

    def _read(self, client: ClientId, round_: int) -> Params | None:
        """Return the stored state; None if the file is absent or damaged."""
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
    """Return a digest of a name that is safe as the name of a file or folder."""
    return hashlib.sha256(name.encode()).hexdigest()[:16]
