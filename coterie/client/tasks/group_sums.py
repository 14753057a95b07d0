"""Sums of features and labels for each cluster, for the profiles of the groups."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.blocks import Block, cut
from coterie.core.expected import Expected, RunFacts, Slots, Spec
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.registry import register
from coterie.core.task import Task


@register("group-sums")
@dataclass(frozen=True)
class GroupSums(Task):
    """Sums over the training samples of the clients of each cluster.

    Slotted sums: `features` (d,), their `squares` (d,), the number of `samples`, and `labels`: the number of samples of
    each class (C,), or for regression the sums of the targets and of their squares, (2,).
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard, own = clients.train, broadcast.each["own"]
        slots, rows, counts = torch.unique(own, return_inverse=True, return_counts=True)
        arrays: dict[str, Tensor] = {}
        for block in cut(shard, shard.hashes, 0):
            places = rows[torch.from_numpy(block.positions)]
            for name, value in _of_clients(block, clients.learner.classes).items():
                total = arrays.setdefault(name, value.new_zeros(len(slots), *value.shape[1:]))
                total.index_add_(0, places.to(value.device), value)
        cpu = {name: value.cpu() for name, value in arrays.items()}
        return Reply(clients=shard.ids, slotted={"clusters": Slotted(slots, cpu, counts)})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        d = math.prod(run.features)
        labels = Spec((2,)) if run.classes is None else Spec((run.classes,), low=0, whole=True)
        arrays = {
            "features": Spec((d,)),
            "squares": Spec((d,), low=0),
            "labels": labels,
            "samples": Spec((), low=0, whole=True, total="samples"),
        }
        return Expected(slotted={"clusters": Slots(broadcast.clusters.K, arrays)})


def _of_clients(block: Block, classes: int | None) -> dict[str, Tensor]:
    """Return the sums of each client of a block, {name: (B, ...)}."""
    real = torch.ones_like(block.y, dtype=torch.float64) if block.mask is None else block.mask.double()
    x = block.x.double().flatten(2)
    if classes is None:
        y = block.y.double()
        labels = torch.stack([y, y**2], dim=-1)
    else:
        labels = torch.nn.functional.one_hot(block.y, classes).double()
    return {
        "features": (x * real[..., None]).sum(dim=1),
        "squares": (x**2 * real[..., None]).sum(dim=1),
        "labels": (labels * real[..., None]).sum(dim=1),
        "samples": real.sum(dim=1),
    }
