"""Tier 3: when and how the number of clusters changes. A step proposes a regroup; it never changes arrays itself."""

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
from coterie.tiers.landmarks import MAX_COMPARED, Floats
from coterie.tiers.view import Statistic, View, own_updates


class ProcedureStep(Registered, ABC, family="procedure step"):
    """Base class of rules that change the number of clusters.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.tiers import ProcedureStep
        >>> from_text(ProcedureStep, "split-by-gap:rho=0.3").rho
        0.3
    """

    splits: ClassVar[bool] = False
    """Whether the step needs the update that each member made to its cluster's model."""
    onboards: ClassVar[bool] = False
    """Whether clients describe themselves before they first train, and the step assigns them by these descriptions."""
    by_halves: ClassVar[bool] = False
    """Whether clients describe each half of their samples, and the server keeps the descriptions of single clients."""
    reveals: ClassVar[Mapping[str, str]] = {}
    """Rows that clients send for this step only, and what each reveals to the server about a client."""
    not_private: ClassVar[str] = ""
    """Reason why the step cannot be part of a private run; empty if it can."""
    needs_ages: ClassVar[bool] = False
    """Whether the step uses the number of rounds for which a cluster has existed."""
    removes: ClassVar[bool] = False
    """Whether the step removes clusters. Removals are decided before any other step, with the clients' weights of the
    round, and applied after all of them (algorithm 2 of HCFL+)."""

    @property
    def keeps_onboarding_rows(self) -> bool:
        """Whether the server keeps every client's onboarding row, to compare only the clients that take part."""
        return False

    @abstractmethod
    def server_propose(self, view: View) -> Regroup | None:
        """Return the regroup to apply after a round, or None to keep the clusters."""

    def server_capped(self, most: int | None) -> ProcedureStep:
        """Return the step with this maximum number of clusters, unless it sets its own or has no such setting."""
        if most is None or getattr(self, "max_clusters", most) is not None:
            return self
        return replace(self, max_clusters=most)  # type: ignore[type-var]


@dataclass(frozen=True)
class Procedure:
    """The steps that run after every round, in this order; without steps the number of clusters is fixed.

    Example:
        >>> from coterie.tiers import Procedure, RemoveUnclaimed, SplitByGap
        >>> Procedure((SplitByGap(rho=0.3), RemoveUnclaimed())).steps[0].rho
        0.3
    """

    steps: tuple[ProcedureStep, ...] = ()


@dataclass(frozen=True)
class Cut:
    """A cluster that will be split in two."""

    k: int
    """Number of the cluster."""
    parts: Sequence[Positions]
    """Two parts of the members that answered."""
    why: str
    """Figures that led to the split, for the record."""


def split(view: View, cuts: Sequence[Cut], hard: bool, share: float = 1.0) -> Regroup | None:
    """Return the regroup of these splits: first parts keep the cluster's number, second parts get the next.

    Args:
        view: Knowledge of the server.
        cuts: Clusters that are split.
        hard: Whether the members of a part belong to it.
        share: Share of a member's weight that its part receives, if hard.
    """
    if not cuts:
        return None
    new = [NewCluster((j,)) for j in range(view.K)]
    for cut in cuts:
        new[cut.k] = NewCluster((cut.k,), "members", view.ids(cut.parts[0]))
        new.append(NewCluster((cut.k,), "members", view.ids(cut.parts[1])))
    return Regroup(tuple(new), "split", "; ".join(f"{cut.k}: {cut.why}" for cut in cuts), hard, share)


def split_each(view: View, cut: Callable[[View, int], Cut | None], most: int | None, hard: bool) -> Regroup | None:
    """Return the split of every cluster for which `cut` returns a cut, up to `most` clusters."""
    cuts = [found for k in range(view.K) if (found := cut(view, k)) is not None]
    return split(view, cuts if most is None else cuts[: max(0, most - view.K)], hard)


def _warming_up(view: View, warmup: int) -> str:
    """Return words about rounds in which no cluster is split yet; empty afterwards."""
    return f"; no split before round {warmup + 1}" if view.round < warmup else ""


def bipartition(distances: Floats) -> tuple[Positions, Positions]:
    """Return two parts by complete linkage, which keeps the largest distance inside a part small."""
    from scipy.cluster.hierarchy import cut_tree, linkage  # slow to import
    from scipy.spatial.distance import squareform

    tree = linkage(squareform(distances, checks=False), method="complete")
    labels = cut_tree(tree, n_clusters=2)[:, 0]  # exactly two parts, even if the last merges have equal distances
    first = labels == labels[0]  # the part of the first client keeps the number
    return np.flatnonzero(first), np.flatnonzero(~first)


