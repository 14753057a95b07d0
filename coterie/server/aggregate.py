"""Aggregation of the replies of a round: mean changes of all models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.messages import Reply, Slotted
from coterie.core.regroup import Changes
from coterie.core.shard import Positions
from coterie.server.averaging import Averaging
from coterie.server.robust import robust_sums


@dataclass(frozen=True)
class RoundReplies:
    """The merged replies of a round, with everything that the server needs to average them."""

    clusters: Clusters
    """Models that the clients received."""
    reply: Reply
    """Merged reply of a clients."""
    sizes: np.ndarray
    """Number of training samples of all clients of the federation (n_i), (m,)."""
    answered: Positions
    """Positions of the clients that replied, in the order of the reply, (a,)."""
    averaging: Averaging = field(default_factory=Averaging)
    """Settings of the average."""
    add_noise: Callable[[Slotted], Slotted] | None = None
    """Function that adds the noise of the server to the sums (differential privacy); None: no noise."""

    @property
    def client_mass(self) -> Tensor:
        """Weight of each client that replied, (a,): 1, or its number of samples."""
        by_samples = self.averaging.client_weight == "samples"
        each = self.sizes[self.answered] if by_samples else np.ones(len(self.answered))
        return torch.from_numpy(each).double()


@dataclass(frozen=True)
class Update:
    """Mean changes of all models in a round."""

    params: Params
    """Mean change of each cluster's parameters, {name: (R K, ...)}; zeros if no client contributed."""
    reached: Tensor
    """Whether at least one client contributed to each cluster, (R K,)."""
    body: Params = field(default_factory=dict)
    """Mean change of the shared body, {name: (R, ...)}; empty without one."""
    overall: Params = field(default_factory=dict)
    """Mean change of the overall model, {name: (R, ...)}; empty without one."""


