"""Base class of engines for simulated clients, wherever they compute."""

from __future__ import annotations

from abc import ABC, abstractmethod

from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.client_state import ClientStateStore
from coterie.core.federation import Replies
from coterie.core.keys import Words
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task


class Simulation(ABC):
    """Simulated clients, which may be evaluated at any time and whose noise may depend on the seed."""

    @property
    @abstractmethod
    def clients(self) -> tuple[ClientId, ...]:
        """Ids of all m clients."""

    @property
    @abstractmethod
    def hashes(self) -> Words:
        """64-bit hash of each client's id, (m,)."""

    @property
    @abstractmethod
    def sizes(self) -> Positions:
        """Number of training samples of each client (n_i), (m,)."""

    @property
    @abstractmethod
    def store(self) -> ClientStateStore | None:
        """State that the clients keep from round to round, in this process; None if they keep none."""

    def release(self, accepted: Tensor) -> None:  # noqa: B027 optional to override
        """Do nothing: one version of each state is stored, which is also in the checkpoints."""

    @abstractmethod
    def pooled(self, groups: Positions) -> ClientGroup | None:
        """Return one client for each group, with the pooled data of its members; None if the data is not here.

        Args:
            groups: Group of each client, (m,), numbered from 0.
        """

    @abstractmethod
    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        """Send a task to clients and return their merged reply; see `Federation.ask`."""
