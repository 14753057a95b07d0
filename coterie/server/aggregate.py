"""From the clients' sums to the next models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.messages import Reply, Slotted
from coterie.core.regroup import Changes
from coterie.core.shard import Positions
from coterie.privacy.noise import SECRET, Noise
from coterie.privacy.server import with_noise
from coterie.server.robust import robust_sums
from coterie.server.solved_heads import solve_heads
from coterie.tiers.method import Averaging, Method


def aggregate(
    method: Method,
    clusters: Clusters,
    reply: Reply,
    sizes: np.ndarray,
    answered: Positions,
    rate: float,
    round_: int = 0,
    noise: Noise = SECRET,
) -> Clusters:
    """theta_k + server_lr * (sum of the members' weighted changes, or a robust one) / denominator.

    A cluster that nobody contributed to keeps its parameters. sizes (m,) are those of all clients, `answered` where
    the reply's stand. `rate` is the round's step size, which the server applies itself when clients sent gradients.
    `noise` of the round hides single clients where the method wants the server to do so.
    """
    step = method.server_lr * (rate if method.exchange == "gradient" else 1.0)
    if method.weights.way == "personal":
        return _from_models(clusters, reply, _counted(method, sizes, answered), step)
    if "pooled" in reply.slotted:
        return solve_heads(clusters, reply.slotted["pooled"], method.server_lr * rate)
    if "change" in reply.rows:
        changes = changes_of(method, clusters, reply, sizes, answered)
        robust = method.combines_robustly
        sums = robust_sums(method.averaging.combine, clusters, changes) if robust else _added_up(clusters, changes)
    else:
        sums = reply.slotted["clusters"]
    mass = torch.zeros(clusters.restarts * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_restart = mass.reshape(clusters.restarts, clusters.K).sum(dim=1)
    everybody = _everybody(method.averaging, by_restart, sizes)
    if method.privacy is not None and not method.privacy.local:
        sums = with_noise(sums, clusters, method.privacy, noise, round_, method.tells_choice)
        mass = sums.arrays["mass"]
    denominator = everybody.repeat_interleave(clusters.K) if method.averaging.over == "all" else mass
    params = _moved(clusters.params, sums, denominator, step)
    if clusters.overall:
        overall = _moved(clusters.overall, reply.slotted["overall"], by_restart, step)
        return replace(clusters, params=params, overall=overall)
    if not clusters.shared:
        return replace(clusters, params=params)
    # the shared body is averaged over all who answered, whatever their cluster
    return replace(clusters, params=params, body=_moved(clusters.shared, reply.slotted["body"], by_restart, step))


def changes_of(method: Method, clusters: Clusters, reply: Reply, sizes: np.ndarray, answered: Positions) -> Changes:
    """What clients changed, from rows: of the one model they trained, or of all. Who has a model of its own has made
    that of every cluster's. One restart, unless each client has one cluster."""
    own = method.weights.way == "personal"
    vectors = _from_each(clusters, reply.rows["model"]) if own else reply.rows["change"]  # (a, T, P)
    shape = tuple(vectors.shape[:2])
    mass = _counted(method, sizes, answered)[:, None].expand(shape)
    if method.weights.way in ("choose", "move"):
        slots = reply.rows["cluster"].cpu() + torch.arange(clusters.restarts) * clusters.K
        return Changes(clusters, reply.clients, slots, vectors, mass, mass)
    share = mass * reply.rows["weights"][:, 0]
    slots = torch.arange(clusters.K).expand(shape)
    return Changes(clusters, reply.clients, slots, vectors, share if _by_share(method) else mass, share)


def _counted(method: Method, sizes: np.ndarray, answered: Positions) -> Tensor:
    """(a,) what each of those who answered counts: once or n_i times."""
    each = sizes[answered] if method.averaging.client_weight == "samples" else np.ones(len(answered))
    return torch.from_numpy(each).double()


def _from_each(clusters: Clusters, models: Tensor) -> Tensor:
    """How far the clients' own models (a, 1, P) are from every cluster's, (a, K, P)."""
    return models - flat(clusters.params).to(models)


def _by_share(method: Method) -> bool:
    return method.averaging.over == "responsibility"


def _added_up(clusters: Clusters, changes: Changes) -> Slotted:
    """The rows as the sums that clients would have sent."""
    count = clusters.restarts * clusters.K
    slots, vectors = changes.slots.flatten(), changes.vectors.flatten(0, 1)
    weighted = vectors * changes.mass.flatten().to(vectors)[:, None]
    total = torch.zeros(count, vectors.shape[1], dtype=vectors.dtype).index_add_(0, slots, weighted)
    held = torch.zeros(count, dtype=torch.float64).index_add_(0, slots, changes.held.flatten())
    arrays = {f"change/{name}": value for name, value in unflat(total, clusters.params).items()}
    return Slotted(torch.arange(count), arrays | {"mass": held}, torch.bincount(slots, minlength=count))


def _from_models(clusters: Clusters, reply: Reply, mass: Tensor, step: float) -> Clusters:
    """theta_k + step * (mean of the clients' own models, by what cluster k counts for them - theta_k).

    mass (answered,): what each client counts.
    """
    models, shares = reply.rows["model"], reply.rows["weights"]  # (answered, R, P), (answered, R, K)
    sound = models.isfinite().all(dim=2)
    weight = torch.where(sound[..., None], shares * mass[:, None, None], 0)
    total = weight.sum(dim=0).flatten()  # (R K,)
    sums = torch.einsum("mrk,mrp->rkp", weight.to(models), torch.where(sound[..., None], models, 0)).flatten(0, 1)
    before = flat(clusters.params)
    mean = sums / total.to(sums).clamp_min(torch.finfo(sums.dtype).tiny)[:, None]
    after = before + step * torch.where((total > 0)[:, None], mean.to(before) - before, 0)
    moved = replace(clusters, params=unflat(after, clusters.params))
    if not clusters.shared:
        return moved
    return replace(moved, body=_moved(clusters.shared, reply.slotted["body"], mass.sum()[None], step))


def _everybody(averaging: Averaging, by_restart: Tensor, sizes: np.ndarray) -> Tensor:
    """The mass of all clients, for each restart."""
    if averaging.divide_by == "answered":
        return by_restart
    total = float(sizes.sum()) if averaging.client_weight == "samples" else float(len(sizes))
    return torch.full_like(by_restart, total)


def _moved(params: Params, sums: Slotted, denominator: Tensor, step: float) -> Params:
    held = denominator[sums.slots]
    scale = torch.where(held > 0, step / held.clamp_min(torch.finfo(held.dtype).tiny), 0.0)
    moved = {}
    for name, p in params.items():
        change = sums.arrays[f"change/{name}"]
        shaped = scale.clamp_max(torch.finfo(change.dtype).max).to(change).reshape(-1, *(1,) * (change.dim() - 1))
        moved[name] = p.index_add(0, sums.slots.to(p.device), change * shaped)
    return moved
