"""How old clusters become new ones. Split, merge and remove are one value, and only this code changes K."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.shard import ClientId
from coterie.errors import ConfigError

How = Literal["copy", "average", "larger"]


@dataclass(frozen=True)
class NewCluster:
    """Where one new cluster comes from."""

    parents: tuple[int, ...]
    """Old clusters it descends from; none: newborn, it starts from the mean of all old models."""
    how: How = "copy"
    """`copy` one parent, plain `average` of the parents, or keep the parent with the `larger` size."""
    members: tuple[ClientId, ...] | None = None
    """Its clients, by id, where the procedure names them."""


@dataclass(frozen=True)
class Regroup:
    """For each new cluster its parents, in the order of the new numbering."""

    clusters: tuple[NewCluster, ...]
    reason: str = ""

    def __post_init__(self) -> None:
        if not self.clusters:
            raise ConfigError("a regroup needs at least one new cluster: the last cluster is never removed")
        for new in self.clusters:
            if new.how == "copy" and len(new.parents) > 1:
                raise ConfigError(f"a cluster cannot copy {len(new.parents)} parents: use 'average' or 'larger'")

    @property
    def K(self) -> int:
        return len(self.clusters)

    def apply(self, clusters: Clusters, sizes: Tensor) -> Clusters:
        """The new clusters; `sizes` (K,) tells how many clients each old one has. One lane only."""
        if clusters.lanes != 1:
            raise ConfigError(f"only one lane can be regrouped, got {clusters.lanes}: settle the start first")
        for new in self.clusters:
            if any(not 0 <= parent < clusters.K for parent in new.parents):
                raise ConfigError(f"parents {new.parents} do not all exist: clusters are 0 to {clusters.K - 1}")
        rows = [self._row(clusters.params, sizes, new) for new in self.clusters]
        params = {name: torch.stack([row[name] for row in rows]) for name in clusters.params}
        return replace(clusters, params=params, K=self.K)

    @staticmethod
    def _row(params: Params, sizes: Tensor, new: NewCluster) -> Params:
        parents = list(new.parents) or list(range(len(sizes)))
        if new.how == "larger" and new.parents:
            parents = [max(parents, key=lambda k: (int(sizes[k]), -k))]
        return {name: p[parents].mean(dim=0) for name, p in params.items()}

    def map_weights(self, weights: Tensor) -> Tensor:
        """Soft weights (..., K) of clients, carried over to the new clusters; rows still sum to one.

        A parent's weight is shared equally by its children (halved by a split), added up by a merge, and what
        removed clusters held is renormalised away; a row left with nothing becomes uniform.
        """
        old = weights.shape[-1]
        if any(not 0 <= parent < old for new in self.clusters for parent in new.parents):
            raise ConfigError(f"a parent does not exist: the weights are for clusters 0 to {old - 1}")
        flow = torch.zeros(old, self.K, dtype=weights.dtype)
        for column, new in enumerate(self.clusters):
            flow[list(new.parents), column] = 1.0
        flow = flow / flow.sum(dim=1, keepdim=True).clamp_min(1.0)
        moved = weights @ flow
        total = moved.sum(dim=-1, keepdim=True)
        return torch.where(
            total > 0, moved / total.clamp_min(torch.finfo(moved.dtype).tiny), torch.full_like(moved, 1 / self.K)
        )
