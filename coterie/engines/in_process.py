"""Base class of engines for simulated clients in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace

from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.client_state import ClientStateStore
from coterie.core.federation import Replies
from coterie.core.keys import Words
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task
from coterie.engines.missing import Missing


@dataclass(frozen=True)
class InProcess(ABC):
    """Simulated clients whose data is in this process."""

    group: ClientGroup
    """All clients with their data."""
    missing: Missing = field(default_factory=dict)
    """Clients without a reply in each round, as recorded in a log of another run."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """Ids of all m clients."""
        return self.group.train.ids

    @property
    def hashes(self) -> Words:
        """64-bit hash of each client's id, (m,)."""
        return self.group.train.hashes

    @property
    def sizes(self) -> Positions:
        """Number of training samples of each client (n_i), (m,)."""
        return self.group.train.sizes

    @property
    def store(self) -> ClientStateStore | None:
        """State that the clients keep from round to round; None if they keep none."""
        return None if self.group.states is None else self.group.states.store

    def release(self, accepted: Tensor) -> None:  # noqa: B027 optional to override
        """Do nothing: clients in this process store one version only, which is also in the checkpoints."""

    def pooled(self, groups: Positions) -> ClientGroup:
        """Return one client for each group, with the pooled data of its members.

        Args:
            groups: Group of each client, (m,), numbered from 0.
        """
        clients = self.group
        return replace(
            clients, train=clients.train.pooled(groups), test=None, validation=None, memory=None, states=None
        )

    @abstractmethod
    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Send a task to clients and return their merged reply; see `Federation.ask`."""
