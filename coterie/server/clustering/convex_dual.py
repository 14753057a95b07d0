"""Dual ascent for convex clustering with uniform weights until the partition is certified.

For nodes with centres c_k and n_k points the problem is

    min_u  1/2 sum_k n_k |u_k - c_k|^2  +  lam sum_{k<j} n_k n_j |u_k - u_j|,

with duals z_kj, |z_kj| <= lam n_k n_j, and u_k = c_k - (sum of the duals of k) / n_k.
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
"""Number of passes before the first attempt of a proof, since clear fusions are found early, and between attempts."""
PATIENCE = 100
"""Number of passes without a new proof after which the ascent is accelerated and lambda may increase slightly."""
ROUNDS = 20
"""Maximum number of corrections of the duals in a proof; sets with some margin needed 0 to 14."""
FLOOR = 1e-14
"""Error of the gap due to rounding, as a share of the objective."""
NOISE = 1e-12
"""Distances that are attributed to rounding, as a share of the largest coordinate."""
POLISHED = 1e-8
"""Required relative gap of the solution once the partition is certified."""


class Kernels(Protocol):
    """Passes over pairs of nodes or edges; see `convex_numpy` for their description."""

    CYCLIC_LIMIT: int

    def edge_ascent(
        self,
        duals: Points,
        before: Points,
        centres: Points,
        sizes: Points,
        ends: Labels,
        steps: Points,
        radii: Points,
        inertia: float,
        passes: int,
    ) -> tuple[Points, Points, float]: ...
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
    """Return the kernels of Numba if it is installed, else the slower ones of NumPy with the same results."""
    if importlib.util.find_spec("numba"):
        from coterie.server.clustering import convex_numba

        return convex_numba
    from coterie.server.clustering import convex_numpy

    return convex_numpy


@dataclass(frozen=True)
class Solution:
    """Solution for one lambda."""

    lam: float
    """The lambda."""
    nodes: Nodes
    """Partition: the points of each node are proved to be fused at `proved_lam`."""
    points: Points
    """Solution u of each node at `lam`, (K, d)."""
    objective: float
    """Objective of the solution."""
    gap: float
    """Upper bound of the difference between the objective and the minimum."""
    certified: bool
    """Whether the nodes are also proved to be distinct, so that they are exactly the clusters at `proved_lam`."""
    proved_lam: float
    """Lambda of the proofs."""
    passes: int
    """Number of passes over all pairs of nodes."""


class Ascent:
    """State of the dual ascent; its buffers are allocated once, although the number of nodes decreases.

    Args:
        nodes: Initial nodes.
        lam: Initial lambda.
        kernels: Implementation of the passes.
    """

    def __init__(self, nodes: Nodes, lam: float, kernels: Kernels) -> None:
        self.nodes, self.lam, self.kernels = nodes, lam, kernels
        pairs = nodes.K * (nodes.K - 1) // 2
        self.duals = np.zeros((pairs, nodes.centres.shape[1]))
        self.before = np.zeros_like(self.duals)
        self.passes = self.restarted_at = 0
        self._restart()

    def _restart(self) -> None:
        """Compute the points from the duals and reset the momentum."""
        self.sums = self.kernels.node_sums(self.duals, self.nodes.K)
        self.points = self._points()
        self.points_before, self.inertia = self.points, 1.0

    def _points(self) -> Points:
        return self.nodes.centres - self.sums / self.nodes.sizes[:, None]

    def run(self, passes: int) -> None:
        """Do passes of cyclic ascent for few nodes, or of accelerated ascent for many nodes or after many passes."""
        self.passes += passes
        if self.nodes.K < self.kernels.CYCLIC_LIMIT and self.passes - self.restarted_at <= PATIENCE:
            for _ in range(passes):
                self.kernels.cyclic_pass(self.duals, self.points, self.nodes.sizes, self.lam)
            self._restart()  # compute the points again, since incremental updates accumulate rounding errors
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
        """Merge nodes with equal labels; the duals between the new nodes are sums of the old ones."""
        if int(labels.max()) + 1 == self.nodes.K:
            return
        self.nodes = self.nodes.merged(labels)
        self.kernels.merge_duals(self.duals, labels, self.before)
        pairs = self.nodes.K * (self.nodes.K - 1) // 2
        self.duals, self.before = self.before[:pairs], self.duals[:pairs]
        self.restarted_at = self.passes
        self._restart()

    def move(self, lam: float) -> None:
        """Change lambda and scale the duals accordingly, since most of them have the maximum length."""
        self.duals *= lam / self.lam
        self.lam, self.restarted_at = lam, self.passes
        self._restart()

    def value(self) -> tuple[float, float]:
        """Return the objective over the nodes and its gap, including rounding errors."""
        sizes, moved = self.nodes.sizes, self.points - self.nodes.centres
        penalty = self.lam * self.kernels.total_distance(self.points, sizes)
        objective = 0.5 * float(sizes @ (moved**2).sum(axis=1)) + penalty
        return objective, max(penalty - float((self.sums * self.points).sum()), 0.0) + FLOOR * objective


def solve(ascent: Ascent, lam: float, scatter: float, budget: int, slack: float) -> Solution:
    """Solve the problem for a lambda: fuse and separate nodes until the partition is certified.

    Args:
        ascent: State at a lambda that is at most `lam`; nodes that are fused there are also fused at `lam`.
        lam: The lambda.
        scatter: Sum of squared distances of all points to their mean.
        budget: Maximum number of passes.
        slack: Maximum relative increase of lambda in the proof, if there is no proof at `lam` itself.
    """
    first_pass = ascent.passes
    ascent.move(max(lam, ascent.lam))
    ascent.merge(screened(ascent.nodes, ascent.lam))
    certified = _prove(ascent, lam * (1 + slack), budget)
    passes, proved_lam = ascent.passes - first_pass, ascent.lam
    final = ascent if proved_lam == lam else _copied(ascent, lam)
    _polish(final, budget - passes)
    objective, gap = final.value()
    within = 0.5 * max(scatter - float(final.nodes.sizes @ (final.nodes.centres**2).sum(axis=1)), 0.0)
    # duals that fuse a node at proved_lam are too long at lam; shortening them costs this much of the dual objective
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
    """Merge candidate sets that are proved to be fused at the present lambda, or at one up to the limit."""
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
    """Return sets of nodes that may be fused.

    The first sets are linked by distances that the gap does not prove to be positive, further ones by distances below
    the largest jump. The nodes of each set are in ascending order.
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
    """Return the members of each cluster in ascending order."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(labels[order])) + 1)


def largest_jump(lengths: Points, reach: float, scale: float) -> float:
    """Return the length before the largest relative jump in ascending lengths.

    Distances within fused sets converge to zero and others do not, so the jump finally separates them.

    Args:
        lengths: Lengths in ascending order.
        reach: Length above which nodes are proved to be distinct.
        scale: Largest coordinate; much smaller lengths are attributed to rounding.

    Returns:
        The length, or -1 if no length is below `reach`.
    """
    lengths = np.maximum(lengths, NOISE * scale)
    below = int(np.searchsorted(lengths, reach, side="right"))
    if below == 0:
        return -1.0
    jumps = np.append(lengths[1:], max(reach, lengths[-1]))[:below] / lengths[:below]
    return float(lengths[int(jumps.argmax())])


def _copied(ascent: Ascent, lam: float) -> Ascent:
    """Return a copy of the state at a slightly smaller lambda."""
    found = Ascent(ascent.nodes, ascent.lam, ascent.kernels)
    found.duals[:] = ascent.duals
    found.move(lam)
    return found


def _polish(ascent: Ascent, budget: int) -> None:
    """Continue the ascent until the relative gap is at most `POLISHED`."""
    end = ascent.passes + budget
    while ascent.passes < end:
        objective, gap = ascent.value()
        if gap <= POLISHED * objective:
            break
        ascent.run(min(PASSES, end - ascent.passes))
