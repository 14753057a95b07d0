"""Tier 3: when and how the number of clusters changes. A member decides and never edits arrays itself."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.registry import Registered, register
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.shard import Positions
from coterie.tiers.landmarks import MOST, Floats
from coterie.tiers.view import Statistic, View, own_updates


class ProcedureStep(Registered, ABC, family="procedure step"):
    """One way to change the number of clusters."""

    splits: ClassVar[bool] = False
    """Whether it needs what each member made of its cluster's model."""
    onboards: ClassVar[bool] = False
    """Whether clients describe themselves before they first train, and are placed by that."""
    by_halves: ClassVar[bool] = False
    """Whether they do so by each half of their samples, and the descriptions of single clients are kept."""
    reveals: ClassVar[Mapping[str, str]] = {}
    """Rows that clients send for this step alone, and what each tells the server about a client."""
    not_private: ClassVar[str] = ""
    """Why the step cannot be part of a private run; empty: it can."""
    needs_ages: ClassVar[bool] = False
    """Whether it asks for how many rounds a cluster has existed."""
    removes: ClassVar[bool] = False
    """Whether it removes clusters. Removals are decided with the clients' weights of the round, before any other step,
    and applied after all of them (algorithm 2 of HCFL+)."""

    @property
    def keeps_introductions(self) -> bool:
        """Whether the server keeps the onboarding row of every client, to compare only those that take part."""
        return False

    @abstractmethod
    def server_propose(self, view: View) -> Regroup | None:
        """Return the regroup to apply after a round, or None to leave the clusters as they are."""

    def server_capped(self, most: int | None) -> ProcedureStep:
        """Return the step with this largest number of clusters, unless it has one of its own or none to set."""
        if most is None or getattr(self, "max_clusters", most) is not None:
            return self
        return replace(self, max_clusters=most)  # type: ignore[type-var]


@dataclass(frozen=True)
class Procedure:
    """What is considered after every round, in this order; without steps the number of clusters is fixed."""

    steps: tuple[ProcedureStep, ...] = ()


@dataclass(frozen=True)
class Cut:
    """A cluster that is to become two."""

    k: int
    parts: Sequence[Positions]
    """Two, of those who answered."""
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


def split_each(view: View, cut: Callable[[View, int], Cut | None], most: int | None, hard: bool) -> Regroup | None:
    """Every cluster that `cut` would have in two, the first ones where there is room for no more than `most`."""
    cuts = [found for k in range(view.K) if (found := cut(view, k)) is not None]
    return split(view, cuts if most is None else cuts[: max(0, most - view.K)], hard)


