"""Training of models that the server has assigned to clients."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.client.reply import Assignment
from coterie.client.round import ClientRound
from coterie.core.blocks import Block
from coterie.core.clusters import Clusters
from coterie.core.shard import Positions
from coterie.learners.base import Learner


def train_assigned(work: ClientRound, places: Positions, block: Block) -> None:
    """Train the model that the server sent to each client, one for each restart.

    Args:
        work: The round of the group of clients.
        places: Positions of the block's clients in the group, (B,).
        block: Training samples of the clients.
    """
    assert work.broadcast.only is not None
    only = work.broadcast.only[torch.from_numpy(places)]
    settings, clusters = work.settings, work.broadcast.clusters
    batched = settings.work.full_batch_steps is None
    # mini-batch training also computes the loss, unless every client's change is needed separately
    stepped = batched and not settings.send_each and not clusters.overall and settings.privacy is None
    scored = not stepped and not settings.adds_noise
    assignment = fixed_assignment(work.learner, clusters, only, block, scored=scored)
    work.train(places, block, assignment, assignment.memo)
    work.summarise(places, block)


def fixed_assignment(learner: Learner, clusters: Clusters, own: Tensor, block: Block, scored: bool) -> Assignment:
    """Return the assignment of clients to given slots.

    Args:
        learner: Model family.
        clusters: Models that the clients received.
        own: Slot of each client's model in each restart, (B, R).
        block: Samples of the clients.
        scored: Whether to compute the losses.
    """
    slots = torch.unique(own)
    models = clusters.at(slots)
    if not scored:
        return Assignment(slots, models, own)
    if len(slots) == own.shape[1]:  # all clients of the block have the same models, one for each restart
        known = learner.score(models, block)
        loss = block.mean(known.losses).gather(1, torch.searchsorted(slots, own).to(block.x.device))
        return Assignment(slots, models, own, loss, known.memo)
    theta = clusters.at(own)
    columns = [learner.losses({n: p[:, r] for n, p in theta.items()}, block.x, block.y) for r in range(own.shape[1])]
    return Assignment(slots, models, own, block.mean(torch.stack(columns, dim=-1)))
