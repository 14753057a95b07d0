"""Sums of features and targets: the first exchange of a diagnosis."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch

from coterie.client.aspects import on_cpu
from coterie.client.group import ClientGroup
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import spans
from coterie.core.task import Task


@register("feature-means")
@dataclass(frozen=True)
class FeatureMeans(Task):
    """Sums of features and targets.

    Sums: `x` (d,); for classification the class counts `classes` (C,), for regression `y` and `y_square`.
    """

    classes: int | None
    """Number of classes; None for regression."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = on_cpu(clients.train)
        rows = torch.from_numpy(spans(shard.starts, shard.sizes))
        x, y = shard.x[rows].flatten(1), shard.y[rows]
        sums = {"x": x.sum(dim=0)}
        if self.classes is None:
            sums |= {"y": y.double().sum(), "y_square": (y.double() ** 2).sum()}
        else:
            sums["classes"] = torch.bincount(y, minlength=self.classes).double()
        return Reply(clients=shard.ids, sums=sums)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        d = math.prod(run.features)
        sums = {"x": Spec((d,))}
        if self.classes is None:
            return Expected(sums=sums | {"y": Spec(()), "y_square": Spec((), low=0)})
        return Expected(sums=sums | {"classes": Spec((self.classes,), low=0, whole=True, total="samples")})
