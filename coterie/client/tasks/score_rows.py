"""Each client's score and information in a few directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.client.own_models import nearby_models
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("score-rows")
@dataclass(frozen=True)
class ScoreRows(Task):
    """Rows `score` (r,), `information` (r, r) and `meat` (r, r) of each client along `directions` (p, r), and `rss`.

    They are computed at the pooled model plus `change` (r,), a row as well: 0, or the client's posterior mode for a
    normal prior with the broadcast `precision` (r,). `rss` is twice the loss: the sum of the squared
    residuals of a regression. The rows of a client
    with very few samples reveal much of them.
    """

    modes: bool
    """Whether the derivatives are those at posterior modes."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, r = clients.train, broadcast.common["directions"].shape[1]
        rows = {name: torch.zeros(len(shard), r, r, dtype=torch.float64) for name in ("information", "meat")}
        rows |= {name: torch.zeros(len(shard), r, dtype=torch.float64) for name in ("score", "change")}
        rows["rss"] = torch.zeros(len(shard), dtype=torch.float64)
        for models, _ in nearby_models(shard, broadcast):
            places, valid = torch.from_numpy(models.samples.block.positions), models.samples.valid
            if self.modes:
                rows["change"][places] = models.posterior_modes(broadcast.common["precision"], valid)
            change = rows["change"][places]
            score, rows["information"][places] = models.derivatives(change, valid)
            rows["score"][places] = score.sum(dim=1)
            rows["meat"][places] = score.transpose(1, 2) @ score
            rows["rss"][places] = 2 * models.losses(change).sum(dim=1)
        return Reply(clients=shard.ids, rows=rows)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        r = broadcast.common["directions"].shape[1]
        square, vector = Spec((r, r)), Spec((r,))
        rows = {"information": square, "meat": square, "rss": Spec((), low=0), "score": vector, "change": vector}
        return Expected(rows=rows)
