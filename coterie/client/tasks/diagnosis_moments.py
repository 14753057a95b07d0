"""Moments of the design matrices of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import feature_moments, label_design, sample_blocks
from coterie.client.group import ClientGroup
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task


@register("diagnosis-moments")
@dataclass(frozen=True)
class DiagnosisMoments(Task):
    """Sums over samples of products of the design matrices of a diagnosis.

    Sums: `moment` (c,) and `moment_products` (c, c) of the feature moments, `label_products` (k, k) of the label design
    matrix, and `label_moments` (k, c) of both. Additional sums for regression: `target_square` of the centred target,
    `targets` (1 + q,) of its products with 1 and z, and, after subtraction of each client's means, `within_products`
    (q, q) and `within_targets` (q,).
    """

    labels: int
    """Number of classes, or of intervals of the targets."""
    regression: bool
    """Whether the task is a regression."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        count = int(broadcast.scalars["moment_features"])
        sums: Params = {}
        for samples in sample_blocks(clients.train, broadcast):
            h = (feature_moments(samples, count) * samples.valid[..., None]).flatten(0, 1)
            design = label_design(samples, broadcast, self.labels).flatten(0, 1)
            found = {
                "moment": h.sum(dim=0),
                "moment_products": h.T @ h,
                "label_products": design.T @ design,
                "label_moments": design.T @ h,
            }
            if self.regression:
                y = (samples.block.y.double() - broadcast.scalars["y_center"]) * samples.valid
                means = (samples.z.sum(dim=1) / samples.counts[:, None])[:, None]
                within = (samples.z - means) * samples.valid[..., None]
                found["target_square"] = (y**2).sum()
                found["targets"] = torch.einsum("bnk,bn->k", samples.ones_and_z, y)
                found["within_products"] = torch.einsum("bnk,bnl->kl", within, within)
                found["within_targets"] = torch.einsum("bnk,bn->k", within, y)
            sums = {name: sums[name] + value for name, value in found.items()} if sums else found
        return Reply(clients=clients.train.ids, sums=sums)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        q = broadcast.common["basis"].shape[1]
        c, k = 2 * int(broadcast.scalars["moment_features"]), self.labels + 2 * self.regression
        shapes: dict[str, tuple[int, ...]] = {
            "moment": (c,),
            "moment_products": (c, c),
            "label_products": (k, k),
            "label_moments": (k, c),
        }
        if self.regression:
            shapes |= {"target_square": (), "targets": (1 + q,), "within_products": (q, q), "within_targets": (q,)}
        return Expected(sums={name: Spec(shape) for name, shape in shapes.items()})
