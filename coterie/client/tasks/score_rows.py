"""Each client's score and information in a few directions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.client.own_models import FOLDS, nearby_models
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("score-rows")
@dataclass(frozen=True)
class ScoreRows(Task):
    """Rows `score` (folds, r) and `information` (folds, r, r) of each fold of a client's samples.

    They are derivatives of the log likelihood along `directions` (p, r) at the pooled model plus `change` (r,), a row
    as well: 0, or the client's posterior mode for a normal prior with the broadcast `precision` (r,). Further rows are
    `meat` (r, r), the sum of the squares of the samples' scores, and `rss`, twice the loss: the sum of the squared
    residuals of a regression. The rows of a client with very few samples reveal much of them.
    """

    seed: int
    modes: bool
    """Whether the derivatives are those at posterior modes."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        expected = self._shapes(broadcast)
        rows = {name: torch.zeros(len(shard), *shape, dtype=torch.float64) for name, shape in expected.items()}
        for models, fold in nearby_models(shard, broadcast, self.seed):
            places, valid = torch.from_numpy(models.samples.block.positions), models.samples.valid
            if self.modes:
                rows["change"][places] = models.posterior_modes(broadcast.common["precision"], valid)
            change = rows["change"][places]
            for index in range(FOLDS):
                score, information = models.derivatives(change, valid * (fold == index))
                rows["score"][places, index] = score.sum(dim=1)
                rows["information"][places, index] = information
                rows["meat"][places] += score.transpose(1, 2) @ score
            rows["rss"][places] = 2 * models.losses(change).sum(dim=1)
        return Reply(clients=shard.ids, rows=rows)

    @staticmethod
    def _shapes(broadcast: Broadcast) -> dict[str, tuple[int, ...]]:
        r = broadcast.common["directions"].shape[1]
        return {"score": (FOLDS, r), "information": (FOLDS, r, r), "meat": (r, r), "change": (r,), "rss": ()}

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={name: Spec(shape) for name, shape in self._shapes(broadcast).items()})
