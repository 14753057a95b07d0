"""Clients that train a model of their own, pulled to their mixture of the clusters' models (FedSoft)."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

from coterie.client.headed import head_of, received, train_heads
from coterie.client.kept import KEPT_MODEL, KEPT_WEIGHTS, as_vectors, kept_models, kept_weights, mixed_models
from coterie.client.reply import Assignment
from coterie.client.work import Work
from coterie.core.blocks import Block
from coterie.core.client_state import NEVER
from coterie.core.clusters import Params
from coterie.core.shard import Positions
from coterie.learners.contribution import finite_models
from coterie.learners.heads import head_losses
from coterie.tiers.assignment import Sharing, best


def train_own(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """Local steps on the own model, held near the mixture by the client's shares; both are sent and kept."""
    clusters = work.broadcast.clusters
    shares = _shares(
        work, places, block, lambda: clusters.by_restart(work.learner.score(clusters.params, block).losses)
    )
    centre = mixed_models(clusters, shares)
    own = kept_models(work.kept, places, work.accepted(places), centre)
    loss = _mean_losses(work, own, block)
    change = work.learner.descend(own, block, work.settings.work, work.lr, towards=centre)
    trained = {name: p + change[name] for name, p in own.items()}
    _send(work, places, block, shares, loss, trained, {})
    work.tell(places, block)


def train_own_head(work: Work, places: Positions, judged: Block, block: Block) -> None:
    """The same with a head of the client's own, and the shared body trained along with it; one restart only."""
    clusters, at_hand = work.broadcast.clusters, received(work, places, block)
    shares = _shares(work, places, block, lambda: at_hand.losses)
    centre = mixed_models(clusters, shares)
    own = kept_models(work.kept, places, work.accepted(places), centre)
    head, towards = head_of(at_hand.learner, own), head_of(at_hand.learner, centre)
    losses = head_losses(at_hand.learner, head, at_hand.z, block.y)  # (B, n, 1)
    body, change = train_heads(work, at_hand, head, block, torch.ones_like(losses), towards)
    moved = change.params(at_hand.learner.head)
    trained = {name: p + moved[name] for name, p in own.items()}
    _send(work, places, block, shares, block.mean(losses), trained, body)
    work.tell(places, block, at_hand.z)


def _shares(work: Work, places: Positions, block: Block, losses: Callable[[], Tensor]) -> Tensor:
    """(B, R, K): found anew every few rounds and at a client's first visit, else as it was.

    losses: of the samples under all models received, (B, n, R, K), computed only where they are looked at.
    """
    clusters, weights = work.broadcast.clusters, cast(Sharing, work.settings.weights)
    before = kept_weights(work.kept, places, work.broadcast, (clusters.restarts, clusters.K)).to(block.x)
    new = (work.accepted(places) == NEVER).to(block.x.device)
    anew = work.broadcast.round % weights.every == 0
    if not anew and not bool(new.any()):
        return before
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    found = weights.client_share(losses(), real, before)
    return found if anew else torch.where(new[:, None, None], found, before)


def _mean_losses(work: Work, own: Params, block: Block) -> Tensor:
    """(B, R) of the models {name: (B, R, ...)} that the clients begin with."""
    columns = [
        work.learner.losses({name: p[:, r] for name, p in own.items()}, block.x, block.y)
        for r in range(work.broadcast.clusters.restarts)
    ]
    return block.mean(torch.stack(columns, dim=2))


def _send(
    work: Work, places: Positions, block: Block, shares: Tensor, loss: Tensor, trained: Params, body: Params
) -> None:
    """The own models {name: (B, R, ...)} as rows, which are kept, too; loss (B, R).

    body: the change of what all clusters share, {name: (B, ...)}, if they share something.
    """
    clusters = work.broadcast.clusters
    visit = Assignment(torch.arange(clusters.restarts * clusters.K), {}, work.first + best(shares).cpu(), loss)
    sound = finite_models(trained | {name: p[:, None] for name, p in body.items()}) & loss.isfinite()
    work.tally.meet(places, block, visit)
    work.tally.accept(places, torch.arange(clusters.restarts), sound.cpu())
    work.tally.paths.add(work.settings.work.path("by-client"))
    if body:
        work.tally.add_body(body, torch.where(sound, work.weight(places, block, visit), 0)[:, 0])
    rows = {KEPT_MODEL: as_vectors(trained), KEPT_WEIGHTS: shares.double()}
    work.tally.note(places, rows)
    work.keep(places, rows)
