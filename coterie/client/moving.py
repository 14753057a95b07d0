"""Clients that train the model of their cluster and then move to the nearest one (FeSEM)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.tally import Turn, Visit
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.clusters import Clusters, Params, take_rows
from coterie.core.shard import Positions
from coterie.learners.contribution import weigh
from coterie.tiers.weights import HardByDistance

KEPT_CLUSTER = "cluster"
"""What clients keep that move by distance."""


def move(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Train the model of the own cluster, join the nearest one, and count as its member there."""
    clusters, weights = work.broadcast.clusters, cast(HardByDistance, work.settings.weights)
    models = clusters.all_models()
    losses = clusters.by_lane(block.mean(work.learner.score(models, block).losses))
    begin = weights.client_begin(losses).cpu()
    before = work.first + work.kept.read(KEPT_CLUSTER, places, work.accepted(places), begin)
    theta = take_rows(models, before)
    change = work.learner.descend(theta, block, work.settings.work, work.lr)
    trained = {name: p + change[name] for name, p in theta.items()}
    after = work.first + weights.client_nearest(squared_distances(trained, models, clusters)).cpu()
    there = take_rows(models, after)
    loss = losses.gather(2, (before - work.first)[..., None].to(losses.device)).squeeze(2)
    visit = Visit(torch.arange(clusters.lanes * clusters.K), models, after, loss)
    weight = work.weight(places, block, visit)
    work.tally.meet(places, block, visit)
    moved = {name: value - there[name] for name, value in trained.items()}
    given = weigh(moved, after.to(weight.device), weight, len(visit.slots), "by-client")
    work.tally.add(places, visit, Turn(torch.arange(clusters.lanes), after, weight, weight), given)
    work.keep(places, {KEPT_CLUSTER: after - work.first})


def squared_distances(trained: Params, models: Params, clusters: Clusters) -> Tensor:
    """|W_i - c_k|^2 over all parameters together, (B, R, K), of models {name: (B, R, ...)} to those of their lane."""
    columns = []
    for k in range(clusters.K):
        centres = {name: p[k :: clusters.K] for name, p in models.items()}  # (R, ...)
        columns.append(
            sum(
                ((trained[name] - centres[name]) ** 2).reshape(*trained[name].shape[:2], -1).sum(dim=2)
                for name in trained
            )
        )
    return torch.stack(cast(list[Tensor], columns), dim=2)
