"""Training losses of the models that clients receive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.scoring import blocks_of, models_held
from coterie.core.blocks import Block
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.base import Learner


@register("score")
@dataclass(frozen=True)
class Score(Task):
    """Training losses of the received models.

    Row: `losses`, the mean training loss under every model, (m, S), or under the single received model, (m, 1).
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        table = torch.zeros(len(shard), models_held(broadcast), dtype=torch.float64)
        for block in blocks_of(shard, broadcast):
            places = torch.from_numpy(block.positions)
            table[places] = _losses(clients.learner, broadcast, block, places).double().cpu()
        return Reply(clients=shard.ids, rows={"losses": table})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={"losses": Spec((models_held(broadcast),), low=-1e-3, missing="shared")})


def _losses(learner: Learner, broadcast: Broadcast, block: Block, places: Tensor) -> Tensor:
    """Return the mean loss of each client under each model, (B, S), or under its single model, (B, 1)."""
    if broadcast.only is None:
        return block.mean(learner.score(broadcast.clusters.all_models(), block).losses)
    theta = broadcast.clusters.at(broadcast.only[places, 0])
    own = block.mean(learner.losses(theta, block.x, block.y))
    return own[:, None]
