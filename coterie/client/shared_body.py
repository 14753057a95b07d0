"""Cluster heads with a shared body (HCFL+): evaluation and training of heads and body."""

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
from coterie.learners.minimum import GeneralisedLinear


@dataclass(frozen=True)
class SharedBody:
    """The heads and the body that a block's clients received, evaluated on their samples; for a single restart."""

    learner: WithFeatures
    """Model family of the run."""
    body: Params
    """Parameters of the body, repeated for each client, {name: (B, ...)}."""
    z: Tensor
    """Features computed with the body, (B, n, d)."""
    heads: Heads
    """Heads of all clusters."""
    losses: Tensor
    """Loss of each head for each sample, (B, n, 1, K)."""


def evaluate_heads(work: ClientRound, places: Positions, block: Block) -> SharedBody:
    """Compute the features of all samples and the losses of all heads.

    All clients received the same models, so each layer is evaluated for the samples of all clients at once.
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
    """Return the features of each client's samples, computed with the body of its cluster.

    Args:
        work: The round of the group of clients.
        block: Samples of the clients.
        slots: Cluster of each client, (B,).

    Returns:
        Features, (B, n, d), or None if the distance does not need them.
    """
    distance = work.settings.distance
    if distance is None or distance.needs != "features":
        return None
    return compared_features(work.learner, take_rows(work.broadcast.clusters.params, slots), block.x)


def compared_features(learner: Learner, theta: Params, x: Tensor) -> Tensor:
    """Return the features by which clients are compared, (B, n, d): the inputs of the last layer of their models.

    A linear model has no other layer, so these are the samples themselves.

    Args:
        learner: Model family.
        theta: Model of each client, {name: (B, ...)}.
        x: Samples of each client, (B, n, ...).
    """
    return x.flatten(2) if isinstance(learner, GeneralisedLinear) else with_features(learner).features(theta, x)


def with_features(learner: Learner) -> WithFeatures:
    """Return the learner with the type of a learner with a head.

    Raises:
        ConfigError: if the last layer of its models is not fully connected.
    """
    if not _ends_in_head(learner):
        raise ConfigError(
            f"a shared body needs a learner whose last layer is fully connected, but the learner is {learner.spec}: "
            "use mlp, cnn or a module that ends in nn.Linear"
        )
    return learner


def _ends_in_head(learner: Learner) -> TypeGuard[WithFeatures]:
    return has_features(learner)


def head_of(learner: WithFeatures, params: Params) -> Heads:
    """Return heads given their parameters, {name: (B, K, ...)}; the inverse of `Heads.params`."""
    return Heads(params[f"{learner.head}.weight"], params[f"{learner.head}.bias"])


def train_heads(
    work: ClientRound, shared: SharedBody, heads: Heads, block: Block, gamma: Tensor, towards: Heads | None = None
) -> tuple[Params, Heads]:
    """Train the body and the heads locally.

    Args:
        work: The round of the group of clients.
        shared: Heads and body that the clients received.
        heads: Heads from which training starts.
        block: Training samples of the clients.
        gamma: Weight of each cluster for each sample, (B, n, K).
        towards: Heads towards which the proximal term pulls; the body has no proximal term.

    Returns:
        Change of the body, {name: (B, ...)}, and change of the heads.
    """
    learner, body, steps = shared.learner, shared.body, work.settings.work
    if steps.order == "together":
        return descend_together(learner, body, heads, block, gamma, steps, work.lr, towards)
    planned = plan_batches(for_heads(block, gamma), steps) if steps.full_batch_steps is None else None
    trained = descend_heads(learner, heads, shared.z, block, gamma, steps, work.lr, towards, planned)
    change = descend_body(learner, body, trained, block, gamma, replace(steps, prox=0.0), work.lr, planned)
    return change, Heads(trained.weight - heads.weight, trained.bias - heads.bias)
