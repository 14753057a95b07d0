"""The clients that can be asked, wherever they live. The one verb is `ask`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from torch import Tensor

from coterie.core.client_state import ClientStateStore
from coterie.core.keys import Words
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task


@dataclass(frozen=True)
class Note:
    """Something that happened on the way to clients elsewhere and that the record of the round should tell."""

    reason: str
    """One sentence, such as why an answer was refused."""
    clients: tuple[ClientId, ...] = ()
    """Whom it is about."""
    node: str = ""
    """Where they live, if the engine knows places."""

    def plain(self) -> dict[str, object]:
        """For JSON."""
        return {"node": self.node, "clients": list(self.clients), "reason": self.reason}


@dataclass(frozen=True)
class Replies:
    """What came back from an ask, and what it cost."""

    reply: Reply
    bytes_up: int
    bytes_down: int
    notes: tuple[Note, ...] = ()
    """What went wrong on the way; nothing can where clients live in this process."""


class Federation(Protocol):
    """The clients that can be asked, wherever they live."""

    @property
    def clients(self) -> tuple[ClientId, ...]: ...

    @property
    def hashes(self) -> Words:
        """One word a client, from its id."""
        ...

    @property
    def sizes(self) -> Positions:
        """n_i, shape (m,)."""
        ...

    @property
    def store(self) -> ClientStateStore | None:
        """States of the clients, if they live in this process and keep any."""
        ...

    def pooled(self, groups: Positions) -> object | None:
        """Return the pooled data of each group (m,) as a group of clients; None where data cannot be put in one place.

        Only for yardsticks that no federation could have.
        """
        ...

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Ask these clients (by position). Not all need answer: `reply.clients` says who did."""
        ...

    def release(self, accepted: Tensor) -> None:
        """The server will never go back behind these rounds of the clients' (m,): what they kept before is not needed.

        Clients in this process keep one version only, which is in the server's checkpoints.
        """
        ...


def positions_of(federation: Federation, clients: tuple[ClientId, ...]) -> Positions:
    """Where these clients stand in the federation, shape (len(clients),)."""
    if clients == federation.clients:  # the common case, and by far the cheaper
        return np.arange(len(clients))
    place = {client: i for i, client in enumerate(federation.clients)}
    return np.fromiter((place[c] for c in clients), dtype=np.int64, count=len(clients))
