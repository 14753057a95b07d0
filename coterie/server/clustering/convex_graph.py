"""Convex clustering on a sparse graph of weighted edges: ascent on the edges, and a proof of the partition.

    min_u  1/2 sum_k n_k |u_k - c_k|^2  +  lam sum_{edges kj} w_kj |u_k - u_j|

What is fused depends on the rest here, so the proof is one of the whole partition: its clusters are put into nodes,
the small problem is solved until its nodes are proved to be distinct, and inside every cluster duals are sought that
hold its points together against the pulls from outside. The pulls are known up to the small problem's gap, for which
room is left.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from coterie.server.clustering.convex_dual import FLOOR, POLISHED, ROUNDS, largest_jump
from coterie.server.clustering.convex_nodes import ROUNDING
from coterie.server.clustering.convex_numpy import shortened
from coterie.server.clustering.partition import Labels, Points, by_first_appearance, totals

PASSES = 50
"""Between two looks at the proof. Passes are cheap: as many vectors as there are edges."""
ATTEMPT = 4
"""A proof is tried at so many looks at the small problem before the whole problem goes on; its passes are not
counted."""


@dataclass(frozen=True)
class Graph:
    """Nodes with centres (K, d), sizes (K,), and edges: ends (E, 2), the first smaller, and weights (E,)."""

    centres: Points
    sizes: Points
    ends: Labels
    weights: Points

    @property
    def K(self) -> int:
        """The number of nodes."""
        return len(self.sizes)

    @cached_property
    def incidence(self) -> Any:
        """Sparse (E, K): +1 at an edge's first end, -1 at its second."""
        from scipy.sparse import csr_matrix  # slow to import

        E = len(self.ends)
        values = np.tile([1.0, -1.0], E)
        return csr_matrix((values, self.ends.ravel(), np.arange(0, 2 * E + 1, 2)), shape=(E, self.K))

    @cached_property
    def steps(self) -> Points:
        """(E,) steps of the ascent: with them the dual never overshoots, since |sum of z|^2 <= degree sum of |z|^2."""
        load = np.bincount(self.ends.ravel(), minlength=self.K) / self.sizes
        return np.asarray(1.0 / load[self.ends].sum(axis=1))

    @cached_property
    def components(self) -> Labels:
        """(K,) the connected part of each node."""
        from scipy.sparse.csgraph import connected_components  # slow to import

        return by_first_appearance(connected_components(abs(self.incidence.T) @ abs(self.incidence), directed=False)[1])

    def points(self, duals: Points) -> Points:
        """(K, d) u that belongs to duals (E, d)."""
        found: Points = self.centres - (self.incidence.T @ duals) / self.sizes[:, None]
        return found

    def value(self, duals: Points, lam: float) -> tuple[float, float]:
        """Objective and gap, with what rounding may hide."""
        points = self.points(duals)
        apart = self.incidence @ points
        penalty = lam * float(self.weights @ np.linalg.norm(apart, axis=1))
        objective = 0.5 * float(self.sizes @ ((points - self.centres) ** 2).sum(axis=1)) + penalty
        return objective, max(penalty - float((duals * apart).sum()), 0.0) + FLOOR * objective

    def merged(self, labels: Labels, duals: Points) -> tuple[Graph, Points]:
        """The clusters `labels` (K,) as nodes, parallel edges put into one, and their duals."""
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
        """The connected parts: the nodes of each, and its graph."""
        numbers = range(int(self.components.max()) + 1)
        return [(own := np.flatnonzero(self.components == number), self.part(own)) for number in numbers]

    def part(self, members: Labels) -> Graph:
        """The nodes `members` (s,), ascending, with the edges among them."""
        place = np.full(self.K, -1)
        place[members] = np.arange(len(members))
        ends = place[self.ends]
        inside = (ends >= 0).all(axis=1)
        return Graph(self.centres[members], self.sizes[members], ends[inside], self.weights[inside])

    def carried(self, demand: Points) -> Points:
        """Duals (E, d) whose sums at the nodes are `demand` (K, d), which sums to zero: the least ones, relative to
        weights.

        The graph is connected, so one node can be held at zero.
        """
        height = np.zeros_like(demand)
        height[1:] = self._factors.solve(demand[1:])
        found: Points = self.weights[:, None] * (self.incidence @ height)
        return found

    @cached_property
    def _factors(self) -> Any:
        from scipy.sparse.linalg import splu  # slow to import

        weighted = self.incidence.multiply(self.weights[:, None])
        return splu((self.incidence.T @ weighted).tocsc()[1:, 1:])


