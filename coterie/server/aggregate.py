"""From the clients' sums to the next models."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.messages import Reply, Slotted
from coterie.tiers.method import Averaging, Method


def aggregate(method: Method, clusters: Clusters, reply: Reply, sizes: np.ndarray, rate: float) -> Clusters:
    """theta_k + server_lr * (sum of the members' weighted changes) / denominator.

    A cluster that nobody contributed to keeps its parameters. `rate` is the round's step size, which the server
    applies itself when clients sent gradients.
    """
    step = method.server_lr * (rate if method.exchange == "gradient" else 1.0)
    sums = reply.slotted["clusters"]
    mass = torch.zeros(clusters.lanes * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_lane = mass.reshape(clusters.lanes, clusters.K).sum(dim=1)
    everybody = _everybody(method.averaging, by_lane, sizes)
    denominator = everybody.repeat_interleave(clusters.K) if method.averaging.over == "all" else mass
    params = _moved(clusters.params, sums, denominator, step)
    if not clusters.shared:
        return replace(clusters, params=params)
    # the shared body is averaged over all who answered, whatever their cluster
    return replace(clusters, params=params, body=_moved(clusters.shared, reply.slotted["body"], by_lane, step))


def _everybody(averaging: Averaging, by_lane: Tensor, sizes: np.ndarray) -> Tensor:
    """The mass of all clients, for each lane."""
    if averaging.divide_by == "answered":
        return by_lane
    total = float(sizes.sum()) if averaging.client_weight == "samples" else float(len(sizes))
    return torch.full_like(by_lane, total)


def _moved(params: Params, sums: Slotted, denominator: Tensor, step: float) -> Params:
    held = denominator[sums.slots]
    scale = torch.where(held > 0, step / held.clamp_min(torch.finfo(held.dtype).tiny), 0.0)
    moved = {}
    for name, p in params.items():
        change = sums.arrays[f"change/{name}"]
        shaped = scale.to(change).reshape(-1, *(1,) * (change.dim() - 1))
        moved[name] = p.index_add(0, sums.slots.to(p.device), change * shaped)
    return moved
