"""Clients that train the model of their cluster and then move to the nearest one (FeSEM)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.headed import head_of, received, train_heads
from coterie.client.kept import KEPT_CLUSTER, as_rows, kept_clusters
from coterie.client.reply import Assignment, TrainingPass
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.clusters import Clusters, Params, take_rows
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models, weigh
from coterie.tiers.assignment import NearestParameters


def move(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Train the model of the own cluster, join the nearest one, and count as its member there."""
    clusters = work.broadcast.clusters
    losses = clusters.by_restart(block.mean(work.learner.score(clusters.params, block).losses))
    before = _begins_in(work, places, losses)
    theta = take_rows(clusters.params, before)
    change = work.learner.descend(theta, block, work.settings.work, work.lr)
    trained = {name: p + change[name] for name, p in theta.items()}
    _arrive(work, places, block, _at(losses, before - work.first), trained, {})
    work.tell(places, block)


def move_with_head(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """The same with the head of the own cluster, and the shared body trained along; one restart only."""
    clusters, at_hand = work.broadcast.clusters, received(work, places, block)
    losses = block.mean(at_hand.losses)
    before = _begins_in(work, places, losses)
    theta = take_rows(clusters.params, before)
    one = torch.ones_like(at_hand.losses[..., 0, :1])
    body, change = train_heads(work, at_hand, head_of(at_hand.learner, theta), block, one)
    moved = change.params(at_hand.learner.head)
    trained = {name: p + moved[name] for name, p in theta.items()}
    _arrive(work, places, block, _at(losses, before), trained, body)
    work.tell(places, block, at_hand.z)


def _begins_in(work: Work, places: Positions, losses: Tensor) -> Tensor:
    """The slot (B, R) that each client trains: of the cluster it kept, else by its mean losses (B, R, K)."""
    weights = cast(NearestParameters, work.settings.weights)
    return work.first + kept_clusters(work.kept, places, work.broadcast, losses.cpu(), weights.client_begin)


def _at(losses: Tensor, cluster: Tensor) -> Tensor:
    """Of mean losses (B, R, K) those of a cluster for each client and restart (B, R)."""
    return losses.gather(2, cluster[..., None].to(losses.device)).squeeze(2)


def _arrive(work: Work, places: Positions, block: Block, loss: Tensor, trained: Params, body: Params) -> None:
    """Join the cluster whose parameters are nearest to those `trained` {name: (B, R, ...)}, and count as its member.

    body: the change of what all clusters share, {name: (B, ...)}, if they share something; loss: (B, R).
    """
    clusters, weights = work.broadcast.clusters, cast(NearestParameters, work.settings.weights)
    after = work.first + weights.client_nearest(squared_distances(trained, clusters)).cpu()
    there = take_rows(clusters.params, after)
    moved = {name: value - there[name] for name, value in trained.items()}
    visit = Assignment(torch.arange(clusters.restarts * clusters.K), clusters.params, after, loss)
    weight = work.weight(places, block, visit)
    sound = finite_models(moved | {name: p[:, None] for name, p in body.items()})
    weight = torch.where(sound, weight, 0)
    work.tally.meet(places, block, visit)
    if body:
        work.tally.add_body(body, weight[:, 0])
    restarts, path = torch.arange(clusters.restarts), work.settings.work.path("by-client")
    if work.settings.each:
        work.tally.accept(places, restarts, (weight > 0).cpu())
        work.tally.paths.add(path)
        work.tally.note(places, {"change": as_rows(moved, weight)})
    else:
        given = weigh(moved, after.to(weight.device), weight, len(visit.slots), path)
        work.tally.add(places, visit, TrainingPass(restarts, after, weight, weight), given)
    work.keep(places, {KEPT_CLUSTER: after - work.first})


def squared_distances(trained: Params, clusters: Clusters) -> Tensor:
    """|W_i - c_k|^2 over all parameters of a cluster's own together, (B, R, K), of models {name: (B, R, ...)} to those
    of their restart."""
    columns = []
    for k in range(clusters.K):
        centres = {name: p[k :: clusters.K] for name, p in clusters.params.items()}  # (R, ...)
        columns.append(
            sum(
                ((trained[name] - centres[name]) ** 2).reshape(*trained[name].shape[:2], -1).sum(dim=2)
                for name in trained
            )
        )
    return torch.stack(cast(list[Tensor], columns), dim=2)
