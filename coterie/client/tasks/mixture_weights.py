"""Cluster weights that clients keep."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from coterie.client.group import ClientGroup
from coterie.client.interfaces import Objective
from coterie.client.kept import kept_weights
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("weights")
@dataclass(frozen=True)
class MixtureWeights(Task):
    """Weights of the objective's components that each client keeps.

    Row: `weights` (m, R, P).
    """

    objective: Objective
    """Objective of the method."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, shape = clients.train, self._shape(broadcast)
        kept = kept_weights(clients.states, np.arange(len(shard)), broadcast, shape)
        return Reply(clients=shard.ids, rows={"weights": kept})

    def _shape(self, broadcast: Broadcast) -> tuple[int, int]:
        clusters = broadcast.clusters
        return clusters.restarts, self.objective.client_components(clusters.K)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={"weights": Spec(self._shape(broadcast), low=0, high=1, total="one", axes=1)})
