"""What happens before the first round: its number, and what it costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from coterie.core.clusters import Params
from coterie.core.federation import Federation, Replies, positions_of
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.core.task import Task

BEFORE = -1
"""The round number of everything that happens before the first round."""


@dataclass
class Cost:
    """What the exchanges cost so far."""

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def count(self, replies: Replies) -> Reply:
        """Add one exchange and hand on what was said."""
        self.exchanges += 1
        self.bytes_up += replies.bytes_up
        self.bytes_down += replies.bytes_down
        return replies.reply


def ask_everybody(
    federation: Federation, task: Task, broadcast: Broadcast, cost: Cost
) -> tuple[Positions, Params, Positions]:
    """Who answered (S,), their rows {name: (S, ...)}, and who answered but was rejected.

    Clients come in the order of their hashes, so that the numbers of clusters found among them depend on nothing else.
    """
    reply = cost.count(federation.ask(task, broadcast, np.arange(len(federation.clients))))
    answered = positions_of(federation, reply.clients)
    order = np.argsort(federation.hashes[answered], kind="stable")
    rows = {name: row.cpu()[torch.from_numpy(order)] for name, row in reply.rows.items()}
    return answered[order], rows, positions_of(federation, reply.rejected)
