"""Tier 3: when and how the number of clusters changes. A member decides and never edits arrays itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.tiers.view import Floats, View, own_updates


class Procedure(Protocol):
    """Decides about K."""

    name: ClassVar[str]

    @property
    def K(self) -> int:
        """The number of clusters to start with."""
        ...

    @property
    def steps(self) -> tuple[Step, ...]:
        """What is considered after every round, in this order; nothing: K stays."""
        ...


class Step(Protocol):
    """One way to change K."""

    name: ClassVar[str]
    splits: ClassVar[bool]
    """Whether it needs what each member made of its cluster's model."""

    def server_propose(self, view: View) -> Regroup | None:
        """The regroup to apply after a round, or None to leave the clusters as they are."""
        ...


@dataclass(frozen=True)
class Fixed:
    """K is given and stays."""

    K: int
    name: ClassVar[str] = "fixed"
    steps: ClassVar[tuple[Step, ...]] = ()


@dataclass(frozen=True)
class Adaptive:
    """K changes by these steps."""

    K: int
    steps: tuple[Step, ...]
    name: ClassVar[str] = "adaptive"


@dataclass(frozen=True)
class Cut:
    """A cluster that is to become two."""

    k: int
    parts: tuple[Positions, Positions]
    """Of those who answered."""
    why: str


def split(view: View, cuts: Sequence[Cut], hard: bool) -> Regroup | None:
    """The first part of a cluster keeps its number, the second ones get the next numbers, in order."""
    if not cuts:
        return None
    new = [NewCluster((j,)) for j in range(view.K)]
    for cut in cuts:
        new[cut.k] = NewCluster((cut.k,), "members", view.ids(cut.parts[0]))
        new.append(NewCluster((cut.k,), "members", view.ids(cut.parts[1])))
    return Regroup(tuple(new), "split", "; ".join(f"{cut.k}: {cut.why}" for cut in cuts), hard)


def bipartition(apart: Floats) -> tuple[Positions, Positions]:
    """Two parts by complete linkage, which makes the least distance between them as large as can be."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(apart, checks=False), method="complete")
    labels = cut_tree(tree, n_clusters=2)[:, 0]  # two, even where the last merges are equally far apart
    first = labels == labels[0]  # the part of the first client keeps the number
    return np.flatnonzero(first), np.flatnonzero(~first)


@dataclass(frozen=True)
class SplitByNorm:
    """CFL: a cluster whose mean update has become small while some member's has not is cut in two by complete linkage.

    Of update cosines that makes the largest similarity across as small as can be.
    """

    eps1: float
    """The mean update's norm must be below this; with `relative`, this part of the largest member's."""
    eps2: float
    """The largest member's norm must be above this."""
    relative: bool = False
    warmup: int = 20
    """No split before this round."""
    least: int = 3
    """No cluster with fewer members is split."""
    gate: float | None = None
    """gamma_max of the paper: a cut only counts if the largest cosine across is below 1 - 2 gamma_max^2; None: any."""
    max_clusters: int | None = None
    hard: bool = True
    name: ClassVar[str] = "split-by-norm"
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if view.round < self.warmup:
            return None
        cuts = [cut for k in range(view.K) if (cut := self._cut(view, k)) is not None]
        room = None if self.max_clusters is None else max(0, self.max_clusters - view.K)
        return split(view, cuts[:room], self.hard)

    def _cut(self, view: View, k: int) -> Cut | None:
        members, apart = view.pairwise(k)
        if len(members) < self.least or view.changes is None:
            return None
        updates = own_updates(view.changes, members, k)
        mean = float(updates.mean(dim=0).norm())
        largest = float(updates.norm(dim=1).max())
        if not (mean < (self.eps1 * largest if self.relative else self.eps1) and largest > self.eps2):
            return None
        parts = bipartition(apart)
        across = 1 - float(apart[np.ix_(*parts)].min())
        if self.gate is not None and self.gate >= math.sqrt(max(0.0, (1 - across) / 2)):
            return None
        why = f"mean update {mean:.3g}, largest {largest:.3g}; largest cosine across {across:.3g}"
        return Cut(k, (members[parts[0]], members[parts[1]]), why)


@dataclass(frozen=True)
class SplitByGap:
    """HCFL+: the cluster with the largest distance inside is split if that is `rho` above the mean distance there."""

    rho: float
    hard: bool = False
    """Whether the parts are written into the clients' weights; else everybody's are halved and the data decides."""
    warmup: int = 0
    max_clusters: int | None = None
    least: int = 2
    name: ClassVar[str] = "split-by-gap"
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if view.round < self.warmup or (self.max_clusters is not None and self.max_clusters <= view.K):
            return None
        found = [(k, *view.pairwise(k)) for k in range(view.K)]
        widest = max((one for one in found if len(one[1]) >= self.least), key=lambda one: one[2].max(), default=None)
        if widest is None:
            return None
        k, members, apart = widest
        gap = float(apart.max() - apart.mean())
        if gap < self.rho:
            return None
        why = f"largest distance {apart.max():.3g}, mean {apart.mean():.3g}: {gap:.3g} apart, rho {self.rho:g}"
        first, second = bipartition(apart)
        return split(view, [Cut(k, (members[first], members[second]), why)], self.hard)


@dataclass(frozen=True)
class RemoveUnclaimed:
    """A cluster that nobody ranks first is removed; never the last one."""

    name: ClassVar[str] = "remove-unclaimed"
    splits: ClassVar[bool] = False

    def server_propose(self, view: View) -> Regroup | None:
        sizes = view.sizes()
        claimed = [k for k in range(view.K) if sizes[k] > 0]
        if len(claimed) == view.K or not claimed:
            return None
        gone = sorted(set(range(view.K)) - set(claimed))
        why = f"nobody ranks {', '.join(map(str, gone))} first"
        return Regroup(tuple(NewCluster((k,)) for k in claimed), "remove", why)
