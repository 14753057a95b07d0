"""Derivatives for Newton's method on the pooled logistic models of a diagnosis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import aspect_of, log_loss, sample_blocks
from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.task import Task

MODELS = ("model", "relation")


@register("pooled-newton")
@dataclass(frozen=True)
class PooledNewton(Task):
    """Derivatives of the pooled logistic models.

    Sums: `gradient/NAME` and `hessian/NAME` of the log-likelihood for the `model` and the `relation`, and the `loss` of
    the model.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        sums = {name: torch.zeros(shape, dtype=torch.float64) for name, shape in _shapes(broadcast).items()}
        for samples in sample_blocks(clients.train, broadcast):
            for name in MODELS:
                aspect = aspect_of(name, samples, broadcast)
                sums[f"gradient/{name}"] += aspect.scores.sum(dim=(0, 1))
                sums[f"hessian/{name}"] += aspect.hessian.sum(dim=0)
            sums["loss"] += log_loss(samples, broadcast, samples.ones_and_z @ broadcast.common["model"]).sum()
        return Reply(clients=clients.train.ids, sums=sums)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(sums={name: Spec(shape) for name, shape in _shapes(broadcast).items()})


def _shapes(broadcast: Broadcast) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"loss": ()}
    for name, sent in zip(MODELS, ("model", "slopes"), strict=True):
        p = broadcast.common[sent].numel()
        shapes |= {f"gradient/{name}": (p,), f"hessian/{name}": (p, p)}
    return shapes
