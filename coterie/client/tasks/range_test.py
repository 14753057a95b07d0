"""Learning rate range test: training losses after local training with each of several learning rates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params, row_bytes
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.keys import Purpose, keys_for_clients
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.local_training import LocalTraining

MOST_TIMES = 1e6
"""Upper bound of losses, as a multiple of 1 plus the loss before training; it replaces losses that are not finite."""


@register("range-test")
@dataclass(frozen=True)
class RangeTest(Task):
    """Training losses before and after local training with each of G learning rates.

    Sums over clients: `before`, the mean loss of the received model; `after` (G,), the mean loss after local training;
    `worse` (G,), the number of clients whose loss has increased. No state is stored.
    """

    work: LocalTraining
    """Local training."""
    rates: tuple[float, ...]
    """Learning rates."""
    seed: int
    """Seed of the run."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, params = clients.train, broadcast.clusters.params
        keys = keys_for_clients(self.seed, Purpose.RATE, 0, shard.hashes)
        sums: Params = {
            "before": torch.zeros((), dtype=torch.float64),
            "after": torch.zeros(len(self.rates), dtype=torch.float64),
            "worse": torch.zeros(len(self.rates), dtype=torch.float64),
        }
        for block in cut(shard, keys, 2 * row_bytes(params)):
            theta = {name: p[:1].expand(len(block.positions), *p.shape[1:])[:, None] for name, p in params.items()}
            before = self._loss(clients, theta, block)
            sums["before"] += before.sum()
            for g, rate in enumerate(self.rates):
                change = clients.learner.descend(theta, block, self.work, rate)
                loss = self._loss(clients, {name: p + change[name] for name, p in theta.items()}, block)
                most = MOST_TIMES * (1 + before)
                loss = torch.where(loss.isfinite(), loss, most).minimum(most)
                sums["after"][g] += loss.sum()
                sums["worse"][g] += (loss > before).sum()
        return Reply(clients=shard.ids, sums=sums)

    @staticmethod
    def _loss(clients: ClientGroup, theta: Params, block: Block) -> Tensor:
        """Return the mean loss of each client, (B,), under its model, {name: (B, 1, ...)}."""
        own = {name: p[:, 0] for name, p in theta.items()}
        return block.mean(clients.learner.losses(own, block.x, block.y)).double().cpu()

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        each = (len(self.rates),)
        worse = Spec(each, low=0, whole=True, total="mass")
        return Expected(
            sums={"before": Spec((), low=-1.0), "after": Spec(each, low=-1.0), "worse": worse}, uniform=True
        )
