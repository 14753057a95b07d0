"""Dual ascent for convex clustering with uniform weights until the partition is proved.

Over nodes with centres c_k and n_k points the problem is

    min_u  1/2 sum_k n_k |u_k - c_k|^2  +  lam sum_{k<j} n_k n_j |u_k - u_j|,

with duals z_kj, |z_kj| <= lam n_k n_j, and u_k = c_k - (sum of the z of k) / n_k.
"""

from __future__ import annotations

import importlib.util
import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from coterie.server.clustering.convex_nodes import ROUNDING, Nodes, screened
from coterie.server.clustering.partition import Labels, Points

FIRST_PASSES, PASSES = 5, 10
"""Between two looks at the proof: at first, when sets far from the edge of fusing show themselves early, and then."""
PATIENCE = 100
"""Passes without a new proof after which ascent is accelerated, and a set may be fused at a slightly larger lambda."""
ROUNDS = 20
"""At most so often the duals inside a set are cut and corrected in search of a proof. Sets with some margin needed 0
to 14."""
FLOOR = 1e-14
"""What rounding may hide of the gap, as a share of the objective."""
NOISE = 1e-12
"""Distances below this share of the largest coordinate are rounding."""
POLISHED = 1e-8
"""The relative gap at which the points are near enough once the partition is proved."""


class Kernels(Protocol):
    """The passes over pairs of nodes; `convex_numpy` describes them."""

    CYCLIC_LIMIT: int

    def cyclic_pass(self, duals: Points, points: Points, sizes: Points, lam: float) -> None: ...
    def accelerated_pass(
        self, duals: Points, before: Points, points: Points, sizes: Points, lam: float, momentum: float
    ) -> tuple[Points, float]: ...
    def node_sums(self, duals: Points, K: int) -> Points: ...
    def total_distance(self, points: Points, sizes: Points) -> float: ...
    def all_apart(self, points: Points, sizes: Points, gap: float) -> bool: ...
    def merge_duals(self, duals: Points, labels: Labels, out: Points) -> None: ...
    def fusion_ratio(
        self, duals: Points, centres: Points, sizes: Points, members: Labels, lam: float, rounds: int
    ) -> float: ...


def best_kernels() -> Kernels:
    """Those of Numba if it is installed, else those of NumPy: slower, with the same results."""
    if importlib.util.find_spec("numba"):
        from coterie.server.clustering import convex_numba

        return convex_numba
    from coterie.server.clustering import convex_numpy

    return convex_numpy


@dataclass(frozen=True)
class Solution:
    """What is known about one lambda."""

    lam: float
    nodes: Nodes
    """The partition: every node is proved to be fused at `proved_lam`."""
    points: Points
    """(K, d) u of each node at `lam`."""
    objective: float
    """The objective at `points`, an upper bound of the least one."""
    gap: float
    """The objective is at most so much above the least one."""
    certified: bool
    """Whether the nodes are also proved to be distinct at `proved_lam`, so that they are exactly the clusters there."""
    proved_lam: float
    passes: int
    """Passes over all pairs of nodes."""


class Ascent:
    """Nodes and their duals, between passes. Buffers are taken once and keep serving as nodes become fewer."""

    def __init__(self, nodes: Nodes, lam: float, kernels: Kernels) -> None:
        self.nodes, self.lam, self.kernels = nodes, lam, kernels
        pairs = nodes.K * (nodes.K - 1) // 2
        self.duals = np.zeros((pairs, nodes.centres.shape[1]))
        self.before = np.zeros_like(self.duals)
        self.passes = self.begun_at = 0
        self._begin()

    def _begin(self) -> None:
        """Points from the duals, without momentum."""
        self.sums = self.kernels.node_sums(self.duals, self.nodes.K)
        self.points = self._points()
        self.points_before, self.inertia = self.points, 1.0

    def _points(self) -> Points:
        return self.nodes.centres - self.sums / self.nodes.sizes[:, None]

    def run(self, passes: int) -> None:
        """So many passes: of cyclic ascent for few nodes, of accelerated ascent for many or if no end is in sight."""
        self.passes += passes
        if self.nodes.K < self.kernels.CYCLIC_LIMIT and self.passes - self.begun_at <= PATIENCE:
            for _ in range(passes):
                self.kernels.cyclic_pass(self.duals, self.points, self.nodes.sizes, self.lam)
            self._begin()  # afresh, since the points were kept by adding up changes
        else:
            for _ in range(passes):
                self._accelerated()

    def _accelerated(self) -> None:
        inertia = (1 + math.sqrt(1 + 4 * self.inertia**2)) / 2
        momentum = (self.inertia - 1) / inertia
        ahead = self.points + momentum * (self.points - self.points_before)
        self.sums, against = self.kernels.accelerated_pass(
            self.duals, self.before, ahead, self.nodes.sizes, self.lam, momentum
        )
        self.points_before, self.points = self.points, self._points()
        self.inertia = 1.0 if against > 0 else inertia

    def merge(self, labels: Labels) -> None:
        """Puts nodes with equal labels into one; duals between the new nodes are sums, so the points go on from
        there."""
        if int(labels.max()) + 1 == self.nodes.K:
            return
        self.nodes = self.nodes.merged(labels)
        self.kernels.merge_duals(self.duals, labels, self.before)
        pairs = self.nodes.K * (self.nodes.K - 1) // 2
        self.duals, self.before = self.before[:pairs], self.duals[:pairs]
        self.begun_at = self.passes
        self._begin()

    def move(self, lam: float) -> None:
        """Goes to another lambda; duals are stretched with it, since most of them are as long as they may be."""
        self.duals *= lam / self.lam
        self.lam, self.begun_at = lam, self.passes
        self._begin()

    def value(self) -> tuple[float, float]:
        """Objective over the nodes and its gap, with what rounding may hide."""
        sizes, moved = self.nodes.sizes, self.points - self.nodes.centres
        penalty = self.lam * self.kernels.total_distance(self.points, sizes)
        objective = 0.5 * float(sizes @ (moved**2).sum(axis=1)) + penalty
        return objective, max(penalty - float((self.sums * self.points).sum()), 0.0) + FLOOR * objective