def bipartition(apart: Floats) -> tuple[Positions, Positions]:
    """Two parts by complete linkage, which makes the least distance between them as large as can be."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(apart, checks=False), method="complete")
    labels = cut_tree(tree, n_clusters=2)[:, 0]  # two, even where the last merges are equally far apart
    first = labels == labels[0]  # the part of the first client keeps the number
    return np.flatnonzero(first), np.flatnonzero(~first)


@register("split-by-norm")
@dataclass(frozen=True)
class SplitByNorm(ProcedureStep):
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
    most: int = MOST
    """So many members of a cluster are compared; the others join the nearer part."""
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if view.round < self.warmup:
            return None
        return split_each(view, self._cut, self.max_clusters, self.hard)

    def _cut(self, view: View, k: int) -> Cut | None:
        members = view.members(k)
        if len(members) < self.least or view.changes is None:
            return None
        updates = own_updates(view.changes, members, k)
        mean = float(updates.mean(dim=0).norm())
        largest = float(updates.norm(dim=1).max())
        limit = self.eps1 * largest if self.relative else self.eps1
        text = f"mean update {mean:.3g}, cut below {limit:.3g}; largest {largest:.3g}, cut above {self.eps2:.3g}"
        view.statistics.append(Statistic(k, "mean update", mean, limit, "below", text, {"largest": largest}))
        if not (mean < limit and largest > self.eps2):
            return None
        compared, apart = view.pairwise(k, self.most)  # only now, since most rounds end above
        first, second = bipartition(apart)
        nearest = float(apart[np.ix_(first, second)].min())
        if self.gate is not None and self.gate >= math.sqrt(max(0.0, nearest / 2)):
            return None
        why = f"mean update {mean:.3g}, largest {largest:.3g}; least distance across {nearest:.3g}"
        return Cut(k, view.with_the_rest(k, (compared[first], compared[second])), why)


@register("split-by-gap")
@dataclass(frozen=True)
class SplitByGap(ProcedureStep):
    """HCFL+: the cluster with the largest distance inside is split if that is `rho` above the mean distance there."""

    rho: float
    hard: bool = False
    """Whether the parts are written into the clients' weights; else everybody's are halved and the data decides."""
    warmup: int = 0
    max_clusters: int | None = None
    least: int = 2
    most: int = MOST
    """So many members of a cluster are compared; with `hard` the others join the nearer part, else they have none."""
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if view.round < self.warmup or (self.max_clusters is not None and self.max_clusters <= view.K):
            return None
        found = [(k, *view.pairwise(k, self.most)) for k in range(view.K)]
        widest = max((one for one in found if len(one[1]) >= self.least), key=lambda one: one[2].max(), default=None)
        if widest is None:
            return None
        k, members, apart = widest
        gap = float(apart.max() - apart.mean())
        view.statistics.append(Statistic(k, "gap", gap, self.rho, "above", f"gap {gap:.3g}, rho {self.rho:g}"))
        if gap < self.rho:
            return None
        why = f"largest distance {apart.max():.3g}, mean {apart.mean():.3g}: {gap:.3g} apart, rho {self.rho:g}"
        parts: Sequence[Positions] = [members[part] for part in bipartition(apart)]
        return split(view, [Cut(k, view.with_the_rest(k, parts) if self.hard else parts, why)], self.hard)


@register("remove-unclaimed")
@dataclass(frozen=True)
class RemoveUnclaimed(ProcedureStep):
    """A cluster that nobody ranks first is removed; never the last one."""

    grace: int = 2
    """Number of rounds in which a cluster that comes from a split is not removed."""
    splits: ClassVar[bool] = False
    needs_ages: ClassVar[bool] = True
    removes: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        sizes, young = view.sizes(), view.ages() < self.grace
        claimed = [k for k in range(view.K) if sizes[k] > 0 or young[k] or view.shares_first_rank(k)]
        if len(claimed) == view.K or not claimed:
            return None
        gone = sorted(set(range(view.K)) - set(claimed))
        why = f"nobody ranks {', '.join(map(str, gone))} first"
        return Regroup(tuple(NewCluster((k,)) for k in claimed), "remove", why)


def two_means(points: Floats) -> tuple[Positions, Positions]:
    """Two parts of points (n, d) that are not all equal, by Lloyd's steps from the two that are farthest apart.

    Nothing is drawn, and neither part can become empty: each centre is nearer to some point of its own part.
    """
    from scipy.cluster.vq import kmeans2  # slow to import
    from scipy.spatial.distance import cdist

    apart = cdist(points, points)
    ends = np.unravel_index(int(apart.argmax()), apart.shape)
    _, labels = kmeans2(points, points[list(ends)], iter=100, minit="matrix", missing="raise")
    first = labels == labels[0]  # the part of the first client keeps the number
    return np.flatnonzero(first), np.flatnonzero(~first)


def spectral_parts(apart: Floats) -> tuple[Positions, Positions]:
    """Two parts by 2-means on the two leading eigenvectors of the cosines 1 - apart."""
    return two_means(np.linalg.eigh(1 - apart)[1][:, -2:])  # orthonormal columns, so the rows are not all equal


@register("split-by-spectrum")
@dataclass(frozen=True)
class SplitBySpectrum(ProcedureStep):
    """ICFL: a cluster whose updates do not point one way is cut in two by the leading eigenvectors of their cosines.

    A_ij = cos of the updates of members i and j who answered, alpha = its largest eigenvalue / n: 1 if all point the
    same way, 1/n if each goes its own. The cut is by 2-means on the rows of the n x 2 matrix of the two leading
    eigenvectors, where alpha < alpha*(t) = 1 - (e/eps1)^(t/eps2), eps2 = ln(1 - alpha0) / (1 - ln eps1), t = round.

    alpha*(t) rises to 1 for all alpha0 and eps1, and alpha is below 1 unless all updates point the same way: K runs
    towards the number of clients unless it is capped.
    """

    alpha0: float
    """Between 0 and 1: the larger, the slower alpha* rises."""
    eps1: float = 4.0
    warmup: int = 0
    """No split before this round."""
    least: int = 2
    """No cluster with fewer members who answered is split."""
    max_clusters: int | None = None
    hard: bool = True
    most: int = MOST
    """So many members of a cluster are compared, of whom alpha is then; the others join the nearer part."""
    splits: ClassVar[bool] = True

    def server_threshold(self, round_: int) -> float:
        """alpha*(t)."""
        eps2 = math.log(1 - self.alpha0) / (1 - math.log(self.eps1))
        return 1 - float((math.e / self.eps1) ** (round_ / eps2))

    def server_propose(self, view: View) -> Regroup | None:
        if view.round < self.warmup:
            return None
        return split_each(view, self._cut, self.max_clusters, self.hard)

    def _cut(self, view: View, k: int) -> Cut | None:
        members, apart = view.pairwise(k, self.most)
        if len(members) < max(2, self.least):
            return None
        values, vectors = np.linalg.eigh(1 - apart)  # ascending
        alpha, threshold = float(values[-1]) / len(members), self.server_threshold(view.round)
        text = f"alpha {alpha:.3g}, cut below {threshold:.3g}"
        view.statistics.append(Statistic(k, "alpha", alpha, threshold, "below", text))
        if alpha >= threshold:
            return None
        first, second = two_means(vectors[:, -2:])  # orthonormal columns, so the rows are not all equal
        why = f"alpha {alpha:.3g} is below {threshold:.3g}"
        return Cut(k, view.with_the_rest(k, (members[first], members[second])), why)


@register("merge-above")
@dataclass(frozen=True)
class MergeAbove(ProcedureStep):
    """StoCFL: every client begins as a cluster of its own; clusters whose portraits are alike unite, and none splits.

    A portrait is the sum of what members introduced themselves with, which has the direction of their mean. Pairs with
    cos >= tau unite, from the largest cosine on; a chain of such pairs makes one cluster, with the model of its largest
    part (ties: the oldest). Clients that come for the first time have no model yet: the overall one is theirs if no
    older cluster joins them. So no model is held for a client that finds its like in the round it comes.
    """

    tau: float
    compare: Literal["sampled", "all"] = "sampled"
    """Whose introductions make a portrait: those of the members that take part in the round, so that clusters without
    any are not compared, or those of all members so far. The server keeps every client's for `sampled`, else sums."""
    onboards: ClassVar[bool] = True

    @property
    def keeps_introductions(self) -> bool:
        return self.compare == "sampled"

    def server_propose(self, view: View) -> Regroup | None:
        if "anchor" not in view.rows:
            return None
        old, portraits = self._portraits(view)
        vectors = torch.cat([portraits[old], view.rows["anchor"]])
        if not len(vectors):
            return None
        parts, largest = united(vectors, self.tau)
        most = float(largest.max())
        text = f"largest cosine {most:.3g}, tau {self.tau:g}"
        view.statistics.append(Statistic(0, "cosine", most, self.tau, "above", text))
        sizes = view.sizes()
        others = [NewCluster((k,)) for k in range(view.K) if sizes[k] > 0 and k not in old]
        new = tuple(sorted([*(self._cluster(view, old, part) for part in parts), *others], key=_first_parent))
        if len(new) == view.K and not len(view.answered):
            return None
        unions = [self._reason(float(largest[part].max()), old, part) for part in parts if (part < len(old)).sum() > 1]
        why = "; ".join([*([f"{len(view.answered)} clients came"] if len(view.answered) else []), *unions])
        return Regroup(new, "merge" if unions else "arrival", f"{why}; tau {self.tau:g}", hard=True)

    @staticmethod
    def _portraits(view: View) -> tuple[list[int], Tensor]:
        """Return the clusters that are compared, and the portraits of all (K, P)."""
        if view.taking_part is None:
            return [k for k, size in enumerate(view.sizes()) if size > 0], view.portraits
        here = torch.from_numpy(view.taking_part)
        here = here[view.choice[here] >= 0]
        rows, own = view.state.introductions[here], view.choice[here]
        sums = rows.new_zeros(view.K, rows.shape[1]).index_add(0, own, rows)
        return sorted(set(own.tolist())), sums

    @staticmethod
    def _reason(cosine: float, old: list[int], part: Positions) -> str:
        """Which old clusters become one, and the largest cosine in it."""
        return f"{', '.join(str(old[place]) for place in part if place < len(old))} unite, cosine {cosine:.3g}"

    @staticmethod
    def _cluster(view: View, old: list[int], part: Positions) -> NewCluster:
        """From places among the old clusters that have members, and the clients that came, after them."""
        parents = tuple(old[place] for place in part if place < len(old))
        return NewCluster(parents, "larger", view.ids(part[part >= len(old)] - len(old)))


