"""A local round in which each client's samples are read once, for learners with compiled kernels."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.kept import KEPT_WEIGHTS, LEAST, kept_weights
from coterie.client.reply import Assignment, ReplyBuilder, TrainingPass
from coterie.client.round import ClientAlgorithm, ClientRound, RoundSettings
from coterie.core.clusters import Clusters, take_rows
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.core.shard import Shard
from coterie.learners.contribution import Contribution
from coterie.learners.one_pass import MixtureWork, RoundResult, RoundWork, has_one_pass, has_one_pass_mixture

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
    known = assignment.takes_best or (assignment.mixes_all and has_one_pass_mixture(learner))
    usual = settings.resample is None and settings.objective.plain and known
    whole = not clusters.shared and not clusters.overall
    return sums_only and usual and whole and learner.one_pass_pays(settings.work, clusters.params)


def reply_in_one_pass(
    settings: RoundSettings, assignment: ClientAlgorithm, clients: ClientGroup, broadcast: Broadcast
) -> Reply | None:
    """Return the reply of the clients, or None if a number is not finite, so that clients have to be left out.

    Args:
        settings: Settings of a round for which `runs_in_one_pass` is true.
        assignment: Tier 2 of the method.
        clients: The clients.
        broadcast: Message of the server.
    """
    return (_mixed if assignment.mixes_all else _assigned)(settings, clients, broadcast)


def _assigned(settings: RoundSettings, clients: ClientGroup, broadcast: Broadcast) -> Reply | None:
    """Return the reply of clients that train one model in each restart."""
    learner, clusters, shard = clients.learner, broadcast.clusters, clients.train
    assert has_one_pass(learner), "checked by the caller"
    sizes, mass = torch.from_numpy(shard.sizes), _mass(settings, shard)
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
    slots = torch.arange(len(clusters.params["weight"])) if clusters.slots is None else clusters.slots
    return Reply(
        clients=shard.ids,
        sums={"loss": sizes.double() @ result.loss, "samples": sizes.sum().double()},
        slotted={"clusters": _slotted(result, mass, slots)},
        rows={"cluster": (result.rows if clusters.slots is None else slots[result.rows]) % clusters.K},
        paths=(PATH,),
    )


def _mixed(settings: RoundSettings, clients: ClientGroup, broadcast: Broadcast) -> Reply | None:
    """Return the reply of clients that train all models, weighted by their responsibilities, and keep new weights."""
    learner, clusters, shard = clients.learner, broadcast.clusters, clients.train
    assert has_one_pass_mixture(learner), "checked by the caller"
    everyone, shape = np.arange(len(shard)), (clusters.restarts, clusters.K)
    builder = ReplyBuilder(clusters, len(shard), settings.objective.summed)
    work = ClientRound(learner, settings, broadcast, shard, clients.states, builder, clients.noise)
    before = kept_weights(work.kept, everyone, broadcast, shape)
    result = learner.one_pass_mixture(
        MixtureWork(
            clusters.params,
            clusters.K,
            None,
            shard,
            settings.work,
            work.lr,
            _mass(settings, shard),
            clients.workers,
            prior=before.clamp_min(LEAST).log().flatten(1),
            usual=broadcast.common["loss"],
            by_share=settings.by_share,
        )
    )
    if not result.finite:
        return None
    slots = torch.arange(clusters.restarts * clusters.K)
    assignment = Assignment(slots, clusters.params, result.rows, result.loss, likelihood=result.likelihood)
    full = _mass(settings, shard)[:, None].expand(result.shares.shape)
    held = full * result.shares
    weight = held if settings.by_share else full
    every = TrainingPass(slots // clusters.K, slots.repeat(len(shard), 1), weight, held, soft=True)
    builder.start(everyone, torch.from_numpy(shard.sizes), assignment)
    builder.add(everyone, assignment, every, Contribution(result.sums, weight >= 0, PATH))
    work.keep(everyone, {KEPT_WEIGHTS: result.shares.reshape(-1, *shape)})
    return builder.reply(shard)


def _mass(settings: RoundSettings, shard: Shard) -> Tensor:
    """Return the weight of each client in a mean, (m,), float64."""
    sizes = torch.from_numpy(shard.sizes).double()
    return sizes if settings.client_weight == "samples" else torch.ones_like(sizes)


def _slotted(result: RoundResult, mass: Tensor, slots: Tensor) -> Slotted:
    """Return the sums with their mass, for the slots of models that clients trained."""
    trained = result.rows.flatten()
    counts = torch.bincount(trained, minlength=len(slots))
    each = mass if result.rows.shape[1] == 1 else mass.repeat_interleave(result.rows.shape[1])
    masses = torch.bincount(trained, weights=each, minlength=len(slots))
    sums = {**{f"change/{name}": value for name, value in result.sums.items()}, "mass": masses}
    used = torch.nonzero(counts).flatten()
    return Slotted(slots[used], sums if len(used) == len(slots) else take_rows(sums, used), counts[used])


def _fixed(clusters: Clusters, only: Tensor | None) -> Tensor | None:
    """Return the rows of the models that the server assigned to clients, (m, R), -1 where a client chooses."""
    if only is None:
        return None
    return only if clusters.slots is None else torch.where(only == ALL, ALL, torch.searchsorted(clusters.slots, only))
