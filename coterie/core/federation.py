"""Protocol of a federation: all clients of a run, simulated or remote, which the server contacts by `ask`."""

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
    """An event in the communication with remote clients, for the record of the round."""

    reason: str
    """Description of the event in one sentence, such as why a reply was refused."""
    clients: tuple[ClientId, ...] = ()
    """Ids of the affected clients."""
    node: str = ""
    """Id of the node that hosts the clients; empty if unknown."""

    def plain(self) -> dict[str, object]:
        """Return the event as values that JSON can hold."""
        return {"node": self.node, "clients": list(self.clients), "reason": self.reason}


@dataclass(frozen=True)
class Replies:
    """Result of a request to clients, with its communication cost."""

    reply: Reply
    """Merged reply of all clients that replied."""
    bytes_up: int
    """Number of bytes sent by the clients."""
    bytes_down: int
    """Number of bytes sent to the clients."""
    notes: tuple[Note, ...] = ()
    """Failures of communication; empty for clients in this process."""


class Federation(Protocol):
    """All clients of a run, simulated or remote."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Ids of all m clients."""
        ...

    @property
    def hashes(self) -> Words:
        """64-bit hash of each client's id, (m,)."""
        ...

    @property
    def sizes(self) -> Positions:
        """Number of training samples of each client (n_i), (m,)."""
        ...

    @property
    def store(self) -> ClientStateStore | None:
        """State of the clients if they are in this process and keep any; else None."""
        ...

    def pooled(self, groups: Positions) -> object | None:
        """Return the pooled data of each group as a `ClientGroup` with one client for each group.

        This is for centralised baselines only, which a real federation cannot compute.

        Args:
            groups: Group of each client, (m,).

        Returns:
            The pooled clients, or None if the data is not in this process.
        """
        ...

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Send a task to clients and return their merged reply.

        Args:
            task: Work for the clients.
            broadcast: Models and other arrays for the clients.
            asked: Positions of the clients.

        Returns:
            The merged reply, in which clients may be missing: `reply.clients` contains those that replied.
        """
        ...

    def release(self, accepted: Tensor) -> None:
        """Allow clients to delete the state of rounds before their last accepted one, which is no longer needed.

        Clients in this process store one version only, which is also in the server's checkpoints.

        Args:
            accepted: Last accepted round of each client, (m,).
        """
        ...


def positions_of(federation: Federation, clients: tuple[ClientId, ...]) -> Positions:
    """Return the positions of clients in a federation.

    Args:
        federation: The federation.
        clients: Ids of some of its clients.

    Returns:
        Positions in the order of the ids, (len(clients),).
    """
    everyone = federation.clients
    if clients is everyone or clients == everyone:  # a common case that needs no dictionary
        return np.arange(len(clients))
    place = {client: i for i, client in enumerate(everyone)}
    return np.fromiter((place[c] for c in clients), dtype=np.int64, count=len(clients))
