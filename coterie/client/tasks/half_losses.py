"""Losses of models on both halves of each client's samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.client.resample import HALF, halves
from coterie.core.blocks import cut
from coterie.core.clusters import Params, row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task

HALVES = ("trained", "held_out")
"""Names of the rows."""


@register("half-losses")
@dataclass(frozen=True)
class HalfLosses(Task):
    """Losses of several models on both halves of each client's samples.

    Rows: `trained` and `held_out` (L,), the mean loss of each of the L models that the client received, on the half
    that trained them in `HalfUpdate` in the same round, and on the other one.
    """

    seed: int
    """Seed of the run."""
    draw: int = 0
    """Number of the halving in the round."""
    held_out: float = HALF
    """Share of the samples in the second half, which tests models and trains none."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        assert broadcast.only is not None, "every client receives the models that it compares"
        learner, clusters, count = clients.learner, broadcast.clusters, broadcast.only.shape[1]
        parts = halves(clients.train, self.seed, broadcast.round, self.draw, self.held_out)
        both = dict(zip(HALVES, parts, strict=True))
        rows: Params = {}
        for name, shard in both.items():
            losses = torch.zeros(len(shard), count, dtype=torch.float64)
            for block in cut(shard, shard.hashes, count * row_bytes(clusters.params)):  # uses no random numbers
                places = torch.from_numpy(block.positions)
                theta = clusters.at(broadcast.only[places])
                for column in range(count):
                    one = {key: p[:, column] for key, p in theta.items()}
                    losses[places, column] = block.mean(learner.losses(one, block.x, block.y)).double().cpu()
            rows[name] = losses
        finite = torch.stack([losses.isfinite().all(dim=1) for losses in rows.values()]).all(dim=0)
        return Reply(clients=clients.train.ids, rows=rows).only(finite)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        assert broadcast.only is not None
        return Expected(rows={name: Spec((broadcast.only.shape[1],), low=-1.0) for name in HALVES})
