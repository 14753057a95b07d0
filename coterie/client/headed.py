"""Clusters that are heads on one shared body (HCFL+): what clients are sent, and clients whose samples belong to all
clusters in part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from coterie.client.kept import as_vectors
from coterie.client.mixing import responsibilities, settle
from coterie.client.reply import Assignment
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models
from coterie.learners.descent import plan_batches
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
from coterie.tiers.assignment import best


@dataclass(frozen=True)
class Received:
    """What the clients of a block make of the heads and the body that they were sent, before training. One restart."""

    learner: WithFeatures
    body: Params
    """{name: (B, ...)}"""
    z: Tensor
    """(B, n, d) features under it."""
    heads: Heads
    """Of all clusters."""
    losses: Tensor
    """(B, n, 1, K)"""


def received(work: Work, places: Positions, block: Block) -> Received:
    """Features once, and all heads on them: all clients hold the same models, as if they were one, so that each layer
    is one product."""
    clusters, learner = work.broadcast.clusters, cast(WithFeatures, work.learner)
    z = learner.features(clusters.shared, block.x.flatten(0, 1)[None])
    losses = head_losses(learner, heads_of(learner, clusters.params, 1), z, block.y.flatten()[None])
    body = {name: p.expand(len(places), *p.shape[1:]) for name, p in clusters.shared.items()}
    heads = heads_of(learner, clusters.params, len(places))
    return Received(learner, body, z.reshape(*block.y.shape, -1), heads, losses.reshape(*block.y.shape, 1, clusters.K))


def head_of(learner: WithFeatures, params: Params) -> Heads:
    """Heads from their parameters {name: (B, K, ...)}; the inverse of `Heads.params`."""
    return Heads(params[f"{learner.head}.weight"], params[f"{learner.head}.bias"])


def respond_with_heads(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Features once; responsibilities by all heads; steps on the heads and the body; one restart only."""
    clusters, at_hand = work.broadcast.clusters, received(work, places, block)
    losses = at_hand.losses
    found = responsibilities(work, places, block, losses)
    own = block.mean(found.shares)
    loss = block.mean(torch.where(found.shares > 0, found.shares * losses, 0).sum(dim=3))
    work.tally.meet(
        places,
        block,
        Assignment(torch.arange(clusters.K), {}, best(own).cpu(), loss, likelihood=block.mean(found.likelihood)),
    )
    change, new_heads = train_heads(work, at_hand, at_hand.heads, block, found.shares[:, :, 0])
    _send(work, places, block, loss, own[:, 0], change, new_heads)
    settle(work, places, block, found, at_hand.z)


def train_heads(
    work: Work, at_hand: Received, heads: Heads, block: Block, gamma: Tensor, towards: Heads | None = None
) -> tuple[Params, Heads]:
    """The change of the body {name: (B, ...)} and of these heads, each sample counting by gamma (B, n, K).

    The proximal term of the local work pulls heads to `towards`; the body is left to itself.
    """
    learner, body, steps = at_hand.learner, at_hand.body, work.settings.work
    if steps.order == "together":
        return descend_together(learner, body, heads, block, gamma, steps, work.lr, towards)
    planned = plan_batches(for_heads(block, gamma), steps) if steps.full_batch_steps is None else None
    trained = descend_heads(learner, heads, at_hand.z, block, gamma, steps, work.lr, towards, planned)
    change = descend_body(learner, body, trained, block, gamma, replace(steps, prox=0.0), work.lr, planned)
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
    work.tally.paths.add(work.settings.work.path("heads"))
    if work.settings.each:
        work.tally.note(places, {"change": as_vectors(named)})
        return
    held = mass[:, None] * own
    work.tally.add_heads(named, held if work.settings.by_share else mass[:, None].expand(held.shape), held)
