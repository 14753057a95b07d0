"""State that clients keep from round to round, as of their last accepted round."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from coterie.core.client_state import ClientStates
from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.messages import Broadcast
from coterie.core.regroup import renormalised
from coterie.core.shard import Positions

KEPT_WEIGHTS = "weights"
"""Weights of the clusters, or of the components that an objective has."""
KEPT_SAMPLES = "samples"
"""Weights of every sample."""
KEPT_MODEL = "model"
"""The client's own model, all its arrays as one vector, without what all clusters share."""
KEPT_CLUSTER = "cluster"
"""The cluster that a client is a member of."""


def kept_weights(
    states: ClientStates | None, positions: Positions, broadcast: Broadcast, shape: tuple[int, int]
) -> Tensor:
    """Return the weights (B, R, P) of these clients; equal ones at first. shape: R, the kept restarts, and P.

    Where clusters have been split, merged or removed since, the weights are carried over.
    """
    assert states is not None, "clients that keep weights need a store for them"
    equal = torch.full((len(positions), *shape), 1 / shape[1], dtype=torch.float64)
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    if "flow" not in broadcast.each:
        return states.read(KEPT_WEIGHTS, positions, accepted, equal)
    flow = broadcast.each["flow"][at]  # (B, K then, K now)
    then = states.read(KEPT_WEIGHTS, positions, accepted, _as_then(equal, flow))
    return torch.where((accepted >= 0)[:, None, None], _flown(then, flow), equal)


def kept_samples(
    states: ClientStates, positions: Positions, broadcast: Broadcast, weights: Tensor, samples: int
) -> Tensor:
    """Return the weights of every sample (B, n, R, P); at first those of its client (B, R, P)."""
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    equal = weights.double().cpu()[:, None].expand(-1, samples, -1, -1)
    if "flow" not in broadcast.each:
        return states.read(KEPT_SAMPLES, positions, accepted, equal)
    flow = broadcast.each["flow"][at]
    then = states.read(KEPT_SAMPLES, positions, accepted, _as_then(equal, flow))
    return torch.where((accepted >= 0)[:, None, None, None], _flown(then, flow), equal)


def kept_clusters(
    states: ClientStates, positions: Positions, broadcast: Broadcast, losses: Tensor, choose: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the clusters (B, R) of these clients; at first what `choose` selects by their mean losses (B, R, K).

    `choose` also selects among the parts of a client's cluster where it was split while the client was away, and among
    all clusters where it was removed.
    """
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    if "flow" not in broadcast.each:
        return states.read(KEPT_CLUSTER, positions, accepted, choose(losses))
    then = states.read(KEPT_CLUSTER, positions, accepted, torch.zeros(len(positions), 1, dtype=torch.int64))
    became = broadcast.each["flow"][at, then[:, 0]] > 0  # (B, K)
    nothing = (accepted < 0) | ~became.any(dim=1)
    return choose(torch.where((became | nothing[:, None])[:, None], losses, torch.inf))


def _as_then(default: Tensor, flow: Tensor) -> Tensor:
    """Return zeros (B, ..., K then) like `default` (B, ..., K now)."""
    return default.new_zeros(*default.shape[:-1], flow.shape[1])


def _flown(weights: Tensor, flow: Tensor) -> Tensor:
    """Return weights (B, ..., K now) from weights (B, ..., K then) by flows (B, K then, K now); they sum to one."""
    moved = weights.flatten(1, -2) @ flow
    return renormalised(moved).reshape(*weights.shape[:-1], flow.shape[2])


def kept_models(states: ClientStates | None, positions: Positions, accepted: Tensor, first: Params) -> Params:
    """Return the models {name: (B, R, ...)} of these clients; `first`, of the same shape, where there is none yet."""
    assert states is not None, "clients that keep a model need a store for it"
    vectors = states.read(KEPT_MODEL, positions, accepted, as_vectors(first).cpu())
    some = next(iter(first.values()))
    return as_models(vectors.to(some), first)


def as_vectors(models: Params) -> Tensor:
    """Return models {name: (B, R, ...)} as vectors (B, R, P)."""
    shape = next(iter(models.values())).shape[:2]
    return flat({name: p.flatten(0, 1) for name, p in models.items()}).reshape(*shape, -1)


def as_rows(models: Params, weight: Tensor) -> Tensor:
    """Return models as they are sent: vectors (B, R, P), with NaN where the weight (B, R) is 0.

    With several restarts the server cannot know otherwise in which of them a client's work does not count.
    """
    return as_vectors(models).masked_fill(weight[..., None] == 0, torch.nan)


def as_models(vectors: Tensor, like: Params) -> Params:
    """Return models from vectors; the inverse of `as_vectors`."""
    named = unflat(vectors.flatten(0, 1), {name: p.flatten(0, 1) for name, p in like.items()})
    return {name: p.reshape(*vectors.shape[:2], *p.shape[1:]) for name, p in named.items()}


def mixed_models(clusters: Clusters, shares: Tensor) -> Params:
    """Return each client's mean of the clusters' own parameters, {name: (B, R, ...)}, weighted by shares (B, R, K)."""
    by_restart = {name: p.reshape(clusters.restarts, clusters.K, *p.shape[1:]) for name, p in clusters.params.items()}
    return {name: torch.einsum("brk,rk...->br...", shares.to(p), p) for name, p in by_restart.items()}
