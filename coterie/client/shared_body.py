"""Cluster heads on a shared body (HCFL+): evaluation and training of the heads and of the body."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeGuard

from torch import Tensor

from coterie.client.round import ClientRound
from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.shard import Positions
from coterie.errors import ConfigError
from coterie.learners.base import Learner, has_features
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


@dataclass(frozen=True)
class SharedBody:
    """The heads and the body that a block's clients received, evaluated on their samples. One restart."""

    learner: WithFeatures
    body: Params
    """Body of every client, {name: (B, ...)}."""
    z: Tensor
    """(B, n, d) features under the body."""
    heads: Heads
    """Heads of all clusters."""
    losses: Tensor
    """(B, n, 1, K) loss of every head on every sample."""


def evaluate_heads(work: ClientRound, places: Positions, block: Block) -> SharedBody:
    """Compute the features once, and the losses of all heads on them.

    All clients hold the same models, so that each layer is one product over the samples of all of them.
    """
    clusters, learner = work.broadcast.clusters, with_features(work.learner)
    z = learner.features(clusters.shared, block.x.flatten(0, 1)[None])
    losses = head_losses(learner, heads_of(learner, clusters.params, 1), z, block.y.flatten()[None])
    body = {name: p.expand(len(places), *p.shape[1:]) for name, p in clusters.shared.items()}
    heads = heads_of(learner, clusters.params, len(places))
    return SharedBody(
        learner, body, z.reshape(*block.y.shape, -1), heads, losses.reshape(*block.y.shape, 1, clusters.K)
    )


def features_under(work: ClientRound, block: Block, slots: Tensor) -> Tensor | None:
    """Return the features (B, n, d) of each client under the body of its cluster, where the distance compares them.

    slots: (B,) the cluster of each client.
    """
    distance = work.settings.distance
    if distance is None or distance.needs != "features":
        return None
    return with_features(work.learner).features(take_rows(work.broadcast.clusters.params, slots), block.x)


def with_features(learner: Learner) -> WithFeatures:
    """Return the learner as one that ends in a head.

    Raises:
        ConfigError: if it does not.
    """
    if not _ends_in_head(learner):
        raise ConfigError(f"a shared body needs a learner that ends in a fully connected layer, not {learner.spec}")
    return learner


def _ends_in_head(learner: Learner) -> TypeGuard[WithFeatures]:
    return has_features(learner)


def head_of(learner: WithFeatures, params: Params) -> Heads:
    """Return heads from their parameters {name: (B, K, ...)}; the inverse of `Heads.params`."""
    return Heads(params[f"{learner.head}.weight"], params[f"{learner.head}.bias"])


def train_heads(
    work: ClientRound, shared: SharedBody, heads: Heads, block: Block, gamma: Tensor, towards: Heads | None = None
) -> tuple[Params, Heads]:
    """Return the change of the body {name: (B, ...)} and of these heads, each sample weighted by gamma (B, n, K).

    The proximal term of the local work pulls heads to `towards`; it does not act on the body.
    """
    learner, body, steps = shared.learner, shared.body, work.settings.work
    if steps.order == "together":
        return descend_together(learner, body, heads, block, gamma, steps, work.lr, towards)
    planned = plan_batches(for_heads(block, gamma), steps) if steps.full_batch_steps is None else None
    trained = descend_heads(learner, heads, shared.z, block, gamma, steps, work.lr, towards, planned)
    change = descend_body(learner, body, trained, block, gamma, replace(steps, prox=0.0), work.lr, planned)
    return change, Heads(trained.weight - heads.weight, trained.bias - heads.bias)
