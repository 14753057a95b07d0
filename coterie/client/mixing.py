"""Clients whose samples belong to all clusters in part (FedEM, FedGMM, FedRC)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from coterie.client.kept import KEPT_SAMPLES, KEPT_WEIGHTS, kept_samples, kept_weights
from coterie.client.reply import Assignment
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.shard import Positions
from coterie.learners.deviance import deviance
from coterie.tiers.assignment import EMMixture, best


@dataclass(frozen=True)
class Mixed:
    """What the samples of a block's clients say."""

    gamma: Tensor
    """(B, n, R, P) responsibilities of the components."""
    by_client: Tensor
    """(B, n, R, P) the same under the client's weights alone; their mean are its new weights."""
    shares: Tensor
    """(B, n, R, K) gamma by cluster."""
    likelihood: Tensor
    """(B, n, R)"""
    seen: Tensor | None
    """What the objective looks at besides the labels."""


def respond(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Responsibilities of the samples with the models received, then steps on every model, and the new weights kept."""
    clusters = work.broadcast.clusters
    scored = work.learner.score(clusters.all_models(), block)
    losses = clusters.by_restart(scored.losses)
    found = responsibilities(work, places, block, losses)
    work.train(places, block, _visit(work, block, losses, scored.memo, found), scored.memo)
    settle(work, places, block, found, None)


def responsibilities(work: Work, places: Positions, block: Block, losses: Tensor) -> Mixed:
    """Of every sample, from the losses (B, n, R, K) of the models received and the weights that clients kept."""
    objective, weights, broadcast = work.settings.objective, cast(EMMixture, work.settings.weights), work.broadcast
    z = objective.client_see(work.learner, block)
    usual = broadcast.common["loss"][:, None]  # of each restart, in the round before
    cost = objective.client_cost(deviance(work.learner, losses, usual), block, z, broadcast.common)
    before = kept_weights(work.kept, places, broadcast, (cost.shape[2], cost.shape[3])).to(cost)
    by_client, likelihood = weights.client_respond(cost, before[:, None])
    gamma = by_client
    if weights.mu:
        samples = kept_samples(work.kept, places, broadcast, before, block.y.shape[1]).to(cost)
        gamma, likelihood = weights.client_respond(cost, samples)
    return Mixed(gamma, by_client, objective.client_by_cluster(gamma, broadcast.clusters.K), likelihood, z)


def settle(work: Work, places: Positions, block: Block, found: Mixed, features: Tensor | None) -> None:
    """What is told to the server besides the training, and what is kept.

    features: (B, n, d) under the shared body, where there is one.
    """
    objective, weights, tally = work.settings.objective, cast(EMMixture, work.settings.weights), work.tally
    real = found.gamma if block.mask is None else found.gamma * block.mask[..., None, None]
    tally.count(places, objective.client_counts(real, block, found.seen, work.learner.classes))
    own = block.mean(found.by_client).double()
    if work.settings.each:
        tally.note(places, {"weights": objective.client_by_cluster(own, work.broadcast.clusters.K)})
    work.tell(places, block, features)
    rows = {KEPT_WEIGHTS: own}
    if weights.mu:  # w_ij = mu gamma_ij + (1 - mu) w_i
        rows[KEPT_SAMPLES] = weights.mu * found.gamma.double() + (1 - weights.mu) * own[:, None].to(found.gamma.device)
    work.keep(places, rows)


def _visit(work: Work, block: Block, losses: Tensor, memo: Tensor | None, found: Mixed) -> Assignment:
    clusters = work.broadcast.clusters
    own = block.mean(found.shares)
    return Assignment(
        torch.arange(clusters.restarts * clusters.K),
        clusters.all_models(),
        work.first + best(own).cpu(),
        block.mean(torch.where(found.shares > 0, found.shares * losses, 0).sum(dim=3)),
        memo,
        share=own.flatten(1),
        gamma=found.shares.flatten(2),
        likelihood=block.mean(found.likelihood),
    )
