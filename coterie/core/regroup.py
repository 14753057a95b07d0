"""How old clusters become new ones. Split, merge and remove are one value, and only this code changes K."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params, unflat
from coterie.core.shard import ClientId
from coterie.errors import ConfigError

How = Literal["copy", "average", "larger", "members"]


@dataclass(frozen=True)
class Changes:
    """What each of some clients made of the models it trained in a round."""

    before: Clusters
    """The models they were sent."""
    clients: tuple[ClientId, ...]
    slots: Tensor
    """(a, T) which models."""
    vectors: Tensor
    """(a, T, P) by how much each model moved; its own parameters as one vector, none that are shared."""
    mass: Tensor
    """(a, T) what each counts in a mean."""
    held: Tensor
    """(a, T) what part of the client the cluster has, by which clusters of all clients together are measured."""

    def mean(self, slot: int, members: Sequence[ClientId]) -> Params | None:
        """The mean over these clients of what they made of this model, {name: (...)}; None if nobody trained it."""
        inside = set(members)
        rows = torch.tensor([client in inside for client in self.clients])
        chosen = (self.slots == slot) & rows[:, None] & (self.mass > 0)
        if not bool(chosen.any()):
            return None
        mass = self.mass[chosen].to(self.vectors)
        change = (self.vectors[chosen] * mass[:, None]).sum(dim=0) / mass.sum()
        old = {name: p[slot] for name, p in self.before.params.items()}
        moved = unflat(change[None], {name: p[None] for name, p in old.items()})
        return {name: p + moved[name][0].to(p) for name, p in old.items()}

    def after(self, regroup: Regroup) -> Changes:
        """The same in the new numbering: a model that has become several is the first of them."""
        parents = [list(new.parents) or list(range(self.before.K)) for new in regroup.clusters]
        params = {n: torch.stack([p[rows].mean(dim=0) for rows in parents]) for n, p in self.before.params.items()}
        slots = regroup.first_children(self.before.K)[self.slots]
        return replace(self, before=replace(self.before, params=params, K=regroup.K), slots=slots)


@dataclass(frozen=True)
class NewCluster:
    """Where one new cluster comes from."""

    parents: tuple[int, ...]
    """Old clusters it descends from; none: newborn, it starts from the overall model where there is one, else from the
    mean of all old models."""
    how: How = "copy"
    """`copy` one parent, plain `average` of the parents, keep the parent with the `larger` size, or the mean of what
    its `members` made of the parent."""
    members: tuple[ClientId, ...] | None = None
    """Its clients, by id, where the procedure names them."""


@dataclass(frozen=True)
class Regroup:
    """For each new cluster its parents, in the order of the new numbering."""

    clusters: tuple[NewCluster, ...]
    kind: str = "regroup"
    """split, merge, remove: for the record."""
    reason: str = ""
    hard: bool = False
    """Whether a named member belongs to its new cluster alone; else weights follow the parents, and members only say
    whose work makes the new models."""

    def __post_init__(self) -> None:
        if not self.clusters:
            raise ConfigError("a regroup needs at least one new cluster: the last cluster is never removed")
        for new in self.clusters:
            if new.how in ("copy", "members") and len(new.parents) > 1:
                raise ConfigError(f"a cluster cannot copy {len(new.parents)} parents: use 'average' or 'larger'")
            if new.how == "members" and (not new.members or not new.parents):
                raise ConfigError("a cluster that its members make needs members and the parent they trained")

    @property
    def K(self) -> int:
        return len(self.clusters)

    def apply(self, clusters: Clusters, sizes: Tensor, changes: Changes | None = None) -> Clusters:
        """The new clusters; `sizes` (K,) tells how many clients each old one has. One restart only."""
        if clusters.restarts != 1:
            raise ConfigError(f"only one restart can be regrouped, got {clusters.restarts}: settle the start first")
        for new in self.clusters:
            if any(not 0 <= parent < clusters.K for parent in new.parents):
                raise ConfigError(f"parents {new.parents} do not all exist: clusters are 0 to {clusters.K - 1}")
        rows = [self._row(clusters, sizes, new, changes) for new in self.clusters]
        params = {name: torch.stack([row[name] for row in rows]) for name in clusters.params}
        return replace(clusters, params=params, K=self.K)

    @staticmethod
    def _row(clusters: Clusters, sizes: Tensor, new: NewCluster, changes: Changes | None) -> Params:
        if not new.parents and clusters.overall:
            return {name: p[0] for name, p in clusters.overall.items()}
        parents = list(new.parents) or list(range(len(sizes)))
        if new.how == "members" and changes is not None:
            made = changes.mean(parents[0], new.members or ())
            if made is not None:
                return made
        if new.how == "larger" and new.parents:
            parents = [max(parents, key=lambda k: (int(sizes[k]), -k))]
        return {name: p[parents].mean(dim=0) for name, p in clusters.params.items()}

    def place(self, clients: Sequence[ClientId], choice: Tensor) -> Tensor:
        """Return the new cluster of each client, in the shape of `choice`.

        A named member of a hard regroup goes to its new cluster, any other client to the first child of its old one.

        Args:
            clients: Ids of the clients.
            choice: (m, ...) their old clusters; -1: not known.

        Returns:
            Their new clusters; -1 where the old one was removed or not known.
        """
        named = [parent for new in self.clusters for parent in new.parents]
        known = int(choice.max()) if choice.numel() else -1
        placed = self.first_children(1 + max([*named, known]))[choice]
        for at, column in self._named(clients).items():
            placed[at] = column
        return placed

    def first_children(self, old: int) -> Tensor:
        """(K old + 1,) the first new cluster of each old one, -1 where there is none; the last entry is for -1."""
        first = torch.full((old + 1,), -1, dtype=torch.int64)
        for column in range(self.K - 1, -1, -1):
            first[list(self.clusters[column].parents)] = column
        return first

    def _named(self, clients: Sequence[ClientId]) -> dict[int, int]:
        """Of a hard regroup the new cluster of each named member, by its place among `clients`."""
        if not self.hard:
            return {}
        where = {client: at for at, client in enumerate(clients)}
        return {where[c]: k for k, new in enumerate(self.clusters) for c in new.members or () if c in where}

    def shares(self, old: int) -> Tensor:
        """Return the part of each old cluster's amount that goes to each new cluster, (K old, K new).

        A parent's amount is divided equally among its children (halved by a split) and added up by a merge; the amount
        of removed clusters is lost.
        """
        share = torch.zeros(old, self.K, dtype=torch.float64)
        for column, new in enumerate(self.clusters):
            share[list(new.parents), column] = 1.0
        return share / share.sum(dim=1, keepdim=True).clamp_min(1.0)

    def flows(self, clients: Sequence[ClientId], old: int) -> Tensor:
        """Return how the weights of each client go from the old clusters to the new, (m, K old, K new).

        They follow `shares`, except that a named member of a hard regroup has everything in its new cluster.
        """
        flows = self.shares(old).repeat(len(clients), 1, 1)
        for at, column in self._named(clients).items():
            flows[at] = torch.nn.functional.one_hot(torch.tensor(column), self.K)
        return flows

    def map_weights(self, weights: Tensor) -> Tensor:
        """Soft weights (..., K) of clients, carried over to the new clusters; rows still sum to one.

        A parent's weight is shared equally by its children (halved by a split), added up by a merge, and what
        removed clusters held is renormalised away; a row left with nothing becomes uniform.
        """
        old = weights.shape[-1]
        if any(not 0 <= parent < old for new in self.clusters for parent in new.parents):
            raise ConfigError(f"a parent does not exist: the weights are for clusters 0 to {old - 1}")
        return renormalised(weights @ self.shares(old).to(weights))


def renormalised(weights: Tensor) -> Tensor:
    """Weights (..., K) that sum to one; a row left with nothing becomes uniform."""
    total = weights.sum(dim=-1, keepdim=True)
    uniform = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), uniform)