def nearest_neighbours(points: Points, neighbours: int, decay: float) -> Graph:
    """Edges to each point's nearest `neighbours`, in either direction, with weights exp(-decay d^2 / mean d^2 of the
    edges)."""
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
    """Below the first lambda more than half of the points are alone; from the second on every connected part is one
    cluster.

    A point can only be fused with a neighbour that is within lam times the weights at both; equal points are left
    aside.
    """
    pull = np.zeros(graph.K)
    np.add.at(pull, graph.ends.ravel(), np.repeat(graph.weights, 2))
    lengths = np.linalg.norm(graph.incidence @ graph.centres, axis=1)
    reached = np.full(graph.K, np.inf)
    np.minimum.at(reached, graph.ends.ravel(), np.repeat(lengths / pull[graph.ends].sum(axis=1), 2))
    near = reached[np.isfinite(reached) & (reached > 0)]
    return float(np.median(near)) if len(near) else 0.0, max(_fusing_lambda(part) for _, part in graph.parts)


def _fusing_lambda(part: Graph) -> float:
    """A lambda from which on a connected part is one cluster: the duals of `carried` hold it together and are short
    enough."""
    if part.K == 1:
        return 0.0
    duals = part.carried(part.sizes[:, None] * (part.centres - part.sizes @ part.centres / part.sizes.sum()))
    return float((np.linalg.norm(duals, axis=1) / part.weights).max())


@dataclass(frozen=True)
class GraphSolution:
    """What is known about one lambda."""

    labels: Labels
    """(m,) the cluster of each point; a guess unless certified."""
    points: Points
    """(m, d) u of each point."""
    objective: float
    gap: float
    certified: bool
    passes: int


def solve_graph(graph: Graph, lam: float, budget: int) -> GraphSolution:
    """Every connected part by itself, each with the whole budget of passes."""
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
        return _told(ascent, np.zeros(graph.K, dtype=np.int64), ascent.merged(np.zeros(graph.K, dtype=np.int64)))
    labels = np.arange(graph.K)
    while ascent.passes < budget:
        ascent.run(PASSES)
        last, labels = labels, _candidate(ascent)
        proved = _proof(ascent, labels) if (last == labels).all() else None
        if proved is not None:
            return _told(ascent, labels, proved)
    objective, gap = graph.value(ascent.duals, lam)
    return GraphSolution(labels, graph.points(ascent.duals), objective, gap, False, ascent.passes)


def _told(ascent: EdgeAscent, labels: Labels, small: EdgeAscent) -> GraphSolution:
    """The solution of the small problem, as one of the points."""
    graph = ascent.graph
    objective, gap = small.graph.value(small.duals, small.lam)
    within = 0.5 * float(graph.sizes @ ((graph.centres - small.graph.centres[labels]) ** 2).sum(axis=1))
    points = small.graph.points(small.duals)[labels]
    return GraphSolution(labels, points, objective + within, gap, True, ascent.passes)


class EdgeAscent:
    """Accelerated ascent on the duals of the edges."""

    def __init__(self, graph: Graph, lam: float, duals: Points) -> None:
        self.graph, self.lam, self.duals = graph, lam, duals
        self.before, self.inertia, self.passes = duals, 1.0, 0

    def run(self, passes: int) -> None:
        """So many steps of all duals, with momentum that is dropped when it points against the step."""
        self.passes += passes
        radii, steps = self.lam * self.graph.weights, self.graph.steps[:, None]
        for _ in range(passes):
            inertia = (1 + math.sqrt(1 + 4 * self.inertia**2)) / 2
            ahead = self.duals + (self.inertia - 1) / inertia * (self.duals - self.before)
            new = shortened(ahead + steps * (self.graph.incidence @ self.graph.points(ahead)), radii)
            against = float((((ahead - new) * (new - self.duals)) / steps).sum())
            self.before, self.duals = self.duals, new
            self.inertia = 1.0 if against > 0 else inertia

    def merged(self, labels: Labels) -> EdgeAscent:
        """The same with the clusters `labels` (K,) as nodes."""
        graph, duals = self.graph.merged(labels, self.duals)
        return EdgeAscent(graph, self.lam, duals)


def _candidate(ascent: EdgeAscent) -> Labels:
    """The partition (K,) by the edges below the largest jump in their lengths."""
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
    """The small problem of the clusters `labels`, solved, if it proves that they are the partition."""
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
    """Whether inside every cluster some duals balance the pulls from outside, with room for what is not known of
    them."""
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
    """What the duals inside a cluster must add up to at each node (K, d), and how far that may be from the truth (K,).

    u of the small problem is known up to sqrt(gap / size); the direction of a difference v up to twice the error / |v|.
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
    """Whether duals near the given ones carry the demand and are everywhere shorter than allowed, by at least `doubt`.

    A demand that is off by `doubt` in total can be met along a spanning tree, where no dual changes by more than that.
    """
    for r in range(ROUNDS + 1):
        if r > 0:
            duals = shortened(duals, (1.0 - 10.0 ** (-1.0 - r / 5.0)) * lam * part.weights)
        duals = duals + part.carried(demand - part.incidence.T @ duals)
        if (np.linalg.norm(duals, axis=1) + doubt <= lam * part.weights).all():
            return True
    return False