def solve(ascent: Ascent, lam: float, scatter: float, budget: int, slack: float) -> Solution:
    """Fuses and separates nodes until the partition is proved or `budget` passes are over.

    `ascent` is at a lambda at most `lam`, and its nodes are fused there, so they are fused here. Where no proof comes
    at `lam` itself, the nodes may be those of a lambda up to lam (1 + slack); `Solution.proved_lam` says which.
    `scatter` is the sum of squared distances of all points to their mean.
    """
    begun = ascent.passes
    ascent.move(max(lam, ascent.lam))
    ascent.merge(screened(ascent.nodes, ascent.lam))
    certified = _prove(ascent, lam * (1 + slack), budget)
    passes, proved_lam = ascent.passes - begun, ascent.lam
    final = ascent if proved_lam == lam else _copied(ascent, lam)
    _polish(final, budget - passes)
    objective, gap = final.value()
    within = 0.5 * max(scatter - float(final.nodes.sizes @ (final.nodes.centres**2).sum(axis=1)), 0.0)
    # Duals that hold a node together at proved_lam are too long at lam; cut to size they lose this much of the dual.
    gap += (1 - lam / proved_lam) ** 2 * within
    return Solution(lam, final.nodes, final.points, objective + within, gap, certified, proved_lam, passes)


def _prove(ascent: Ascent, lam_limit: float, budget: int) -> bool:
    end, last_proof = ascent.passes + budget, ascent.passes
    passes = FIRST_PASSES
    while ascent.nodes.K > 1:
        _, gap = ascent.value()
        if ascent.kernels.all_apart(ascent.points, ascent.nodes.sizes, gap):
            return True
        if ascent.passes >= end:
            return False
        ascent.run(min(passes, end - ascent.passes))
        passes = PASSES
        limit = lam_limit if ascent.passes - last_proof >= PATIENCE else ascent.lam
        if _fuse(ascent, limit):
            last_proof = ascent.passes
    return True


def _fuse(ascent: Ascent, lam_limit: float) -> bool:
    """Merges candidate sets that are proved to be fused at the present lambda, or at one up to the limit."""
    nodes, lam = ascent.nodes, ascent.lam
    labels, free = np.arange(nodes.K), np.ones(nodes.K, dtype=bool)
    for members in _candidates(ascent):
        if not free[members].all():
            continue
        ratio = ascent.kernels.fusion_ratio(ascent.duals, nodes.centres, nodes.sizes, members, ascent.lam, ROUNDS)
        needed = ascent.lam * (ratio if ratio > 1 + ROUNDING else 1.0)
        if needed <= lam_limit:
            labels[members], free[members] = members[0], False
            lam = max(lam, needed)
    if free.all():
        return False
    ascent.merge(np.unique(labels, return_inverse=True)[1])
    if lam > ascent.lam:
        ascent.move(lam)
    ascent.merge(screened(ascent.nodes, ascent.lam))
    return True


def _candidates(ascent: Ascent) -> list[Labels]:
    """Sets of nodes, ascending, that may be fused: the largest that are not proved to be distinct, then smaller ones.

    The first are linked by distances that the gap does not exclude, the second by those below the largest jump.
    """
    from scipy.cluster.hierarchy import fcluster, linkage  # slow to import
    from scipy.spatial.distance import pdist

    _, gap = ascent.value()
    tree = linkage(pdist(ascent.points), "single")
    reach = math.sqrt(2 * gap / float(ascent.nodes.sizes.min()))
    cuts = (reach, largest_jump(tree[:, 2], reach, float(np.abs(ascent.nodes.centres).max())))
    sets = [members for cut in cuts for members in _members(fcluster(tree, cut, "distance")) if len(members) > 1]
    return list({members.tobytes(): members for members in sets}.values())


def _members(labels: Labels) -> list[Labels]:
    """The members of each cluster, ascending."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def largest_jump(lengths: Points, reach: float, scale: float) -> float:
    """The length before the largest jump in ascending lengths, as a factor; -1 if none is within `reach`.

    Distances inside fused sets go to zero and the others do not, so in the end the jump shows which are which. Lengths
    beyond `reach` are proved to be distinct; those far below `scale` are rounding, and jumps among them mean nothing.
    """
    lengths = np.maximum(lengths, NOISE * scale)
    below = int(np.searchsorted(lengths, reach, side="right"))
    if below == 0:
        return -1.0
    jumps = np.append(lengths[1:], max(reach, lengths[-1]))[:below] / lengths[:below]
    return float(lengths[int(jumps.argmax())])


def _copied(ascent: Ascent, lam: float) -> Ascent:
    """The same nodes at a lambda a little smaller."""
    found = Ascent(ascent.nodes, ascent.lam, ascent.kernels)
    found.duals[:] = ascent.duals
    found.move(lam)
    return found


def _polish(ascent: Ascent, budget: int) -> None:
    """Brings the points nearer to the optimum where the proof needed less than `POLISHED`."""
    end = ascent.passes + budget
    while ascent.passes < end:
        objective, gap = ascent.value()
        if gap <= POLISHED * objective:
            break
        ascent.run(min(PASSES, end - ascent.passes))
