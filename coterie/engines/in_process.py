"""Base class of engines for simulated clients in this process."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coterie.client.group import ClientGroup
from coterie.core.client_state import ClientStateStore
from coterie.core.keys import Words
from coterie.core.shard import ClientId, Positions
from coterie.engines.missing import Missing
from coterie.engines.simulation import Simulation


@dataclass(frozen=True)
class InProcess(Simulation):
    """Simulated clients whose data is in this process."""

    group: ClientGroup
    """All clients with their data."""
    missing: Missing = field(default_factory=dict)
    """Clients without a reply in each round, as recorded in a log of another run."""

    @property
    def clients(self) -> tuple[ClientId, ...]:
        return self.group.train.ids

    @property
    def hashes(self) -> Words:
        return self.group.train.hashes

    @property
    def sizes(self) -> Positions:
        return self.group.train.sizes

    @property
    def store(self) -> ClientStateStore | None:
        return None if self.group.states is None else self.group.states.store

    def pooled(self, groups: Positions) -> ClientGroup:
        return pooled_clients(self.group, groups)


def pooled_clients(clients: ClientGroup, groups: Positions) -> ClientGroup:
    """Return one client for each group, with the pooled data of its members.

    Args:
        clients: All m clients.
        groups: Group of each client, (m,), numbered from 0.
    """
    return replace(clients, train=clients.train.pooled(groups), test=None, validation=None, memory=None, states=None)