@register("split-by-norm")
@dataclass(frozen=True)
class SplitByNorm(ProcedureStep):
    """CFL: splits a cluster by complete linkage if its mean update is small while some member's update is large.

    With distances of update cosines, complete linkage makes the largest similarity between the parts small.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import SplitByNorm, UpdateCosine
        >>> Tiered(procedure=(SplitByNorm(eps1=0.4, eps2=1.6),), distance=UpdateCosine()).tiers().adapts
        True
    """

    eps1: float
    """The norm of the mean update must be below this, or below this share of the largest one if `relative`."""
    eps2: float
    """The norm of the largest member's update must be above this."""
    relative: bool = False
    """Whether `eps1` is relative to the norm of the largest member's update."""
    warmup: int = 20
    """No split before this round."""
    least: int = 3
    """Smallest number of members of a cluster that may be split."""
    gate: float | None = None
    """gamma_max of the paper: split only if the largest cosine between the parts is below 1 - 2 gamma_max^2; None for
    no such condition."""
    max_clusters: int | None = None
    """Largest number of clusters; None for no limit."""
    hard: bool = True
    """Whether a split sets the clients' weights to zeros and ones; otherwise it halves them."""
    most: int = MAX_COMPARED
    """Largest number of members that are compared with each other; the others join the nearer part."""
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        return split_each(view, self._cut, self.max_clusters, self.hard)

    def _cut(self, view: View, k: int) -> Cut | None:
        members = view.members(k)
        if len(members) < self.least or view.changes is None:
            return None
        updates = own_updates(view.changes, members, k)
        mean = float(updates.mean(dim=0).norm())
        largest = float(updates.norm(dim=1).max())
        limit = self.eps1 * largest if self.relative else self.eps1
        text = f"mean update {mean:.3g}, split below {limit:.3g}; largest {largest:.3g}, split above {self.eps2:.3g}"
        text += _warming_up(view, self.warmup)
        view.statistics.append(Statistic(k, "mean update", mean, limit, "below", text, {"largest": largest}))
        if view.round < self.warmup or not (mean < limit and largest > self.eps2):
            return None
        compared, distances = view.pairwise(k, self.most)  # computed last, because most rounds return earlier
        first, second = bipartition(distances)
        nearest = float(distances[np.ix_(first, second)].min())
        if self.gate is not None and self.gate >= math.sqrt(max(0.0, nearest / 2)):
            return None
        why = f"mean update {mean:.3g}, largest {largest:.3g}; smallest distance between the parts {nearest:.3g}"
        return Cut(k, view.assign_to_nearest_part(k, (compared[first], compared[second])), why)


@register("split-by-gap")
@dataclass(frozen=True)
class SplitByGap(ProcedureStep):
    """HCFL+: splits the cluster with the largest distance inside if it exceeds the mean distance there by `rho`.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import SplitByGap, UpdateCosine
        >>> method = Tiered(procedure=(SplitByGap(rho=0.3),), distance=UpdateCosine())
        >>> method.tiers().adapts
        True
    """

    rho: float
    """Smallest difference of the largest and the mean distance between members that leads to a split."""
    hard: bool = False
    """Whether a split sets the clients' weights to zeros and ones; otherwise it halves them and training decides."""
    warmup: int = 0
    """No split before this round."""
    max_clusters: int | None = None
    """Largest number of clusters; None for no limit."""
    least: int = 2
    """Smallest number of members of a cluster that may be split."""
    most: int = MAX_COMPARED
    """Largest number of members that are compared with each other; with `hard` the others join the nearer part."""
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if self.max_clusters is not None and self.max_clusters <= view.K:
            return None
        found = [(k, *view.pairwise(k, self.most)) for k in range(view.K)]
        widest = max((one for one in found if len(one[1]) >= self.least), key=lambda one: one[2].max(), default=None)
        if widest is None:
            return None
        k, members, distances = widest
        gap = float(distances.max() - distances.mean())
        text = f"gap {gap:.3g}, rho {self.rho:g}{_warming_up(view, self.warmup)}"
        view.statistics.append(Statistic(k, "gap", gap, self.rho, "above", text))
        if view.round < self.warmup or gap < self.rho:
            return None
        why = f"largest distance {distances.max():.3g}, mean {distances.mean():.3g}: gap {gap:.3g}, rho {self.rho:g}"
        parts: Sequence[Positions] = [members[part] for part in bipartition(distances)]
        return split(view, [Cut(k, view.assign_to_nearest_part(k, parts) if self.hard else parts, why)], self.hard)


