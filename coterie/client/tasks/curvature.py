"""Second moments of each client's features, which determine a stable learning rate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.blocks import cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.minimum import GeneralisedLinear


@register("curvature")
@dataclass(frozen=True)
class Curvature(Task):
    """Largest curvature of linear and logistic models on each client.

    Row: `curvature` (m,), the largest eigenvalue of X^T X / n_i. Sums: `squares` (p,) of the squared features, and
    `samples`.
    """

    subsets: bool = False
    """Whether `curvature` is the largest squared norm of a sample instead, an upper bound for every subset of the
    client's samples."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard = clients.learner, clients.train
        assert isinstance(learner, GeneralisedLinear), "the server sends this task for generalised linear models only"
        largest = torch.zeros(len(shard), dtype=torch.float64)
        squares: Tensor | float = 0.0
        for block in cut(shard, shard.hashes, 0):
            phi = learner.glm(block).phi
            squares = squares + (phi**2).sum(dim=(0, 1)).cpu()
            places = torch.from_numpy(block.positions)
            if self.subsets:
                largest[places] = (phi**2).sum(dim=2).amax(dim=1).cpu()
                continue
            wide = phi.shape[1] < phi.shape[2]
            small = phi @ phi.transpose(1, 2) if wide else phi.transpose(1, 2) @ phi
            top = torch.linalg.eigvalsh(small)[:, -1]
            largest[places] = (top / block.sizes.double()).cpu()
        sums = {"squares": torch.as_tensor(squares), "samples": torch.tensor(float(shard.sizes.sum())).double()}
        return Reply(clients=shard.ids, sums=sums, rows={"curvature": largest})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        sums = {"squares": Spec((None,), low=0), "samples": Spec((), low=0, total="samples")}
        return Expected(sums=sums, rows={"curvature": Spec((), low=-1e-6)})