def mean_update(replies: RoundReplies, sums: Slotted) -> Update:
    """Return the mean changes, given sums of weighted changes for each cluster.

    The changes of the shared body and the overall model are averaged over all clients that replied.

    Args:
        replies: Replies of the round.
        sums: Sums of weighted changes and masses for each cluster.
    """
    clusters, reply = replies.clusters, replies.reply
    mass = torch.zeros(clusters.restarts * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_restart = mass.reshape(clusters.restarts, clusters.K).sum(dim=1)
    mass_of_all = _mass_of_all(replies, by_restart)
    if replies.add_noise is not None:
        sums = replies.add_noise(sums)
        mass = sums.arrays["mass"]
    denominator = mass_of_all.repeat_interleave(clusters.K) if replies.averaging.over == "all" else mass
    return Update(
        mean_changes(clusters.params, sums, denominator),
        _reached(sums, denominator),
        body=mean_changes(clusters.shared, reply.slotted["body"], by_restart) if clusters.shared else {},
        overall=mean_changes(clusters.overall, reply.slotted["overall"], by_restart) if clusters.overall else {},
    )


def mean_changes(params: Params, sums: Slotted, denominator: Tensor) -> Params:
    """Return summed changes divided by denominators.

    Args:
        params: Parameters of all S models, {name: (S, ...)}.
        sums: Summed changes, for some of the slots.
        denominator: Denominator of each slot, (S,).

    Returns:
        Mean changes, {name: (S, ...)}; zeros in slots without a sum.
    """
    held = denominator[sums.slots]
    scale = torch.where(held > 0, 1 / held.clamp_min(torch.finfo(held.dtype).tiny), 0.0)
    found = {}
    for name, p in params.items():
        change = sums.arrays[f"change/{name}"]
        shaped = scale.clamp_max(torch.finfo(change.dtype).max).to(change).reshape(-1, *(1,) * (change.dim() - 1))
        mean = change * shaped
        # no second copy if there is a sum in every slot, as when each client has its own cluster
        found[name] = mean if len(mean) == len(p) else torch.zeros_like(p).index_copy(0, sums.slots.to(p.device), mean)
    return found


def _reached(sums: Slotted, denominator: Tensor) -> Tensor:
    """Return whether at least one client contributed to each slot, (S,)."""
    reached = torch.zeros(len(denominator), dtype=torch.bool)
    reached[sums.slots] = (denominator[sums.slots] > 0) & (sums.counts > 0)
    return reached


def _mass_of_all(replies: RoundReplies, by_restart: Tensor) -> Tensor:
    """Return the total mass of all clients for each restart, (R,)."""
    averaging = replies.averaging
    if averaging.divide_by != "federation":
        return by_restart
    total = float(replies.sizes.sum()) if averaging.client_weight == "samples" else float(len(replies.sizes))
    return torch.full_like(by_restart, total)


# ---- changes of single clients, from rows -----------------------------------------------------------------------


def changes_of_members(replies: RoundReplies) -> Changes:
    """Return the changes of clients that are members of one cluster in each restart."""
    clusters, reply = replies.clusters, replies.reply
    vectors = reply.rows["change"]  # (a, R, P)
    mass = replies.client_mass[:, None].expand(tuple(vectors.shape[:2]))
    slots = reply.rows["cluster"].cpu() + torch.arange(clusters.restarts) * clusters.K
    return Changes(clusters, reply.clients, slots, vectors, mass, mass)


def changes_of_all(replies: RoundReplies, vectors: Tensor) -> Changes:
    """Return the changes of clients that train all clusters, weighted by their cluster weights; for a single restart.

    Args:
        replies: Replies of the round.
        vectors: Changes of all models by each client, (a, K, P).
    """
    clusters, reply = replies.clusters, replies.reply
    shape = tuple(vectors.shape[:2])
    mass = replies.client_mass[:, None].expand(shape)
    share = mass * reply.rows["weights"][:, 0]
    slots = torch.arange(clusters.K).expand(shape)
    by_share = replies.averaging.over == "responsibility"
    return Changes(clusters, reply.clients, slots, vectors, share if by_share else mass, share)


def sums_of_changes(replies: RoundReplies, changes: Changes) -> Slotted:
    """Return sums of changes by single clients, or sums that correspond to the robust mean."""
    clusters, combine = replies.clusters, replies.averaging.combine
    if combine.robust:
        return robust_sums(combine, clusters, changes)
    count = clusters.restarts * clusters.K
    slots, vectors = changes.slots.flatten(), changes.vectors.flatten(0, 1)
    weighted = vectors * changes.mass.flatten().to(vectors)[:, None]
    total = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype).index_add_(0, slots, weighted)
    held = torch.zeros(count, dtype=torch.float64).index_add_(0, slots, changes.held.flatten())
    arrays = {f"change/{name}": value for name, value in unflat(total, clusters.params).items()}
    return Slotted(torch.arange(count), arrays | {"mass": held}, torch.bincount(slots, minlength=count))


def update_from_models(replies: RoundReplies) -> Update:
    """Return the changes from the clusters' models to weighted means of the clients' personal models."""
    clusters, reply, mass = replies.clusters, replies.reply, replies.client_mass
    models, shares = reply.rows["model"], reply.rows["weights"]  # (a, R, P), (a, R, K)
    finite = models.isfinite().all(dim=2)
    weight = torch.where(finite[..., None], shares * mass[:, None, None], 0)
    total = weight.sum(dim=0).flatten()  # (R K,)
    sums = torch.einsum("mrk,mrp->rkp", weight.to(models), torch.where(finite[..., None], models, 0)).flatten(0, 1)
    before = flat(clusters.params)
    mean = sums / total.to(sums).clamp_min(torch.finfo(sums.dtype).tiny)[:, None]
    change = torch.where((total > 0)[:, None], mean.to(before) - before, 0)
    body = mean_changes(clusters.shared, reply.slotted["body"], mass.sum()[None]) if clusters.shared else {}
    return Update(unflat(change, clusters.params), total > 0, body)
