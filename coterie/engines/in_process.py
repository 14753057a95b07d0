"""The base class of engines whose clients live in this process."""

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
    """Clients whose data this process holds; `missing` is a log of replies that never came, to be replayed."""

    group: ClientGroup
    missing: Missing = field(default_factory=dict)

    @property
    def clients(self) -> tuple[ClientId, ...]:
        """All ids, in order."""
        return self.group.train.ids

    @property
    def hashes(self) -> Words:
        """One word a client, from its id."""
        return self.group.train.hashes

    @property
    def sizes(self) -> Positions:
        """n_i, shape (m,)."""
        return self.group.train.sizes

    @property
    def store(self) -> ClientStateStore | None:
        """State that the clients keep from round to round."""
        return None if self.group.states is None else self.group.states.store

    def release(self, accepted: Tensor) -> None:  # noqa: B027 nobody need override it
        """Nothing to do: one version is kept, and it is in the checkpoints."""

    def pooled(self, groups: Positions) -> ClientGroup:
        """Return the pooled data of each group (m,) as a group of clients."""
        clients = self.group
        return replace(
            clients, train=clients.train.pooled(groups), test=None, validation=None, memory=None, states=None
        )

    @abstractmethod
    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Ask these clients (by position)."""
