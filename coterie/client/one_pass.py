"""A local round in which each client's samples are read once, for learners with compiled kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.round import ClientAlgorithm, RoundSettings
from coterie.core.clusters import Clusters, take_rows
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.learners.one_pass import RoundResult, RoundWork, has_one_pass

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
    slots = torch.arange(len(clusters.params["weight"])) if clusters.slots is None else clusters.slots
    return Reply(
        clients=shard.ids,
        sums={"loss": sizes.double() @ result.loss, "samples": sizes.sum().double()},
        slotted={"clusters": _slotted(result, mass, slots)},
        rows={"cluster": (result.rows if clusters.slots is None else slots[result.rows]) % clusters.K},
        paths=(PATH,),
    )


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
