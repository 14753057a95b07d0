"""Losses of assigned models on one half of a client's samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.client.resample import halves
from coterie.core.blocks import cut
from coterie.core.clusters import row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("half-losses")
@dataclass(frozen=True)
class HalfLosses(Task):
    """Row `losses` (L,): the mean loss of each of L assigned models on one half of the client's samples.

    The halves are those of `HalfUpdate` in the same round.
    """

    seed: int
    on_trained: bool = False
    """Whether to use the first half, which trains the models, instead of the second half, which tests them."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        assert broadcast.only is not None, "every client is sent the models that it compares"
        learner, clusters, count = clients.learner, broadcast.clusters, broadcast.only.shape[1]
        trained, held_out = halves(clients.train, self.seed, broadcast.round)
        shard = trained if self.on_trained else held_out
        losses = torch.zeros(len(shard), count, dtype=torch.float64)
        for block in cut(shard, shard.hashes, count * row_bytes(clusters.params)):  # nothing is drawn
            places = torch.from_numpy(block.positions)
            theta = clusters.at(broadcast.only[places])
            for column in range(count):
                one = {name: p[:, column] for name, p in theta.items()}
                losses[places, column] = block.mean(learner.losses(one, block.x, block.y)).double().cpu()
        return Reply(clients=shard.ids, rows={"losses": losses}).only(losses.isfinite().all(dim=1))

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        assert broadcast.only is not None
        return Expected(rows={"losses": Spec((broadcast.only.shape[1],), low=-1.0)})
