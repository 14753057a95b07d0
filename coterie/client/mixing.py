"""Clients whose samples belong to all clusters in part (FedEM, FedGMM, FedRC)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.own import KEPT_WEIGHTS, kept_weights
from coterie.client.tally import Visit
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.shard import Positions
from coterie.learners.deviance import deviance
from coterie.tiers.weights import Responding, best


def respond(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Responsibilities of the samples with the models received, then steps on every model, and the new weights kept."""
    clusters, learner, objective = work.broadcast.clusters, work.learner, work.settings.objective
    scored = learner.score(clusters.all_models(), block)
    losses = clusters.by_lane(scored.losses)
    z = objective.client_see(learner, block)
    usual = work.broadcast.common["loss"][:, None]  # of each lane, in the round before
    cost = objective.client_cost(deviance(learner, losses, usual), block, z, work.broadcast.common)
    before = kept_weights(work.kept, places, work.broadcast, (clusters.lanes, cost.shape[3])).to(cost)
    gamma, likelihood = cast(Responding, work.settings.weights).client_respond(cost, before)
    visit = _visit(work, block, losses, scored.memo, gamma, likelihood)
    work.train(places, block, visit, scored.memo)
    real = gamma if block.mask is None else gamma * block.mask[..., None, None]
    work.tally.count(places, objective.client_counts(real, block, z, learner.classes))
    work.keep(places, {KEPT_WEIGHTS: block.mean(gamma).double()})


def _visit(work: Work, block: Block, losses: Tensor, memo: Tensor | None, gamma: Tensor, likelihood: Tensor) -> Visit:
    clusters = work.broadcast.clusters
    shares = work.settings.objective.client_by_cluster(gamma, clusters.K)  # (B, n, R, K)
    own = block.mean(shares)
    return Visit(
        torch.arange(clusters.lanes * clusters.K),
        clusters.all_models(),
        work.first + best(own).cpu(),
        block.mean(torch.where(shares > 0, shares * losses, 0).sum(dim=3)),
        memo,
        share=own.flatten(1),
        gamma=shares.flatten(2),
        likelihood=block.mean(likelihood),
    )
