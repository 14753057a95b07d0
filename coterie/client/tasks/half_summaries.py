"""Summaries of both halves of the clients' samples for a distance, before anything is trained."""

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


@register("half-summaries")
@dataclass(frozen=True)
class HalfSummaries(Task):
    """The rows of a distance that needs inputs and labels, `NAME_first` and `NAME_second`, each of half of the samples.

    A client needs at least two samples.
    """

    distance: Distance
    seed: int

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        rows: Params = {}
        for which, shard in zip(HALVES, halves(clients.train, self.seed, 0), strict=True):
            for block in cut(shard, shard.hashes, model_bytes=0):  # nothing is drawn, so the keys do not matter
                places = torch.from_numpy(block.positions)
                for name, found in self.distance.client_summary(None, block, clients.learner.classes).items():
                    whole = rows.setdefault(f"{name}_{which}", found.new_zeros(len(shard), *found.shape[1:]))
                    whole[places] = found
        return Reply(clients=clients.train.ids, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        own = self.distance.server_expects(run)
        return Expected(rows={f"{name}_{which}": spec for name, spec in own.items() for which in HALVES})
