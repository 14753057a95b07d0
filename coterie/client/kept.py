"""Reading of the state that clients keep, as of their last accepted round."""

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
"""Name of the array of cluster weights, or of weights of an objective's components."""
KEPT_SAMPLES = "samples"
"""Name of the array of weights of each sample."""
KEPT_MODEL = "model"
"""Name of the array of personal models as vectors, without the parameters that all clusters share."""
KEPT_CLUSTER = "cluster"
"""Name of the array of the clients' clusters."""
LEAST = 1e-12
"""Smallest weight inside the logarithm, so that a weight that became zero can grow again."""


def kept_weights(
    states: ClientStates | None, positions: Positions, broadcast: Broadcast, shape: tuple[int, int]
) -> Tensor:
    """Return the weights of clients, converted to the present clusters; initially all weights are equal.

    Args:
        states: State of the clients.
        positions: Positions of the clients, (B,).
        broadcast: Message of the server.
        shape: Number of restarts (R) and of components (P).

    Returns:
        Weights, (B, R, P).
    """
    assert states is not None, "clients that keep weights need a store for them"
    equal = torch.full((len(positions), *shape), 1 / shape[1], dtype=torch.float64)
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    if "flow" not in broadcast.each:
        return states.read(KEPT_WEIGHTS, positions, accepted, equal)
    flow = broadcast.each["flow"][at]  # (B, K before, K now)
    before = states.read(KEPT_WEIGHTS, positions, accepted, _zeros_before(equal, flow))
    return torch.where((accepted >= 0)[:, None, None], _converted(before, flow), equal)


def kept_samples(
    states: ClientStates, positions: Positions, broadcast: Broadcast, weights: Tensor, samples: int
) -> Tensor:
    """Return the weights of each sample, converted to the present clusters; initially those of its client.

    Args:
        states: State of the clients.
        positions: Positions of the clients, (B,).
        broadcast: Message of the server.
        weights: Weights of the clients, (B, R, P).
        samples: Number of samples (n).

    Returns:
        Weights, (B, n, R, P).
    """
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    equal = weights.double().cpu()[:, None].expand(-1, samples, -1, -1)
    if "flow" not in broadcast.each:
        return states.read(KEPT_SAMPLES, positions, accepted, equal)
    flow = broadcast.each["flow"][at]
    before = states.read(KEPT_SAMPLES, positions, accepted, _zeros_before(equal, flow))
    return torch.where((accepted >= 0)[:, None, None, None], _converted(before, flow), equal)


def kept_clusters(
    states: ClientStates, positions: Positions, broadcast: Broadcast, losses: Tensor, choose: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return the clusters of clients.

    A client without a cluster chooses among all clusters. If its cluster was split since its last accepted round, it
    chooses among the parts; if its cluster was removed, among all clusters.

    Args:
        states: State of the clients.
        positions: Positions of the clients, (B,).
        broadcast: Message of the server.
        losses: Mean loss of each client under each model, (B, R, K).
        choose: Function that returns the chosen clusters, (B, R), given losses, which are infinite for clusters that
            cannot be chosen.

    Returns:
        Clusters, (B, R).
    """
    at = torch.from_numpy(positions)
    accepted = broadcast.each["accepted"][at]
    if "flow" not in broadcast.each:
        return states.read(KEPT_CLUSTER, positions, accepted, choose(losses))
    before = states.read(KEPT_CLUSTER, positions, accepted, torch.zeros(len(positions), 1, dtype=torch.int64))
    children = broadcast.each["flow"][at, before[:, 0]] > 0  # (B, K)
    without_cluster = (accepted < 0) | ~children.any(dim=1)
    return choose(torch.where((children | without_cluster[:, None])[:, None], losses, torch.inf))


def _zeros_before(default: Tensor, flow: Tensor) -> Tensor:
    """Return zeros (B, ..., K before) with the dtype of `default` (B, ..., K now)."""
    return default.new_zeros(*default.shape[:-1], flow.shape[1])


def _converted(weights: Tensor, flow: Tensor) -> Tensor:
    """Return weights over the present clusters, (B, ..., K now), which sum to one.

    Args:
        weights: Weights over the former clusters, (B, ..., K before).
        flow: Conversion matrix of each client, (B, K before, K now).
    """
    moved = weights.flatten(1, -2) @ flow
    return renormalised(moved).reshape(*weights.shape[:-1], flow.shape[2])


def kept_models(states: ClientStates | None, positions: Positions, accepted: Tensor, first: Params) -> Params:
    """Return the personal models of clients.

    Args:
        states: State of the clients.
        positions: Positions of the clients, (B,).
        accepted: Last accepted round of each client, (B,).
        first: Models of clients without an accepted round, {name: (B, R, ...)}.

    Returns:
        Parameters of the models, {name: (B, R, ...)}.
    """
    assert states is not None, "clients that keep a model need a store for it"
    vectors = states.read(KEPT_MODEL, positions, accepted, as_vectors(first).cpu())
    some = next(iter(first.values()))
    return as_models(vectors.to(some), first)


def as_vectors(models: Params) -> Tensor:
    """Return models {name: (B, R, ...)} as vectors (B, R, P)."""
    shape = next(iter(models.values())).shape[:2]
    return flat({name: p.flatten(0, 1) for name, p in models.items()}).reshape(*shape, -1)


def as_rows(models: Params, weight: Tensor) -> Tensor:
    """Return models in the form in which they are sent: vectors (B, R, P), with NaN where the weight is 0.

    NaN tells the server in which of several restarts a client's model must be ignored.

    Args:
        models: Parameters of the models, {name: (B, R, ...)}.
        weight: Weight of each model, (B, R).
    """
    return as_vectors(models).masked_fill(weight[..., None] == 0, torch.nan)


def as_models(vectors: Tensor, like: Params) -> Params:
    """Return models given as vectors (B, R, P); the inverse of `as_vectors`."""
    named = unflat(vectors.flatten(0, 1), {name: p.flatten(0, 1) for name, p in like.items()})
    return {name: p.reshape(*vectors.shape[:2], *p.shape[1:]) for name, p in named.items()}


def mixed_models(clusters: Clusters, shares: Tensor) -> Params:
    """Return a weighted mean of the clusters' parameters for each client.

    Args:
        clusters: Models of the clusters.
        shares: Weights of the clusters for each client, (B, R, K).

    Returns:
        Parameters without a shared body, {name: (B, R, ...)}.
    """
    by_restart = {name: p.reshape(clusters.restarts, clusters.K, *p.shape[1:]) for name, p in clusters.params.items()}
    return {name: torch.einsum("brk,rk...->br...", shares.to(p), p) for name, p in by_restart.items()}
