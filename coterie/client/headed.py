"""Clients whose samples belong to all clusters in part, where clusters are heads on one shared body (HCFL+)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.mixing import Mixed, responsibilities, settle
from coterie.client.own import as_vectors
from coterie.client.tally import Visit
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models
from coterie.learners.descent import schedule
from coterie.learners.heads import (
    Heads,
    WithFeatures,
    descend_body,
    descend_heads,
    descend_together,
    for_heads,
    head_losses,
    heads_of,
)
from coterie.tiers.weights import best


def respond_with_heads(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Features once; responsibilities by all heads; steps on the heads and the body; one lane only."""
    clusters, learner = work.broadcast.clusters, cast(WithFeatures, work.learner)
    z, losses = _before_training(work, learner, block)
    found = responsibilities(work, places, block, losses)
    own = block.mean(found.shares)
    loss = block.mean(torch.where(found.shares > 0, found.shares * losses, 0).sum(dim=3))
    work.tally.meet(
        places,
        block,
        Visit(torch.arange(clusters.K), {}, best(own).cpu(), loss, likelihood=block.mean(found.likelihood)),
    )
    body = take_rows(clusters.shared, torch.zeros(len(places), dtype=torch.int64))
    heads = heads_of(learner, clusters.params, len(places))
    change, new_heads = _trained(work, learner, body, heads, z, block, found)
    _send(work, places, block, loss, own[:, 0], change, new_heads)
    settle(work, places, block, found, z)


def _before_training(work: Work, learner: WithFeatures, block: Block) -> tuple[Tensor, Tensor]:
    """Features (B, n, d) and the losses of all heads (B, n, 1, K): all clients hold the same models, as if they were
    one, so that each layer is one product."""
    clusters = work.broadcast.clusters
    z = learner.features(clusters.shared, block.x.flatten(0, 1)[None])
    losses = head_losses(learner, heads_of(learner, clusters.params, 1), z, block.y.flatten()[None])
    return z.reshape(*block.y.shape, -1), losses.reshape(*block.y.shape, 1, -1)


def _trained(
    work: Work, learner: WithFeatures, body: Params, heads: Heads, z: Tensor, block: Block, found: Mixed
) -> tuple[Params, Heads]:
    """The change of the body {name: (B, ...)} and of the heads."""
    gamma, steps = found.shares[:, :, 0], work.settings.work
    if steps.order == "together":
        return descend_together(learner, body, heads, block, gamma, steps, work.lr)
    planned = schedule(for_heads(block, gamma), steps) if steps.full_batch_steps is None else None
    trained = descend_heads(learner, heads, z, block, gamma, steps, work.lr, planned)
    change = descend_body(learner, body, trained, block, gamma, steps, work.lr, planned)
    return change, Heads(trained.weight - heads.weight, trained.bias - heads.bias)


def _send(work: Work, places: Positions, block: Block, loss: Tensor, own: Tensor, change: Params, heads: Heads) -> None:
    """The body's change into the sums, that of the heads too, or as rows where the server wants each; own (B, K)."""
    named = heads.params(cast(WithFeatures, work.learner).head)
    sound = finite_models({n: p[:, None] for n, p in change.items()}) & loss.isfinite()
    sound = sound & finite_models({n: p.flatten(1)[:, None] for n, p in named.items()})
    work.tally.accept(places, torch.zeros(1, dtype=torch.int64), sound.cpu())
    n = torch.from_numpy(work.shard.sizes[places]).to(block.counts)
    mass = n if work.settings.client_weight == "samples" else torch.ones_like(n)
    mass = torch.where(sound[:, 0], mass, 0)
    work.tally.add_body(change, mass)
    work.tally.paths.add("heads")
    if work.settings.each:
        work.tally.note(places, {"change": as_vectors(named)})
        return
    held = mass[:, None] * own
    work.tally.add_heads(named, held if work.settings.by_share else mass[:, None].expand(held.shape), held)