@register("remove-unclaimed")
@dataclass(frozen=True)
class RemoveUnclaimed(ProcedureStep):
    """Removes clusters to which no client gives its largest weight, but never the last cluster.

    Example:
        >>> from coterie.tiers import RemoveUnclaimed
        >>> RemoveUnclaimed(grace=5).grace
        5
    """

    grace: int = 2
    """Number of rounds in which a cluster that comes from a split is not removed."""
    splits: ClassVar[bool] = False
    needs_ages: ClassVar[bool] = True
    removes: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        sizes, too_young = view.sizes(), view.ages() < self.grace
        claimed = [k for k in range(view.K) if sizes[k] > 0 or too_young[k] or view.shares_first_rank(k)]
        if len(claimed) == view.K or not claimed:
            return None
        removed = sorted(set(range(view.K)) - set(claimed))
        why = f"no client gives {', '.join(map(str, removed))} its largest weight"
        return Regroup(tuple(NewCluster((k,)) for k in claimed), "remove", why)


def two_means(points: Floats) -> tuple[Positions, Positions]:
    """Return two parts of points (n, d) that are not all equal, by Lloyd's algorithm from the two farthest points.

    The result is not random, and neither part can become empty: each centre is nearest to some point of its part.
    """
    from scipy.cluster.vq import kmeans2  # slow to import
    from scipy.spatial.distance import cdist

    distances = cdist(points, points)
    ends = np.unravel_index(int(distances.argmax()), distances.shape)
    _, labels = kmeans2(points, points[list(ends)], iter=100, minit="matrix", missing="raise")
    first = labels == labels[0]  # the part of the first client keeps the number
    return np.flatnonzero(first), np.flatnonzero(~first)


def spectral_parts(distances: Floats) -> tuple[Positions, Positions]:
    """Return two parts by 2-means on the two leading eigenvectors of the cosines 1 - distances."""
    return two_means(np.linalg.eigh(1 - distances)[1][:, -2:])  # orthonormal columns, so the rows are not all equal


@register("split-by-spectrum")
@dataclass(frozen=True)
class SplitBySpectrum(ProcedureStep):
    """ICFL: splits a cluster whose updates point in different directions, by the leading eigenvectors of their cosines.

    A_ij is the cosine of the updates of members i and j that answered. alpha is the largest eigenvalue of A divided by
    n: 1 if all updates point in the same direction, 1/n if they are orthogonal. The cluster is split if alpha <
    alpha*(t) = 1 - (e/eps1)^(t/eps2), with eps2 = ln(1 - alpha0) / (1 - ln eps1) and t the round, by 2-means on the
    rows of the n x 2 matrix of the two leading eigenvectors.

    For all alpha0 and eps1, alpha*(t) rises to 1, and alpha is below 1 unless all updates point in the same direction.
    K therefore grows towards the number of clients unless `max_clusters` limits it.

    Example:
        >>> from coterie.tiers import SplitBySpectrum
        >>> round(SplitBySpectrum(alpha0=0.5, eps1=4.0).server_threshold(10), 3)
        0.884
    """

    alpha0: float
    """Number between 0 and 1; the larger it is, the more slowly alpha* rises."""
    eps1: float = 4.0
    """Base of the exponential in alpha*."""
    warmup: int = 0
    """No split before this round."""
    least: int = 2
    """Smallest number of members that answered for a cluster to be split."""
    max_clusters: int | None = None
    """Largest number of clusters; None for no limit."""
    hard: bool = True
    """Whether a split sets the clients' weights to zeros and ones; otherwise it halves them."""
    most: int = MAX_COMPARED
    """Largest number of members that are compared, also for alpha; the others join the nearer part."""
    splits: ClassVar[bool] = True

    def server_threshold(self, round_: int) -> float:
        """Return alpha*(t)."""
        eps2 = math.log(1 - self.alpha0) / (1 - math.log(self.eps1))
        return 1 - float((math.e / self.eps1) ** (round_ / eps2))

    def server_propose(self, view: View) -> Regroup | None:
        return split_each(view, self._cut, self.max_clusters, self.hard)

    def _cut(self, view: View, k: int) -> Cut | None:
        members, distances = view.pairwise(k, self.most)
        if len(members) < max(2, self.least):
            return None
        values, vectors = np.linalg.eigh(1 - distances)  # ascending
        alpha, threshold = float(values[-1]) / len(members), self.server_threshold(view.round)
        text = f"alpha {alpha:.3g}, split below {threshold:.3g}{_warming_up(view, self.warmup)}"
        view.statistics.append(Statistic(k, "alpha", alpha, threshold, "below", text))
        if view.round < self.warmup or alpha >= threshold:
            return None
        first, second = two_means(vectors[:, -2:])  # orthonormal columns: the rows differ
        why = f"alpha {alpha:.3g} is below {threshold:.3g}"
        return Cut(k, view.assign_to_nearest_part(k, (members[first], members[second])), why)


