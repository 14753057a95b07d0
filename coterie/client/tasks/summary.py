"""Rows of a distance for each client's samples, before training."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.client.interfaces import Distance
from coterie.core.blocks import cut
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("summary")
@dataclass(frozen=True)
class Summary(Task):
    """Rows of a distance that needs inputs and labels only, {name: (m, ...)}."""

    distance: Distance
    """The distance."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        rows: Params = {}
        for block in cut(shard, shard.hashes, model_bytes=0):  # uses no random numbers, so any keys will do
            places = torch.from_numpy(block.positions)
            for name, found in self.distance.client_summary(None, block, clients.learner.classes).items():
                rows.setdefault(name, found.new_zeros(len(shard), *found.shape[1:]))[places] = found
        return Reply(clients=shard.ids, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows=self.distance.server_expects(run))
