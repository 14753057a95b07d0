"""Changes of the clusters: a `Regroup` describes splits, merges and removals, and only a regroup changes K."""

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
"""Rule for the model of a new cluster; see `NewCluster.how`."""


@dataclass(frozen=True)
class Changes:
    """Changes of the models in one round, separately for each client."""

    before: Clusters
    """Models that the clients received."""
    clients: tuple[ClientId, ...]
    """Ids of the clients; a is their number."""
    slots: Tensor
    """Slots of the T models that each client trained, (a, T)."""
    vectors: Tensor
    """Change of each model's parameters as one vector, (a, T, P), without those of a shared body."""
    mass: Tensor
    """Weight of each change in a mean, (a, T)."""
    held: Tensor
    """Fraction of the client that belongs to the cluster, (a, T), by which the mass of clusters is measured."""

    def mean(self, slot: int, members: Sequence[ClientId]) -> Params | None:
        """Return the weighted mean of the models after local training on these clients.

        Args:
            slot: Slot of the model that the clients trained.
            members: Ids of the clients.

        Returns:
            Parameters of the mean model by name, or None if none of these clients trained the model.
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
        """Return the changes with the slots after a regroup; those of a split model belong to its first child."""
        parents = [list(new.parents) or list(range(self.before.K)) for new in regroup.clusters]
        params = {n: torch.stack([p[rows].mean(dim=0) for rows in parents]) for n, p in self.before.params.items()}
        slots = regroup.first_children(self.before.K)[self.slots]
        return replace(self, before=replace(self.before, params=params, K=regroup.K), slots=slots)


@dataclass(frozen=True)
class NewCluster:
    """Origin of one new cluster."""

    parents: tuple[int, ...]
    """Old clusters from which it is derived. If there are none, the cluster is initialised with the overall model, or
    with the mean of all old models if there is no overall model."""
    how: How = "copy"
    """Rule for the model: `copy` the only parent, take the unweighted `average` of the parents or the parent with the
    `larger` number of clients, or average the models that its `members` trained from the parent."""
    members: tuple[ClientId, ...] | None = None
    """Ids of its clients, if the procedure determines them."""


@dataclass(frozen=True)
class Regroup:
    """Change of the clusters: the list of new clusters, each with its parents.

    Example:
        Split the first of two clusters; both parts start with its model:

        >>> from coterie.extend import NewCluster, Regroup
        >>> split = Regroup((NewCluster((0,)), NewCluster((1,)), NewCluster((0,))), kind="split")
        >>> split.K
        3
    """

    clusters: tuple[NewCluster, ...]
    """New clusters in the order of their numbers."""
    kind: str = "regroup"
    """Kind of the change, for the record: `split`, `merge`, `remove`, `arrival` or `bodies`."""
    reason: str = ""
    """Reason for the change, for the record."""
    hard: bool = False
    """Whether the named members of a new cluster belong to this cluster only. Otherwise the weights of clients follow
    the parents, and named members determine the new models only."""
    share: float = 1.0
    """If hard: share of a named member's weight that its new cluster receives. The rest follows the parents."""
    own_bodies: bool = False
    """Whether every cluster gets its own copy of the shared body and trains it separately afterwards."""

    def __post_init__(self) -> None:
        if not self.clusters:
            raise ConfigError("a regroup needs at least one new cluster: keep the last cluster")
        for new in self.clusters:
            if new.how in ("copy", "members") and len(new.parents) > 1:
                raise ConfigError(f"a cluster cannot copy {len(new.parents)} parents: use 'average' or 'larger'")
            if new.how == "members" and (not new.members or not new.parents):
                raise ConfigError(
                    "a new cluster with how='members' needs the ids of its members and their parent cluster"
                )

    @property
    def K(self) -> int:
        """Number of new clusters."""
        return len(self.clusters)

    def apply(self, clusters: Clusters, sizes: Tensor, changes: Changes | None = None) -> Clusters:
        """Return the models of the new clusters.

        Args:
            clusters: Old clusters, of one restart.
            sizes: Number of clients in each old cluster, (K,).
            changes: Changes by single clients in this round, for new clusters with `how="members"`.

        Raises:
            ConfigError: if there are several restarts, or a parent does not exist.
        """
        if clusters.restarts != 1:
            raise ConfigError(f"only one restart can be regrouped, got {clusters.restarts}: keep the best one first")
        for new in self.clusters:
            if any(not 0 <= parent < clusters.K for parent in new.parents):
                raise ConfigError(f"parents {new.parents} do not all exist: use cluster numbers 0 to {clusters.K - 1}")
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
            mean = changes.mean(parents[0], new.members or ())
            if mean is not None:
                return mean
        if new.how == "larger" and new.parents:
            parents = [max(parents, key=lambda k: (int(sizes[k]), -k))]
        return {name: p[parents].mean(dim=0) for name, p in clusters.params.items()}

    def place(self, clients: Sequence[ClientId], choice: Tensor) -> Tensor:
        """Return the new cluster of each client.

        A named member of a hard regroup is assigned to its new cluster, any other client to the first child of its old
        cluster.

        Args:
            clients: Ids of the m clients.
            choice: Old cluster of each client, (m, ...), -1 if unknown.

        Returns:
            New clusters in the shape of `choice`, -1 if the old cluster is unknown or was removed.
        """
        named = [parent for new in self.clusters for parent in new.parents]
        known = int(choice.max()) if choice.numel() else -1
        placed = self.first_children(1 + max([*named, known]))[choice]
        for at, column in self._named(clients).items():
            placed[at] = column
        return placed

    def first_children(self, old: int) -> Tensor:
        """Return the first child of each of `old` clusters, (old + 1,), or -1 if there is none.

        The last entry is -1, so that indexing with the unknown cluster -1 gives -1.
        """
        first = torch.full((old + 1,), -1, dtype=torch.int64)
        for column in range(self.K - 1, -1, -1):
            first[list(self.clusters[column].parents)] = column
        return first

    def _named(self, clients: Sequence[ClientId]) -> dict[int, int]:
        """Return the new cluster of each named member of a hard regroup, by its position in `clients`."""
        if not self.hard:
            return {}
        where = {client: at for at, client in enumerate(clients)}
        return {where[c]: k for k, new in enumerate(self.clusters) for c in new.members or () if c in where}

    def shares(self, old: int) -> Tensor:
        """Return the share of each old cluster's amount that each new cluster receives, (K old, K new).

        The amount of a parent is divided equally among its children, so a split halves it and a merge adds amounts up.
        The amount of a removed cluster is lost.

        Args:
            old: Number of old clusters.
        """
        share = torch.zeros(old, self.K, dtype=torch.float64)
        for column, new in enumerate(self.clusters):
            share[list(new.parents), column] = 1.0
        return share / share.sum(dim=1, keepdim=True).clamp_min(1.0)

    def flows(self, clients: Sequence[ClientId], old: int) -> Tensor:
        """Return for each client the matrix that converts weights over old to new clusters, (m, K old, K new).

        Weights follow `shares`, except that `share` of the weight of a named member of a hard regroup is in its new
        cluster.

        Args:
            clients: Ids of the m clients.
            old: Number of old clusters.
        """
        flows = self.shares(old).repeat(len(clients), 1, 1)
        for at, column in self._named(clients).items():
            own = torch.nn.functional.one_hot(torch.tensor(column), self.K)
            flows[at] = self.share * own + (1 - self.share) * flows[at]
        return flows

    def map_weights(self, weights: Tensor) -> Tensor:
        """Return soft assignment weights over the new clusters.

        The weight of a parent is divided equally among its children, so a split halves it and a merge adds weights up.
        The weight of removed clusters is distributed by renormalising; a row of zeros becomes uniform.

        Args:
            weights: Weights over the old clusters, (..., K old), which sum to one.

        Returns:
            Weights over the new clusters, (..., K new), which sum to one.

        Raises:
            ConfigError: if a parent does not exist.
        """
        old = weights.shape[-1]
        if any(not 0 <= parent < old for new in self.clusters for parent in new.parents):
            raise ConfigError(f"a parent does not exist: the weights are for clusters 0 to {old - 1}")
        return renormalised(weights @ self.shares(old).to(weights))


def renormalised(weights: Tensor) -> Tensor:
    """Return weights (..., K), rescaled to sum to one; a row of zeros becomes uniform."""
    total = weights.sum(dim=-1, keepdim=True)
    uniform = torch.full_like(weights, 1 / weights.shape[-1])
    return torch.where(total > 0, weights / total.clamp_min(torch.finfo(weights.dtype).tiny), uniform)
