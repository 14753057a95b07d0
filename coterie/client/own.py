"""What clients keep for themselves, as they kept it in their last accepted round."""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params, flat, unflat
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.core.states import States

KEPT_WEIGHTS = "weights"
"""Shares of the clusters, or of the components that an objective has."""
KEPT_MODEL = "model"
"""A model of one's own, all its arrays as one vector."""


def kept_weights(states: States | None, positions: Positions, broadcast: Broadcast, shape: tuple[int, int]) -> Tensor:
    """The weights (B, R, P) of these clients; equal ones at first. shape: R, the lanes they are kept for, and P."""
    assert states is not None, "clients that keep weights need a place to keep them"
    equal = torch.full((len(positions), *shape), 1 / shape[1], dtype=torch.float64)
    return states.read(KEPT_WEIGHTS, positions, broadcast.each["accepted"][torch.from_numpy(positions)], equal)


def kept_models(states: States | None, positions: Positions, accepted: Tensor, first: Params) -> Params:
    """The models {name: (B, R, ...)} of these clients; `first` of the same shape for those who have none yet."""
    assert states is not None, "clients that keep a model need a place to keep it"
    vectors = states.read(KEPT_MODEL, positions, accepted, as_vectors(first).cpu())
    some = next(iter(first.values()))
    return as_models(vectors.to(some), first)


def as_vectors(models: Params) -> Tensor:
    """{name: (B, R, ...)} as (B, R, P)."""
    shape = next(iter(models.values())).shape[:2]
    return flat({name: p.flatten(0, 1) for name, p in models.items()}).reshape(*shape, -1)


def as_models(vectors: Tensor, like: Params) -> Params:
    """The inverse of `as_vectors`."""
    named = unflat(vectors.flatten(0, 1), {name: p.flatten(0, 1) for name, p in like.items()})
    return {name: p.reshape(*vectors.shape[:2], *p.shape[1:]) for name, p in named.items()}


def mixed_models(clusters: Clusters, shares: Tensor) -> Params:
    """Each client's mean of the models of every lane, {name: (B, R, ...)}, by its shares (B, R, K)."""
    models = clusters.all_models()
    by_lane = {name: p.reshape(clusters.lanes, clusters.K, *p.shape[1:]) for name, p in models.items()}
    return {name: torch.einsum("brk,rk...->br...", shares.to(p), p) for name, p in by_lane.items()}
