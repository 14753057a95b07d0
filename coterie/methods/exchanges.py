"""Exchanges with all clients before the first round, and their cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.tasks.score import Score
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, Replies, positions_of
from coterie.core.messages import Broadcast, Reply
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.methods.run import BEFORE

NO_CLUSTER = -1
"""Label of a client without a cluster."""


@dataclass
class Cost:
    """Number and size of the exchanges so far."""

    exchanges: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def count(self, replies: Replies) -> Reply:
        """Add one exchange and return the reply."""
        self.exchanges += 1
        self.bytes_up += replies.bytes_up
        self.bytes_down += replies.bytes_down
        return replies.reply


def ask_all(
    federation: Federation, task: Task, broadcast: Broadcast, cost: Cost
) -> tuple[Positions, Params, Positions]:
    """Ask all clients and return the results in the order of their hashes, so that no other order matters.

    Returns:
        Positions of the clients that answered (S,), their rows {name: (S, ...)}, and the positions of the clients whose
        answers were rejected.
    """
    reply = cost.count(federation.ask(task, broadcast, np.arange(len(federation.clients))))
    answered = positions_of(federation, reply.clients)
    order = np.argsort(federation.hashes[answered], kind="stable")
    rows = {name: row.cpu()[torch.from_numpy(order)] for name, row in reply.rows.items()}
    return answered[order], rows, positions_of(federation, reply.rejected)


def group_means(rows: Tensor, labels: Tensor, mass: Tensor, K: int) -> Tensor:
    """Return the weighted means of rows by group, (m, P) to (K, P), in float64; empty groups get the overall mean."""
    mass = mass.double()
    total = torch.zeros(K, dtype=torch.float64).index_add_(0, labels, mass)
    sums = torch.zeros(K, rows.shape[1], dtype=torch.float64).index_add_(0, labels, rows.double() * mass[:, None])
    overall = sums.sum(dim=0) / total.sum()
    return torch.where(total[:, None] > 0, sums / total[:, None], overall)


def join_by_loss(federation: Federation, clusters: Clusters, labels: Tensor, places: Positions, cost: Cost) -> Tensor:
    """Return the labels with these clients added to the clusters of lowest training loss, if they answer."""
    reply = cost.count(federation.ask(Score(), Broadcast(BEFORE, clusters), np.sort(places)))
    joined = labels.clone()
    if reply.clients:
        losses = reply.rows["losses"].nan_to_num(nan=torch.inf)
        joined[torch.from_numpy(positions_of(federation, reply.clients))] = losses.argmin(dim=1)
    return joined
