"""Cross-validation of one model for each client."""

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


@register("cross-validate-alone")
@dataclass(frozen=True)
class CrossValidateAlone(Task):
    """Row `losses` (): every fold of a client's samples is predicted by a model of its other folds.

    That model is the posterior mode for a normal prior around the pooled model with the broadcast `precision` (r,).
    """

    seed: int
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        losses = torch.zeros(len(shard), dtype=torch.float64)
        for nearby, fold in nearby_models(shard, broadcast, self.seed):
            places, valid = torch.from_numpy(nearby.samples.block.positions), nearby.samples.valid
            own = None
            for left_out in range(FOLDS):
                kept = valid * (fold != left_out)
                own = nearby.posterior_modes(broadcast.common["precision"], kept, own)
                losses[places] += (nearby.losses(own) * (valid - kept)).sum(dim=1)
        return Reply(clients=shard.ids, rows={"losses": losses})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={"losses": Spec((), low=0)})
