"""A plugin as a user writes it: a client task, an assignment rule with a setting, and a method that uses both."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie import register
from coterie.client.group import ClientGroup
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast, Reply
from coterie.core.task import Task
from coterie.methods import IFCA, Initial, Run, Tiers
from coterie.options import option
from coterie.tiers.assignment.lowest_loss import Choosing


@register("target-means")
@dataclass(frozen=True)
class TargetMeans(Task):
    """Row `mean`: the mean target of each client, divided by `scale`."""

    scale: float = 1.0

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        shard = clients.train
        rows = [shard.take(np.array([place])).y.double().mean() / self.scale for place in range(len(shard))]
        return Reply(clients=shard.ids, rows={"mean": torch.stack(rows)})


@register("careful-loss")
@dataclass(frozen=True)
class CarefulLoss(Choosing):
    """A client leaves the first cluster only for a model that is better by more than a margin."""

    margin: float = 0.01

    def client_choose(self, scores: torch.Tensor) -> torch.Tensor:
        better = scores.max(dim=2)
        return torch.where(better.values > scores[..., 0] + self.margin, better.indices, 0)


@register("careful-ifca")
@dataclass(frozen=True, kw_only=True)
class CarefulIFCA(IFCA):
    """IFCA with clients that are slow to leave; it asks for the mean target of each client before the first round."""

    margin: float = option(0.01, "least improvement of the loss for which a client leaves the first cluster", low=0)

    def tiers(self) -> Tiers:
        return self.compose(assignment=CarefulLoss(self.margin))

    def initialize(self, run: Run) -> Initial:
        initial = super().initialize(run)
        all_clients = np.arange(len(run.federation.clients))
        reply = run.federation.ask(TargetMeans(2.0), Broadcast(-1, Clusters({}, K=1)), all_clients).reply
        means = dict(zip(reply.clients, reply.rows["mean"].tolist(), strict=True))
        return replace(initial, found={**initial.found, "means": means})
