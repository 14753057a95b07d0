"""The exchanges of a diagnosis and their cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, positions_of
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.errors import TrainingError
from coterie.methods.run import BEFORE

Floats = npt.NDArray[np.float64]


@dataclass
class Session:
    """Asks all clients that have answered so far, and counts exchanges and bytes."""

    federation: Federation
    asked: Positions
    """Positions of the clients that answered every exchange so far."""
    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0
    silent: list[str] = field(default_factory=list)
    """Clients that did not answer an exchange."""

    @classmethod
    def of(cls, federation: Federation) -> Session:
        """Return a session with all clients of a federation."""
        return cls(federation, np.arange(len(federation.clients)))

    @property
    def sizes(self) -> Positions:
        """n_i of the clients that answered every exchange so far, (m,)."""
        return self.federation.sizes[self.asked]

    def ask(self, task: Task, common: Params, scalars: Mapping[str, float], each: Params | None = None) -> Reply:
        """Return the reply of the clients; rows are in the order of `asked`.

        Args:
            task: Work of the clients.
            common: Arrays that all clients get.
            scalars: Numbers that all clients get.
            each: Arrays with one row for each of `asked`, of which each client gets its own.

        Raises:
            TrainingError: if no client answers.
        """
        broadcast = Broadcast(BEFORE, Clusters({}, K=1), scalars=scalars, each=each or {}, common=common)
        replies = self.federation.ask(task, broadcast, self.asked)
        self.exchanges += 1
        self.bytes_up += replies.bytes_up
        self.bytes_down += replies.bytes_down
        reply = replies.reply
        if not reply.clients:
            raise TrainingError(f"none of the {len(self.asked)} clients answered the diagnosis: try again later")
        places = positions_of(self.federation, reply.clients)
        missing = np.setdiff1d(self.asked, places)
        self.silent += [self.federation.clients[i] for i in missing]
        order = np.argsort(places, kind="stable")
        self.asked = places[order]
        rows = {name: row[order] for name, row in reply.rows.items()}
        return Reply(self.ids, sums=reply.sums, rows=rows)

    @property
    def ids(self) -> tuple[str, ...]:
        """Ids of the clients that answered every exchange so far."""
        return tuple(self.federation.clients[i] for i in self.asked)
