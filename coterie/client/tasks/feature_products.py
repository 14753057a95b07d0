"""Second moments of the features of a linear model."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from coterie.client.group import ClientGroup
from coterie.core.blocks import cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task
from coterie.learners.linear import as_linear


@register("feature-products")
@dataclass(frozen=True)
class FeatureProducts(Task):
    """Second moments of the features.

    Sums: `products` (p, p), X^T X over all samples, and `samples`, their number.
    """

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        linear, shard = as_linear(clients.learner), clients.train
        p = linear.coefficients
        products, samples = torch.zeros(p, p, dtype=torch.float64), torch.zeros((), dtype=torch.float64)
        for block in cut(shard, shard.hashes, 0):
            rows = linear.glm(block).phi.flatten(0, 1)
            products += (rows.T @ rows).cpu()
            samples = samples + block.sizes.sum().double().cpu()
        return Reply(clients=shard.ids, sums={"products": products, "samples": samples})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        p = run.model_width
        return Expected({"products": Spec((p, p)), "samples": Spec((), low=0, whole=True, total="samples")})
