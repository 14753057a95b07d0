"""The curvature of each client's least-squares problem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.group import ClientGroup
from coterie.core.blocks import cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.linear import as_linear


@register("curvature")
@dataclass(frozen=True)
class Curvature(Task):
    """Row `curvature`: the largest eigenvalue of X^T X / n_i of each client, (m,).

    It is computed from the smaller of X^T X and X X^T.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        linear, shard = as_linear(clients.learner), clients.train
        largest = torch.zeros(len(shard), dtype=torch.float64)
        for block in cut(shard, shard.hashes, 0):
            phi = linear.glm(block).phi
            wide = phi.shape[1] < phi.shape[2]
            small = phi @ phi.transpose(1, 2) if wide else phi.transpose(1, 2) @ phi
            top = torch.linalg.eigvalsh(small)[:, -1]
            largest[torch.from_numpy(block.positions)] = (top / block.sizes.double()).cpu()
        return Reply(clients=shard.ids, rows={"curvature": largest})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows={"curvature": Spec((), low=-1e-6)})