@register("merge-above")
@dataclass(frozen=True)
class MergeAbove(ProcedureStep):
    """StoCFL: every client starts as its own cluster; similar clusters merge, and no cluster is ever split.

    The portrait of a cluster is the sum of its members' onboarding rows, which has the direction of their mean. Pairs
    of clusters with cos >= tau merge. A chain of such pairs becomes one cluster, with the model of its largest part;
    ties go to the oldest. New clients have no model yet: if no older cluster joins them, they get the overall model. A
    client that joins a cluster in its first round therefore never needs a separate model.

    Example:
        >>> from coterie.tiers import MergeAbove
        >>> MergeAbove(tau=0.5).compare
        'sampled'
    """

    tau: float
    """Smallest cosine at which two clusters merge."""
    compare: Literal["sampled", "all"] = "sampled"
    """Members whose onboarding rows make a portrait. `sampled`: those that take part in the round; clusters without any
    are not compared, and the server keeps every client's row. `all`: all members so far; the server keeps sums only."""
    onboards: ClassVar[bool] = True

    @property
    def keeps_onboarding_rows(self) -> bool:
        return self.compare == "sampled"

    def server_propose(self, view: View) -> Regroup | None:
        if "anchor" not in view.rows:
            return None
        old, portraits = self._portraits(view)
        vectors = torch.cat([portraits[old], view.rows["anchor"]])
        if not len(vectors):
            return None
        parts, largest = linked_parts(vectors, self.tau)
        most = float(largest.max())
        text = f"largest cosine {most:.3g}, merged from tau {self.tau:g} on"
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
        rows, own = view.state.onboarding_rows[here], view.choice[here]
        sums = rows.new_zeros(view.K, rows.shape[1]).index_add(0, own, rows)
        return sorted(set(own.tolist())), sums

    @staticmethod
    def _reason(cosine: float, old: list[int], part: Positions) -> str:
        """Return the old clusters that merge, and their largest cosine."""
        return f"{', '.join(str(old[place]) for place in part if place < len(old))} merge, cosine {cosine:.3g}"

    @staticmethod
    def _cluster(view: View, old: list[int], part: Positions) -> NewCluster:
        """Return the cluster of a part: positions among the compared old clusters, followed by those of new clients."""
        parents = tuple(old[place] for place in part if place < len(old))
        return NewCluster(parents, "larger", view.ids(part[part >= len(old)] - len(old)))


def _first_parent(new: NewCluster) -> float:
    """Return the place of a cluster among others: that of its first parent, or after all that have one."""
    return new.parents[0] if new.parents else math.inf


BLOCK = 1000
"""Number of rows whose cosines with all later rows are in memory at a time."""


def linked_parts(vectors: Tensor, tau: float) -> tuple[list[Positions], Floats]:
    """Return the parts connected by pairs of rows (n, P) with cos >= tau, in the order of their first positions.

    The second value is the largest cosine of each row with a later row, (n,), -1 for the last one. Chains of pairs
    connect, so all pairs are compared, but no matrix of n x n numbers is stored.
    """
    unit = torch.nn.functional.normalize(vectors, dim=1)
    labels, largest = np.arange(len(unit)), np.full(len(unit), -1.0)
    for start in range(0, len(unit), BLOCK):
        cosines = (unit[start : start + BLOCK] @ unit[start:].T).double().cpu().numpy()
        for row, of_row in enumerate(cosines):
            place, later = start + row, of_row[row + 1 :]
            largest[place] = later.max(initial=-1.0)
            if largest[place] >= tau:
                _relabel(labels, np.append(place, place + 1 + np.flatnonzero(later >= tau)))
    return [np.flatnonzero(labels == label) for label in np.unique(labels)], largest


def _relabel(labels: Positions, places: Positions) -> None:
    """Join the parts of these positions; the label of a part is its first position."""
    touched = labels[places]
    first = touched.min()
    if (touched != first).any():
        alike = np.zeros(len(labels), dtype=bool)
        alike[touched] = True
        labels[alike[labels]] = first