def _first_parent(new: NewCluster) -> float:
    """Return the place of a cluster among others: that of its first parent, or after all that have one."""
    return new.parents[0] if new.parents else math.inf


BLOCK = 1000
"""Rows whose cosines with all later ones are held at a time."""


def united(vectors: Tensor, tau: float) -> tuple[list[Positions], Floats]:
    """The parts that pairs of rows (n, P) with cos >= tau make, in the order of their first places.

    With them, for each row, the largest cosine with a later one (n,), -1 for the last. Chains count, so every pair must
    be seen; but nothing of n x n numbers is held.
    """
    unit = torch.nn.functional.normalize(vectors, dim=1)
    labels, largest = np.arange(len(unit)), np.full(len(unit), -1.0)
    for start in range(0, len(unit), BLOCK):
        cosines = (unit[start : start + BLOCK] @ unit[start:].T).double().cpu().numpy()
        for row, of_row in enumerate(cosines):
            place, later = start + row, of_row[row + 1 :]
            largest[place] = later.max(initial=-1.0)
            if largest[place] >= tau:
                _unite(labels, np.append(place, place + 1 + np.flatnonzero(later >= tau)))
    return [np.flatnonzero(labels == label) for label in np.unique(labels)], largest


def _unite(labels: Positions, places: Positions) -> None:
    """The parts of these places become the first of them; a label is the first place of its part."""
    touched = labels[places]
    first = touched.min()
    if (touched != first).any():
        alike = np.zeros(len(labels), dtype=bool)
        alike[touched] = True
        labels[alike[labels]] = first
