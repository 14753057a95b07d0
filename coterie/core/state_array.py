"""Arrays of the server state with declared axes, and rules for their behaviour in a regroup.

An array declares the meaning of its dimensions and how a split, merge or removal of clusters changes it. Regroups, the
selection of the best restart and checkpoints use these declarations, so that a method or a server optimizer adds an
array in one place and never resizes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.registry import Registered, register
from coterie.core.regroup import Regroup
from coterie.core.shard import ClientId
from coterie.errors import ConfigError

Axis = Literal["cluster", "restart", "client"]
"""Meaning of a dimension: one entry for each cluster, restart or client."""
Axes = tuple[Axis | None, ...]
"""Meaning of each dimension of an array; None for other dimensions, which never change."""


@dataclass(frozen=True)
class RegroupEvent:
    """A regroup with facts about the clusters before it."""

    regroup: Regroup
    """The regroup."""
    clients: Sequence[ClientId]
    """Ids of all clients, in the order of every client axis."""
    sizes: Tensor
    """Number of clients in each old cluster, (K old,)."""

    @property
    def old(self) -> int:
        """Number of clusters before the regroup."""
        return len(self.sizes)


class RegroupRule(Registered, ABC, family="regroup rule"):
    """Behaviour of an array when clusters are split, merged or removed."""

    needs: ClassVar[tuple[Axis, ...]] = ()
    """Axes that an array with this rule must have."""
    resizes: ClassVar[bool] = False
    """Whether the rule resizes the cluster axis; other rules are for arrays without a cluster axis."""
    averages: ClassVar[bool] = False
    """Whether entries are divided or averaged, which requires a floating-point dtype."""

    @abstractmethod
    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        """Return the array after the regroup.

        Args:
            value: The array before the regroup.
            axes: Meaning of each of its dimensions.
            event: The regroup and the clusters before it.
        """


@register("unchanged")
@dataclass(frozen=True)
class Unchanged(RegroupRule):
    """Keep the array unchanged; it must have no cluster axis."""

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        return value


@register("reset")
@dataclass(frozen=True)
class Reset(RegroupRule):
    """Set all entries to zero, for arrays that count something since the last regroup."""

    resizes: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        if "cluster" not in axes:
            return torch.zeros_like(value)
        shape = list(value.shape)
        shape[axes.index("cluster")] = event.regroup.K
        return value.new_zeros(shape)


@register("inherit")
@dataclass(frozen=True)
class Inherit(RegroupRule):
    """Copy the entries of the parent to each child; after a merge, average the parents by their numbers of clients.

    If no parent has clients, all parents have the same weight.

    Example:
        Merge clusters of 1 and 3 clients:

        >>> import torch
        >>> from coterie.extend import Inherit, NewCluster, Regroup, RegroupEvent, StateArray
        >>> momentum = StateArray(torch.tensor([0.0, 4.0]), ("cluster",), Inherit())
        >>> merge = Regroup((NewCluster((0, 1), how="average"),), kind="merge")
        >>> momentum.regrouped(RegroupEvent(merge, clients=("a", "b", "c", "d"), sizes=torch.tensor([1, 3]))).value
        tensor([3.])
    """

    newborn: float = 0.0
    """Value of all entries of a cluster without parents."""

    needs: ClassVar[tuple[Axis, ...]] = ("cluster",)
    resizes: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("cluster")
        rows = value.movedim(at, 0)
        after = torch.stack([self._child(rows, new.parents, event.sizes) for new in event.regroup.clusters])
        return after.movedim(0, at)

    def _child(self, rows: Tensor, parents: tuple[int, ...], sizes: Tensor) -> Tensor:
        """Return the entries of one new cluster from the rows of the old clusters, (K old, ...)."""
        if not parents:
            return torch.full_like(rows[0], self.newborn)
        if len(parents) == 1:  # no multiplication by weights, since zero times infinity is NaN
            return rows[parents[0]]
        counts = sizes[list(parents)].to(rows)
        counts = counts if bool(counts.sum() > 0) else torch.ones_like(counts)
        weights = (counts / counts.sum()).reshape(-1, *(1,) * (rows.dim() - 1))
        return (rows[list(parents)] * weights).sum(dim=0)


@register("share")
@dataclass(frozen=True)
class Share(RegroupRule):
    """Divide the amount of a parent equally among its children; after a merge, add up the amounts of the parents.

    The amount of a removed cluster is lost, and a cluster without parents gets zeros. Unless clusters are removed, the
    sum over all clusters stays the same.
    """

    needs: ClassVar[tuple[Axis, ...]] = ("cluster",)
    resizes: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("cluster")
        shares = event.regroup.shares(event.old).to(value)
        return (value.movedim(at, -1) @ shares).movedim(-1, at)


@register("share-by-member")
@dataclass(frozen=True)
class ShareByMember(RegroupRule):
    """Like `Share`, but the amount of a named member of a hard regroup goes to its new cluster (or most of it)."""

    needs: ClassVar[tuple[Axis, ...]] = ("client", "cluster")
    resizes: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        ends = (axes.index("client"), axes.index("cluster"))
        by_client = value.movedim(ends, (0, -1))
        flows = event.regroup.flows(event.clients, event.old).to(value)  # (m, K old, K new)
        between = (1,) * (value.dim() - 3)
        if value.dim() == 2:
            return torch.einsum("mk,mkj->mj", by_client, flows).movedim((0, -1), ends)
        return (by_client @ flows.reshape(len(flows), *between, *flows.shape[1:])).movedim((0, -1), ends)


@register("age")
@dataclass(frozen=True)
class Age(RegroupRule):
    """Keep the entries of unchanged clusters and set those of split, merged and new clusters to zero.

    The entries are ages of clusters in rounds.
    """

    needs: ClassVar[tuple[Axis, ...]] = ("cluster",)
    resizes: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("cluster")
        rows = value.movedim(at, 0)
        named = [parent for new in event.regroup.clusters for parent in new.parents]
        same = [len(new.parents) == 1 and named.count(new.parents[0]) == 1 for new in event.regroup.clusters]
        after = [
            rows[new.parents[0]] if stays else torch.zeros_like(rows[0])
            for new, stays in zip(event.regroup.clusters, same, strict=True)
        ]
        return torch.stack(after).movedim(0, at)


@register("cluster-number")
@dataclass(frozen=True)
class ClusterNumber(RegroupRule):
    """Replace cluster numbers by the number of the cluster's first child.

    The entries are cluster numbers or -1. A named member of a hard regroup gets the number of its new cluster. The
    number of a removed cluster becomes -1.
    """

    needs: ClassVar[tuple[Axis, ...]] = ("client",)

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("client")
        return event.regroup.place(event.clients, value.movedim(at, 0)).movedim(0, at)


@dataclass(frozen=True)
class StateArray:
    """A tensor of the server state with declared axes.

    Args:
        value: The tensor.
        axes: Meaning of each dimension; no meaning may occur twice.
        rule: Behaviour of the array in a regroup.

    Raises:
        ConfigError: if the declaration does not fit the tensor or the rule.

    Example:
        >>> import torch
        >>> from coterie.extend import Inherit, StateArray
        >>> momentum = StateArray(torch.zeros(3, 10), ("cluster", None), Inherit())
        >>> momentum.length("cluster")
        3
    """

    value: Tensor
    axes: Axes
    rule: RegroupRule = Unchanged()

    def __post_init__(self) -> None:
        named = [axis for axis in self.axes if axis is not None]
        if len(self.axes) != self.value.dim():
            raise ConfigError(
                f"an array of {self.value.dim()} dimensions needs {self.value.dim()} axes, got {self.axes}: give None "
                "for dimensions without a meaning"
            )
        if len(named) != len(set(named)):
            raise ConfigError(f"an array cannot have two axes with the same meaning, got {self.axes}: use None for one")
        for axis in self.rule.needs:
            if axis not in named:
                raise ConfigError(f"the regroup rule {self.rule.name!r} needs a {axis} axis, got the axes {self.axes}")
        if self.rule.averages and not self.value.is_floating_point():
            raise ConfigError(f"the regroup rule {self.rule.name!r} needs a floating dtype, got {self.value.dtype}")
        if "cluster" in named and not self.rule.resizes:
            raise ConfigError(
                f"an array with a cluster axis needs a rule that resizes it, such as 'inherit' or 'share', got "
                f"{self.rule.name!r}"
            )

    def length(self, axis: Axis) -> int | None:
        """Return the number of entries along an axis, or None if the array does not have it."""
        return self.value.shape[self.axes.index(axis)] if axis in self.axes else None

    def with_value(self, value: Tensor) -> StateArray:
        """Return the array with another tensor and the same declaration."""
        return StateArray(value, self.axes, self.rule)

    def keep_restart(self, index: int) -> StateArray:
        """Return the entries of one restart only; the restart axis then has length one."""
        if "restart" not in self.axes:
            return self
        return self.with_value(self.value.narrow(self.axes.index("restart"), index, 1))

    def regrouped(self, event: RegroupEvent) -> StateArray:
        """Return the array after a regroup."""
        return self.with_value(self.rule.carry_over(self.value, self.axes, event))
