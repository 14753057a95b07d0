"""Second moments of centred features, and a histogram of the targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import sample_blocks
from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("feature-spread")
@dataclass(frozen=True)
class FeatureSpread(Task):
    """Second moments of centred features and, for regression, a histogram of the targets.

    Sums: `products` (q, q), z^T z with z = (x - center) basis; `histogram`, the number of targets in each cell between
    the boundaries `grid` (cells - 1,), which the server sends.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        grid = broadcast.common.get("grid")
        q = broadcast.common["basis"].shape[1]
        sums = {"products": torch.zeros(q, q, dtype=torch.float64)}
        if grid is not None:
            sums["histogram"] = torch.zeros(len(grid) + 1, dtype=torch.float64)
        for samples in sample_blocks(clients.train, broadcast):
            flat = samples.z.flatten(0, 1)
            sums["products"] += flat.T @ flat
            if grid is not None:
                cells = torch.bucketize(samples.block.y.double(), grid).flatten()
                sums["histogram"].index_add_(0, cells, samples.valid.flatten())
        return Reply(clients=clients.train.ids, sums=sums)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        q, grid = broadcast.common["basis"].shape[1], broadcast.common.get("grid")
        sums = {"products": Spec((q, q))}
        if grid is not None:
            sums["histogram"] = Spec((len(grid) + 1,), low=0, whole=True, total="samples")
        return Expected(sums=sums)
