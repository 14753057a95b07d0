"""How old clusters become new ones: split, merge and remove are one value. Nothing else changes K."""

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
    """Changes that single clients made in a round to the models they trained."""

    before: Clusters
    """The models that the clients received."""
    clients: tuple[ClientId, ...]
    """Ids of the a clients."""
    slots: Tensor
    """Slots of the T models that each client trained, (a, T)."""
    vectors: Tensor
    """Change of each model, (a, T, P): the cluster's own parameters as one vector, without shared ones."""
    mass: Tensor
    """Weight of each change in a mean, (a, T)."""
    held: Tensor
    """Part of the client that belongs to the cluster, (a, T), by which the mass of clusters is measured."""

    def mean(self, slot: int, members: Sequence[ClientId]) -> Params | None:
        """Return the mean of the models that these clients made of one model, {name: (...)}.

        Returns:
            The mean model, or None if none of these clients trained it.
        """
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
        """Return the changes in the new numbering: those of a split model belong to its first child."""
        parents = [list(new.parents) or list(range(self.before.K)) for new in regroup.clusters]
        params = {n: torch.stack([p[rows].mean(dim=0) for rows in parents]) for n, p in self.before.params.items()}
        slots = regroup.first_children(self.before.K)[self.slots]
        return replace(self, before=replace(self.before, params=params, K=regroup.K), slots=slots)


@dataclass(frozen=True)
class NewCluster:
    """Origin of one new cluster."""

    parents: tuple[int, ...]
    """Old clusters that it descends from. A newborn cluster has none: it starts from the overall model if there is one,
    else from the mean of all old models."""
    how: How = "copy"
    """`copy` the one parent, take the plain `average` of the parents or the parent of `larger` size, or the mean of the
    models that its `members` made of the parent."""
    members: tuple[ClientId, ...] | None = None
    """Ids of its clients, if the procedure names them."""


@dataclass(frozen=True)
class Regroup:
    """The new clusters in the order of their numbers, each with its parents."""

    clusters: tuple[NewCluster, ...]
    kind: str = "regroup"
    """`split`, `merge`, `remove`, `arrival` or `bodies`, for the record."""
    reason: str = ""
    """Reason in words, for the record."""
    hard: bool = False
    """Whether a named member belongs to its new cluster alone. If not, weights follow the parents, and members only
    determine the new models."""
    own_bodies: bool = False
    """Whether every cluster gets a copy of the shared body, which it then trains as its own."""

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
        """Number of new clusters."""
        return len(self.clusters)

    def apply(self, clusters: Clusters, sizes: Tensor, changes: Changes | None = None) -> Clusters:
        """Return the models of the new clusters.

        Args:
            clusters: The old clusters, of one restart.
            sizes: Number of clients in each old cluster, (K,).
            changes: Changes that single clients made in the round, for clusters made by their members.

        Raises:
            ConfigError: if there are several restarts, or a parent does not exist.
        """
        if clusters.restarts != 1:
            raise ConfigError(f"only one restart can be regrouped, got {clusters.restarts}: keep the best one first")
        for new in self.clusters:
            if any(not 0 <= parent < clusters.K for parent in new.parents):
                raise ConfigError(f"parents {new.parents} do not all exist: clusters are 0 to {clusters.K - 1}")
        if self.own_bodies:
            clusters = replace(clusters, params=clusters.all_models(), body=None)
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
        """Return the first new cluster of each old one, (K old + 1,), -1 if there is none; the last entry is for -1."""
        first = torch.full((old + 1,), -1, dtype=torch.int64)
        for column in range(self.K - 1, -1, -1):
            first[list(self.clusters[column].parents)] = column
        return first

    def _named(self, clients: Sequence[ClientId]) -> dict[int, int]:
        """Return the new cluster of each named member of a hard regroup, by its place in `clients`."""
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
        """Return soft weights (..., K) of clients over the new clusters; rows still sum to one.

        A parent's weight is shared equally by its children (halved by a split), added up by a merge, and what
        removed clusters held is renormalised away; a row left with nothing becomes uniform.

        Raises:
            ConfigError: if a parent does not exist.
        """
        old = weights.shape[-1]
        if any(not 0 <= parent < old for new in self.clusters for parent in new.parents):
            raise ConfigError(f"a parent does not exist: the weights are for clusters 0 to {old - 1}")
        return renormalised(weights @ self.shares(old).to(weights))


def renormalised(weights: Tensor) -> Tensor:
    """Return weights (..., K) that sum to one; a row of zeros becomes uniform."""
    total = weights.sum(dim=-1, keepdim=True)
    uniform = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), uniform)
