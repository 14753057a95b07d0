"""Rows of a distance for both halves of each client's samples, before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.client.interfaces import Distance
from coterie.client.resample import halves
from coterie.core.blocks import cut
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task

HALVES = ("first", "second")
"""Names of the halves in rows of replies."""


@register("half-summaries")
@dataclass(frozen=True)
class HalfSummaries(Task):
    """Rows of a distance for two random halves of each client's samples.

    Rows: `NAME_first` and `NAME_second` for each row NAME of the distance, which must need inputs and labels only. A
    client needs at least two samples.
    """

    distance: Distance
    """The distance."""
    seed: int
    """Seed of the run."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        rows: Params = {}
        for which, shard in zip(HALVES, halves(clients.train, self.seed, 0), strict=True):
            for block in cut(shard, shard.hashes, model_bytes=0):  # uses no random numbers, so any keys will do
                places = torch.from_numpy(block.positions)
                for name, found in self.distance.client_summary(None, block, clients.learner.classes).items():
                    whole = rows.setdefault(f"{name}_{which}", found.new_zeros(len(shard), *found.shape[1:]))
                    whole[places] = found
        return Reply(clients=clients.train.ids, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        own = self.distance.server_expects(run)
        return Expected(rows={f"{name}_{which}": spec for name, spec in own.items() for which in HALVES})
