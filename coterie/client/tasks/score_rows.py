"""Score and information of each client along a few directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.aspects import Aspect, own_model, sample_blocks
from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("score-rows")
@dataclass(frozen=True)
class ScoreRows(Task):
    """Score and information of the pooled model on each client, along `directions` (p, r).

    Rows: `score` (r,), `information` (r, r), `meat` (r, r), and `rss`, the residual sum of squares. The coefficients of
    client i are those of the pooled model plus `own` (p,). The rows of a client with very few samples reveal much about
    these samples.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, directions = clients.train, broadcast.common["directions"]
        r = directions.shape[1]
        rows = {name: torch.zeros(len(shard), r, r, dtype=torch.float64) for name in ("information", "meat")}
        rows |= {"score": torch.zeros(len(shard), r).double(), "rss": torch.zeros(len(shard)).double()}
        for samples in sample_blocks(shard, broadcast):
            places = torch.from_numpy(samples.block.positions)
            aspect = own_model(samples, broadcast, broadcast.each["own"][places])
            along = aspect.scores @ directions
            rows["score"][places] = along.sum(dim=1)
            rows["meat"][places] = along.transpose(1, 2) @ along
            rows["information"][places] = _information(aspect, directions)
            rows["rss"][places] = aspect.residual.pow(2).sum(dim=(1, 2))
        return Reply(clients=shard.ids, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        square = Spec((broadcast.common["directions"].shape[1],) * 2)
        score = Spec(square.shape[:1])
        return Expected(rows={"information": square, "meat": square, "rss": Spec((), low=0), "score": score})


def _information(aspect: Aspect, directions: Tensor) -> Tensor:
    """Return directions^T H_i directions for each client, (B, r, r)."""
    if aspect.spread is not None:
        return directions.T @ aspect.hessian @ directions
    along = aspect.design @ directions  # regression has one residual, so k c = k
    return along.transpose(1, 2) @ along
