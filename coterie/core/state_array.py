"""Arrays of the server state with declared axes, and the rules by which they follow a change of the clusters.

An array says once what its dimensions mean and what a split, a merge or a removal does to it. Regrouping, the choice
of the best restart and checkpoints read these declarations, so that a method or a server optimizer adds an array in one
place and never resizes it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.core.registry import Registered, register
from coterie.core.regroup import Regroup
from coterie.core.shard import ClientId
from coterie.errors import ConfigError

Axis = Literal["cluster", "restart", "client"]
"""Meaning of a dimension: one entry for each cluster, each restart or each client."""
Axes = tuple[Axis | None, ...]
"""Meaning of every dimension of an array; None: a dimension that nothing here changes."""


@dataclass(frozen=True)
class RegroupEvent:
    """A regroup, with what the rules need to know of the clusters before it."""

    regroup: Regroup
    clients: Sequence[ClientId]
    """Ids of all clients, in the order of every client axis."""
    sizes: Tensor
    """Number of clients in each old cluster, (K old,)."""

    @property
    def old(self) -> int:
        """Number of clusters before the regroup."""
        return len(self.sizes)


class RegroupRule(Registered, ABC, family="regroup rule"):
    """What happens to an array when clusters are split, merged or removed."""

    needs: ClassVar[tuple[Axis, ...]] = ()
    """Axes that an array with this rule must have."""
    resizes: ClassVar[bool] = False
    """Whether it gives a cluster axis the new number of clusters; other rules are for arrays without that axis."""
    averages: ClassVar[bool] = False
    """Whether entries are divided or averaged, which whole numbers and truth values cannot be."""

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
    """The array has no cluster axis and stays as it is."""

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        return value


@register("reset")
@dataclass(frozen=True)
class Reset(RegroupRule):
    """Every entry becomes zero: the array counts something since the last regroup."""

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
    """A child copies its parent, and a merge averages its parents by their numbers of clients.

    Parents that have no clients at all count equally. A cluster without parents gets `newborn` everywhere.
    """

    newborn: float = 0.0
    """Value of every entry of a cluster without parents."""

    needs: ClassVar[tuple[Axis, ...]] = ("cluster",)
    resizes: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("cluster")
        rows = value.movedim(at, 0)
        after = torch.stack([self._child(rows, new.parents, event.sizes) for new in event.regroup.clusters])
        return after.movedim(0, at)

    def _child(self, rows: Tensor, parents: tuple[int, ...], sizes: Tensor) -> Tensor:
        """Return the entries of one new cluster; rows (K old, ...) are those of the old ones."""
        if not parents:
            return torch.full_like(rows[0], self.newborn)
        if len(parents) == 1:  # a copy, whatever the entries are: zero times infinity is not a number
            return rows[parents[0]]
        counts = sizes[list(parents)].to(rows)
        counts = counts if bool(counts.sum() > 0) else torch.ones_like(counts)
        weights = (counts / counts.sum()).reshape(-1, *(1,) * (rows.dim() - 1))
        return (rows[list(parents)] * weights).sum(dim=0)


@register("share")
@dataclass(frozen=True)
class Share(RegroupRule):
    """A parent's amount is divided equally among its children, and a merge adds up the amounts of its parents.

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
    """Like `Share`, but a client that a hard regroup names as a member has all of its amount in its new cluster."""

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
    """The entries say for how many rounds a cluster has existed: both parts of a split, and a union, start at zero."""

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
    """The entries are numbers of clusters, or -1: each becomes the number of its first child.

    A client that a hard regroup names as a member gets the number of its new cluster. The number of a removed cluster
    becomes -1.
    """

    needs: ClassVar[tuple[Axis, ...]] = ("client",)

    def carry_over(self, value: Tensor, axes: Axes, event: RegroupEvent) -> Tensor:
        at = axes.index("client")
        return event.regroup.place(event.clients, value.movedim(at, 0)).movedim(0, at)


@dataclass(frozen=True)
class StateArray:
    """A tensor of the server state, with the meaning of its dimensions.

    Args:
        value: The tensor.
        axes: Meaning of each dimension; no meaning occurs twice.
        rule: What a regroup does to the array.

    Raises:
        ConfigError: if the declaration does not fit the tensor or the rule.
    """

    value: Tensor
    axes: Axes
    rule: RegroupRule = Unchanged()

    def __post_init__(self) -> None:
        named = [axis for axis in self.axes if axis is not None]
        if len(self.axes) != self.value.dim():
            raise ConfigError(f"an array of {self.value.dim()} dimensions needs as many axes, got {self.axes}")
        if len(named) != len(set(named)):
            raise ConfigError(f"an array cannot have two axes of the same name: {self.axes}")
        for axis in self.rule.needs:
            if axis not in named:
                raise ConfigError(f"the regroup rule {self.rule.name!r} needs a {axis} axis, got the axes {self.axes}")
        if self.rule.averages and not self.value.is_floating_point():
            raise ConfigError(f"the regroup rule {self.rule.name!r} needs a floating dtype, got {self.value.dtype}")
        if "cluster" in named and not self.rule.resizes:
            raise ConfigError(
                f"an array with a cluster axis needs a rule such as 'inherit' or 'share', got {self.rule.name!r}"
            )

    def length(self, axis: Axis) -> int | None:
        """Return the number of entries along an axis, or None if the array does not have it."""
        return self.value.shape[self.axes.index(axis)] if axis in self.axes else None

    def with_value(self, value: Tensor) -> StateArray:
        """Return another tensor with the same declaration."""
        return replace(self, value=value)

    def keep_restart(self, index: int) -> StateArray:
        """Return the array of one restart only; its restart axis has length one."""
        if "restart" not in self.axes:
            return self
        return self.with_value(self.value.narrow(self.axes.index("restart"), index, 1))

    def regrouped(self, event: RegroupEvent) -> StateArray:
        """Return the array after a regroup."""
        return self.with_value(self.rule.carry_over(self.value, self.axes, event))
