"""A local round in which each client's samples are read once, for learners with compiled kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.reply import Assignment, ReplyBuilder, TrainingPass
from coterie.client.round import ClientAlgorithm, RoundSettings
from coterie.core.clusters import Clusters
from coterie.core.messages import ALL, Broadcast, Reply
from coterie.learners.contribution import Contribution
from coterie.learners.one_pass import RoundWork, has_one_pass

PATH = "one-pass"
"""Name of the computation path, for the record."""


def runs_in_one_pass(
    settings: RoundSettings, assignment: ClientAlgorithm, clients: ClientGroup, broadcast: Broadcast
) -> bool:
    """Return whether the learner can do this round in one pass, and faster than block by block.

    Args:
        settings: Settings of the round.
        assignment: Tier 2 of the method.
        clients: The clients.
        broadcast: Message of the server.
    """
    learner, clusters, x = clients.learner, broadcast.clusters, clients.train.x
    if not clients.compiles or x.device.type != "cpu" or not has_one_pass(learner):
        return False
    sums_only = not settings.send_each and settings.privacy is None and settings.distance is None
    usual = settings.resample is None and settings.objective.plain and assignment.takes_best
    whole = not clusters.shared and not clusters.overall
    return sums_only and usual and whole and learner.one_pass_pays(settings.work, clusters.params)


def reply_in_one_pass(settings: RoundSettings, clients: ClientGroup, broadcast: Broadcast) -> Reply | None:
    """Return the reply of the clients, or None if a number is not finite, so that clients have to be left out.

    Args:
        settings: Settings of a round for which `runs_in_one_pass` is true.
        clients: The clients.
        broadcast: Message of the server.
    """
    learner, clusters, shard = clients.learner, broadcast.clusters, clients.train
    assert has_one_pass(learner), "checked by the caller"
    sizes = torch.from_numpy(shard.sizes)
    mass = sizes.double() if settings.client_weight == "samples" else torch.ones(len(shard), dtype=torch.float64)
    work = RoundWork(
        clusters.params,
        clusters.K,
        _fixed(clusters, broadcast.only),
        shard,
        settings.work,
        broadcast.scalars["lr"],
        mass,
        clients.workers,
        clients.memory,
    )
    result = learner.one_pass(work)
    if not result.finite:
        return None
    slots = torch.arange(clusters.restarts * clusters.K) if clusters.slots is None else clusters.slots
    assignment = Assignment(slots, clusters.params, slots[result.rows], result.loss)
    places, each = np.arange(len(shard)), mass[:, None].expand(result.rows.shape)
    builder = ReplyBuilder(clusters, len(shard), settings.objective.summed)
    builder.start(places, sizes, assignment)
    one = TrainingPass(torch.arange(clusters.restarts), assignment.own, each, each)
    finite = torch.ones(result.rows.shape, dtype=torch.bool)
    builder.add(places, assignment, one, Contribution(result.sums, finite, PATH))
    return builder.reply(shard)


def _fixed(clusters: Clusters, only: Tensor | None) -> Tensor | None:
    """Return the rows of the models that the server assigned to clients, (m, R), -1 where a client chooses."""
    if only is None:
        return None
    return only if clusters.slots is None else torch.where(only == ALL, ALL, torch.searchsorted(clusters.slots, only))
