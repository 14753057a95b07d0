"""Tier 3: when and how the number of clusters changes. A member decides and never edits arrays itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Words
from coterie.core.regroup import Changes, NewCluster, Regroup, renormalised
from coterie.core.shard import ClientId, Positions
from coterie.tiers.distance import Distance

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """What the server knows after a round."""

    round: int
    clusters: Clusters
    """After the averaging."""
    clients: tuple[ClientId, ...]
    """Everybody."""
    choice: Tensor
    """(m,) each one's cluster, the one that weighs most where it has several; -1: not known yet."""
    answered: Positions
    """(a,) who answered, as places in `clients`; rows, weights and changes are theirs."""
    hashes: Words
    """(m,) of the clients' ids: the order in which they are looked at, so that no other order matters."""
    rows: Params = field(default_factory=dict)
    weights: Tensor | None = None
    """(a, K) where clients belong to several clusters."""
    changes: Changes | None = None
    distance: Distance | None = None

    @property
    def K(self) -> int:
        return self.clusters.K

    def sizes(self) -> Tensor:
        """(K,) the clients of each cluster."""
        return torch.bincount(self.choice[self.choice >= 0], minlength=self.K)

    def members(self, k: int) -> Positions:
        """Those of cluster k who answered, as places among them, in the order of their hashes."""
        found = np.flatnonzero((self.choice[torch.from_numpy(self.answered)] == k).numpy())
        return found[np.argsort(self.hashes[self.answered[found]])]

    def after(self, regroup: Regroup) -> View:
        """What is known once this is applied."""
        weights = self.weights
        if weights is not None:
            flows = regroup.flows([self.clients[i] for i in self.answered], self.K)
            weights = renormalised(torch.einsum("ak,akj->aj", weights.double(), flows))
        return replace(
            self,
            clusters=regroup.apply(self.clusters, self.sizes(), self.changes),
            choice=regroup.place(self.clients, self.choice),
            weights=weights,
            changes=None if self.changes is None else self.changes.after(regroup),
        )

    def ids(self, places: Sequence[int] | Positions) -> tuple[ClientId, ...]:
        """Of some who answered."""
        return tuple(self.clients[self.answered[place]] for place in places)

    def pairwise(self, k: int) -> tuple[Positions, Floats]:
        """The members of cluster k who answered, and the distances between them, weighed by what k counts for both."""
        assert self.distance is not None, "checked when the method is built"
        members = self.members(k)
        at = torch.from_numpy(members)
        rows = {name: value[at] for name, value in self.rows.items()}
        if self.changes is not None:
            rows["own_change"] = own_updates(self.changes, members, k)
        apart = self.distance.server_pairwise(rows)
        if self.weights is not None and self.distance.weighted:
            own = self.weights[at, k].double().numpy()
            apart = apart * own[:, None] * own[None]
        return members, apart


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


def own_updates(changes: Changes, members: Positions, k: int) -> Tensor:
    """What these clients changed of model k, (members, P)."""
    rows = torch.from_numpy(members)
    column = (changes.slots[rows] == k).int().argmax(dim=1)
    return changes.vectors[rows, column]


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
