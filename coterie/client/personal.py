"""Clients that train a model of their own, pulled to their mixture of the clusters' models (FedSoft)."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from coterie.client.own import KEPT_MODEL, KEPT_WEIGHTS, as_vectors, kept_models, mixed_models
from coterie.client.tally import Visit
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.shard import Positions
from coterie.core.states import NEVER
from coterie.learners.contribution import finite_models
from coterie.tiers.weights import SoftByCounts, best


def train_own(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Local steps on the own model, held near the mixture by the client's shares; both are sent and kept."""
    clusters = work.broadcast.clusters
    shares = _shares(work, places, block)
    centre = mixed_models(clusters, shares)
    own = kept_models(work.kept, places, work.accepted(places), centre)
    loss = _mean_losses(work, own, block)
    change = work.learner.descend(own, block, work.settings.work, work.lr, towards=centre)
    trained = {name: p + change[name] for name, p in own.items()}
    visit = Visit(torch.arange(clusters.lanes * clusters.K), {}, work.first + best(shares).cpu(), loss)
    work.tally.meet(places, block, visit)
    work.tally.accept(places, torch.arange(clusters.lanes), (finite_models(trained) & loss.isfinite()).cpu())
    work.tally.paths.add("by-client")
    rows = {KEPT_MODEL: as_vectors(trained), KEPT_WEIGHTS: shares.double()}
    work.tally.note(places, rows)
    work.keep(places, rows)


def _shares(work: Work, places: Positions, block: Block) -> Tensor:
    """u (B, R, K): counted anew every few rounds and at a client's first visit, else as it was."""
    clusters, weights = work.broadcast.clusters, cast(SoftByCounts, work.settings.weights)
    accepted = work.accepted(places)
    if work.broadcast.round % weights.every and bool((accepted != NEVER).all()):
        equal = torch.full((len(places), clusters.lanes, clusters.K), 1 / clusters.K, dtype=torch.float64)
        return work.kept.read(KEPT_WEIGHTS, places, accepted, equal).to(block.x)
    losses = clusters.by_lane(work.learner.score(clusters.all_models(), block).losses)
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    counted = weights.client_count(losses, real)
    if work.broadcast.round % weights.every == 0:
        return counted
    return work.kept.read(KEPT_WEIGHTS, places, accepted, counted.double().cpu()).to(counted)


def _mean_losses(work: Work, own: Params, block: Block) -> Tensor:
    """(B, R) of the models {name: (B, R, ...)} that the clients begin with."""
    columns = [
        work.learner.losses({name: p[:, r] for name, p in own.items()}, block.x, block.y)
        for r in range(work.broadcast.clusters.lanes)
    ]
    return block.mean(torch.stack(columns, dim=2))
