"""Convex clustering on a sparse graph of weighted edges: dual ascent on the edges, and a proof of the partition.

    min_u  1/2 sum_k n_k |u_k - c_k|^2  +  lam sum_{edges kj} w_kj |u_k - u_j|

With weights, the fusion of points depends on all other points, so the whole partition must be proved at once. Its
clusters become the nodes of a smaller problem, which is solved until its nodes are proved to be distinct. Within each
cluster, duals must exist that balance the forces from the other clusters. These forces are known up to the gap of the
smaller problem, for which a margin is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.server.clustering.convex_dual import FLOOR, POLISHED, ROUNDS, Kernels, best_kernels, largest_jump
from coterie.server.clustering.convex_nodes import ROUNDING
from coterie.server.clustering.convex_numpy import shortened
from coterie.server.clustering.partition import Labels, Points, by_first_appearance, totals

PASSES = 50
"""Number of passes between attempts of a proof; a pass is cheap, with one vector for each edge."""
ATTEMPT = 4
"""Number of attempts to prove a partition with the smaller problem, whose passes are not counted."""


@dataclass(frozen=True)
class Graph:
    """Graph of K nodes with E weighted edges."""

    centres: Points
    """Centre of each node, (K, d)."""
    sizes: Points
    """Number of points of each node, (K,)."""
    ends: Labels
    """Nodes of each edge, the smaller one first, (E, 2)."""
    weights: Points
    """Weight of each edge, (E,)."""

    @property
    def K(self) -> int:
        """Number of nodes."""
        return len(self.sizes)

    @cached_property
    def incidence(self) -> Any:
        """Sparse incidence matrix, (E, K): +1 for the first node of an edge, -1 for the second."""
        from scipy.sparse import csr_matrix  # slow to import

        E = len(self.ends)
        values = np.tile([1.0, -1.0], E)
        return csr_matrix((values, self.ends.ravel(), np.arange(0, 2 * E + 1, 2)), shape=(E, self.K))

    @cached_property
    def at_nodes(self) -> Any:
        """Transpose of the incidence matrix, (K, E), which sums over the edges of each node."""
        return self.incidence.T.tocsr()

    @cached_property
    def steps(self) -> Points:
        """Step size of each edge, (E,), with which the ascent never overshoots: |sum of z|^2 <= degree sum of |z|^2."""
        load = np.bincount(self.ends.ravel(), minlength=self.K) / self.sizes
        return np.asarray(1.0 / load[self.ends].sum(axis=1))

    @cached_property
    def components(self) -> Labels:
        """Connected component of each node, (K,)."""
        from scipy.sparse.csgraph import connected_components  # slow to import

        return by_first_appearance(connected_components(abs(self.at_nodes) @ abs(self.incidence), directed=False)[1])

    def points(self, duals: Points) -> Points:
        """Return the points u, (K, d), for duals (E, d)."""
        found: Points = self.centres - (self.at_nodes @ duals) / self.sizes[:, None]
        return found

    def value(self, duals: Points, lam: float) -> tuple[float, float]:
        """Return the objective and its gap, including rounding errors."""
        points = self.points(duals)
        apart = self.incidence @ points
        penalty = lam * float(self.weights @ np.linalg.norm(apart, axis=1))
        objective = 0.5 * float(self.sizes @ ((points - self.centres) ** 2).sum(axis=1)) + penalty
        return objective, max(penalty - float((duals * apart).sum()), 0.0) + FLOOR * objective

    def merged(self, labels: Labels, duals: Points) -> tuple[Graph, Points]:
        """Return the graph with clusters `labels` (K,) as nodes and parallel edges merged, and its duals."""
        K = int(labels.max()) + 1
        sizes = np.bincount(labels, weights=self.sizes, minlength=K).astype(np.float64)
        centres = totals(self.sizes[:, None] * self.centres, labels, K)[0] / sizes[:, None]
        ends = labels[self.ends]
        between = ends[:, 0] != ends[:, 1]
        sign = np.where(ends[:, 0] < ends[:, 1], 1.0, -1.0)[between, None]
        new, place = np.unique(np.sort(ends[between], axis=1), axis=0, return_inverse=True)
        place = place.reshape(-1)
        weights = np.bincount(place, weights=self.weights[between], minlength=len(new)).astype(np.float64)
        summed = totals(sign * duals[between], place, len(new))[0]
        return Graph(centres, sizes, new.reshape(-1, 2), weights), summed

    @cached_property
    def parts(self) -> list[tuple[Labels, Graph]]:
        """Nodes and graph of each connected component."""
        numbers = range(int(self.components.max()) + 1)
        return [(own := np.flatnonzero(self.components == number), self.part(own)) for number in numbers]

    def part(self, members: Labels) -> Graph:
        """Return the subgraph of the nodes `members` (s,), which must be in ascending order."""
        place = np.full(self.K, -1)
        place[members] = np.arange(len(members))
        ends = place[self.ends]
        inside = (ends >= 0).all(axis=1)
        return Graph(self.centres[members], self.sizes[members], ends[inside], self.weights[inside])

    def carried(self, demand: Points) -> Points:
        """Return the smallest duals, relative to the weights, with given sums at the nodes.

        The graph must be connected, so that the potential of one node can be fixed at zero.

        Args:
            demand: Sums of the duals at each node, (K, d); their total must be zero.

        Returns:
            Duals, (E, d).
        """
        height = np.zeros_like(demand)
        height[1:] = self._factors.solve(demand[1:])
        found: Points = self.weights[:, None] * (self.incidence @ height)
        return found

    @cached_property
    def _factors(self) -> Any:
        from scipy.sparse.linalg import splu  # slow to import

        weighted = self.incidence.multiply(self.weights[:, None])
        return splu((self.at_nodes @ weighted).tocsc()[1:, 1:])


def nearest_neighbours(points: Points, neighbours: int, decay: float) -> Graph:
    """Return the graph of nearest neighbours in either direction, with weights exp(-decay d^2 / mean d^2).

    Args:
        points: Points, (m, d).
        neighbours: Number of neighbours of each point.
        decay: Decay of the weights with the squared distance, relative to its mean over all edges.
    """
    from sklearn.neighbors import NearestNeighbors  # slow to import

    m = len(points)
    count = min(neighbours, m - 1)
    if count == 0:
        return Graph(points, np.ones(m), np.empty((0, 2), dtype=np.int64), np.empty(0))
    near = NearestNeighbors(n_neighbors=count).fit(points).kneighbors(return_distance=False)
    pairs = np.stack([np.repeat(np.arange(m), count), near.ravel()], axis=1)
    ends = np.unique(np.sort(pairs, axis=1), axis=0)
    squares = ((points[ends[:, 0]] - points[ends[:, 1]]) ** 2).sum(axis=1)
    mean = float(squares.mean())
    return Graph(points, np.ones(m), ends, np.exp(-decay * squares / mean) if mean > 0 else np.ones(len(ends)))


def lambda_range(graph: Graph) -> tuple[float, float]:
    """Return the range of lambdas in which the partition changes.

    Below the first lambda, more than half of the points are separate, since a point can be fused only with a neighbour
    within lam times the weights at both; equal points are ignored. From the second lambda on, every connected component
    is a single cluster.
    """
    pull = np.zeros(graph.K)
    np.add.at(pull, graph.ends.ravel(), np.repeat(graph.weights, 2))
    lengths = np.linalg.norm(graph.incidence @ graph.centres, axis=1)
    reached = np.full(graph.K, np.inf)
    np.minimum.at(reached, graph.ends.ravel(), np.repeat(lengths / pull[graph.ends].sum(axis=1), 2))
    near = reached[np.isfinite(reached) & (reached > 0)]
    return float(np.median(near)) if len(near) else 0.0, max(_fusing_lambda(part) for _, part in graph.parts)


def _fusing_lambda(part: Graph) -> float:
    """Return a lambda from which on a connected component is one cluster, since the duals of `carried` are feasible."""
    if part.K == 1:
        return 0.0
    duals = part.carried(part.sizes[:, None] * (part.centres - part.sizes @ part.centres / part.sizes.sum()))
    return float((np.linalg.norm(duals, axis=1) / part.weights).max())


@dataclass(frozen=True)
class GraphSolution:
    """Solution for one lambda."""

    labels: Labels
    """Cluster of each point, (m,); a guess unless certified."""
    points: Points
    """Solution u of each point, (m, d)."""
    objective: float
    """Objective of the solution."""
    gap: float
    """Upper bound of the difference between the objective and the minimum."""
    certified: bool
    """Whether the labels are exactly the clusters."""
    passes: int
    """Number of passes over all edges."""


def solve_graph(graph: Graph, lam: float, budget: int) -> GraphSolution:
    """Solve the problem for a lambda, separately for each connected component, each with at most `budget` passes."""
    labels, points = np.empty(graph.K, dtype=np.int64), graph.centres.copy()
    objective, gap, certified, passes, K = 0.0, 0.0, True, 0, 0
    for members, part in graph.parts:
        found = _solve_part(part, lam, budget)
        labels[members], points[members] = found.labels + K, found.points
        K += int(found.labels.max()) + 1
        objective, gap, passes = objective + found.objective, gap + found.gap, max(passes, found.passes)
        certified = certified and found.certified
    return GraphSolution(by_first_appearance(labels), points, objective, gap, certified, passes)


def _solve_part(graph: Graph, lam: float, budget: int) -> GraphSolution:
    ascent = EdgeAscent(graph, lam, np.zeros((len(graph.ends), graph.centres.shape[1])))
    if _fusing_lambda(graph) <= lam * (1 + ROUNDING):
        return _expanded(ascent, np.zeros(graph.K, dtype=np.int64), ascent.merged(np.zeros(graph.K, dtype=np.int64)))
    labels = np.arange(graph.K)
    while ascent.passes < budget:
        ascent.run(PASSES)
        last, labels = labels, _candidate(ascent)
        proved = _proof(ascent, labels) if (last == labels).all() else None
        if proved is not None:
            return _expanded(ascent, labels, proved)
    objective, gap = graph.value(ascent.duals, lam)
    return GraphSolution(labels, graph.points(ascent.duals), objective, gap, False, ascent.passes)


def _expanded(ascent: EdgeAscent, labels: Labels, small: EdgeAscent) -> GraphSolution:
    """Return the solution of the smaller problem in terms of the points."""
    graph = ascent.graph
    objective, gap = small.graph.value(small.duals, small.lam)
    within = 0.5 * float(graph.sizes @ ((graph.centres - small.graph.centres[labels]) ** 2).sum(axis=1))
    points = small.graph.points(small.duals)[labels]
    return GraphSolution(labels, points, objective + within, gap, True, ascent.passes)


class EdgeAscent:
    """State of the accelerated dual ascent on the edges.

    Args:
        graph: The graph.
        lam: The lambda.
        duals: Initial duals, (E, d).
        kernels: Compiled or plain passes; None: the faster ones that are available.
    """

    def __init__(self, graph: Graph, lam: float, duals: Points, kernels: Kernels | None = None) -> None:
        self.graph, self.lam, self.duals = graph, lam, duals
        self.before, self.inertia, self.passes = duals, 1.0, 0
        self.kernels = kernels or best_kernels()

    def run(self, passes: int) -> None:
        """Take steps of all duals with momentum, which is reset when it points against the step."""
        self.passes += passes
        graph = self.graph
        self.duals, self.before, self.inertia = self.kernels.edge_ascent(
            self.duals,
            self.before,
            graph.centres,
            graph.sizes,
            graph.ends,
            graph.steps,
            self.lam * graph.weights,
            self.inertia,
            passes,
        )

    def merged(self, labels: Labels) -> EdgeAscent:
        """Return the state of the smaller problem with clusters `labels` (K,) as nodes."""
        graph, duals = self.graph.merged(labels, self.duals)
        return EdgeAscent(graph, self.lam, duals, self.kernels)


def _candidate(ascent: EdgeAscent) -> Labels:
    """Return the partition, (K,), whose clusters are linked by edges below the largest jump of the edge lengths."""
    from scipy.sparse import coo_matrix  # slow to import
    from scipy.sparse.csgraph import connected_components

    graph = ascent.graph
    lengths = np.linalg.norm(graph.incidence @ graph.points(ascent.duals), axis=1)
    reach = math.sqrt(2 * graph.value(ascent.duals, ascent.lam)[1])
    cut = largest_jump(np.sort(lengths), reach, float(np.abs(graph.centres).max()))
    near = graph.ends[lengths <= cut]
    linked = coo_matrix((np.ones(len(near)), near.T), shape=(graph.K, graph.K))
    return by_first_appearance(connected_components(linked, directed=False)[1])


def _proof(ascent: EdgeAscent, labels: Labels) -> EdgeAscent | None:
    """Return the solved smaller problem of the clusters `labels` if it proves the partition, else None."""
    small = ascent.merged(labels)
    graph = small.graph
    for _ in range(ATTEMPT):
        objective, gap = graph.value(small.duals, small.lam)
        near_enough = gap <= POLISHED * objective and _all_apart(graph.points(small.duals), graph.sizes, gap)
        if near_enough and _held_together(ascent, labels, small, gap):
            return small
        small.run(PASSES)
    return None


def _all_apart(points: Points, sizes: Points, gap: float) -> bool:
    from scipy.spatial.distance import pdist  # slow to import

    one, other = np.triu_indices(len(points), 1)
    return bool((pdist(points, "sqeuclidean") > gap * (1 / sizes[one] + 1 / sizes[other])).all())


def _held_together(ascent: EdgeAscent, labels: Labels, small: EdgeAscent, gap: float) -> bool:
    """Return whether duals within each cluster balance the forces from other clusters, including their uncertainty."""
    graph, lam = ascent.graph, ascent.lam
    demand, doubt = _demand(graph, labels, small, gap)
    inside = labels[graph.ends[:, 0]] == labels[graph.ends[:, 1]]
    for cluster in np.flatnonzero(np.bincount(labels) > 1):
        members = np.flatnonzero(labels == cluster)
        edges = inside & (labels[graph.ends[:, 0]] == cluster)
        wanted = demand[members] - demand[members].mean(axis=0)
        if not _carries(graph.part(members), ascent.duals[edges], wanted, float(doubt[members].sum()), lam):
            return False
    return True


def _demand(graph: Graph, labels: Labels, small: EdgeAscent, gap: float) -> tuple[Points, Points]:
    """Return the required sums of the duals within clusters at each node, (K, d), and bounds of their errors, (K,).

    The error of u in the smaller problem is at most sqrt(gap / size), and that of the direction of a difference v at
    most twice the error divided by |v|.
    """
    points = small.graph.points(small.duals)
    error = np.sqrt(gap / small.graph.sizes)[labels]
    demand, doubt = graph.sizes[:, None] * (graph.centres - points[labels]), graph.sizes * error
    one, other = graph.ends.T
    between = labels[one] != labels[other]
    one, other, pull = one[between], other[between], small.lam * graph.weights[between]
    apart = points[labels[one]] - points[labels[other]]
    length = np.linalg.norm(apart, axis=1)
    force, unsure = (pull / length)[:, None] * apart, 2 * pull * (error[one] + error[other]) / length
    np.add.at(demand, one, -force)
    np.add.at(demand, other, force)
    np.add.at(doubt, one, unsure)
    np.add.at(doubt, other, unsure)
    return demand, doubt


def _carries(part: Graph, duals: Points, demand: Points, doubt: float, lam: float) -> bool:
    """Return whether there are duals with the required sums that are shorter than their bounds by at least `doubt`.

    If the required sums have a total error of `doubt`, a correction along a spanning tree changes no dual by more than
    that.

    Args:
        part: Graph of the nodes of a cluster.
        duals: Initial duals.
        demand: Required sums at each node.
        doubt: Bound of the total error of the required sums.
        lam: The lambda.
    """
    for r in range(ROUNDS + 1):
        if r > 0:
            duals = shortened(duals, (1.0 - 10.0 ** (-1.0 - r / 5.0)) * lam * part.weights)
        duals = duals + part.carried(demand - part.at_nodes @ duals)
        if (np.linalg.norm(duals, axis=1) + doubt <= lam * part.weights).all():
            return True
    return False
