"""Fused points as weighted nodes, and which nodes are fused whatever the rest does."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.server.clustering.partition import Labels, Points, totals

ROUNDING = 1e-12
"""A bound that is met up to this relative error is met: distances on regular grids hit it exactly but for rounding."""


@dataclass(frozen=True)
class Nodes:
    """Points (m, d) in K nodes. Clustering the nodes is clustering the points: u of a node is u of its points."""

    centres: Points
    """(K, d) the mean of each node's points."""
    sizes: Points
    """(K,) the number of each node's points, as floats since they only weigh."""
    owner: Labels
    """(m,) the node of each point."""

    @property
    def K(self) -> int:
        """The number of nodes."""
        return len(self.sizes)

    def merged(self, labels: Labels) -> Nodes:
        """The nodes with equal labels (K,) put into one; labels count from 0 without holes."""
        K = int(labels.max()) + 1
        sizes = np.bincount(labels, weights=self.sizes, minlength=K).astype(np.float64)
        sums, _ = totals(self.sizes[:, None] * self.centres, labels, K)
        return Nodes(sums / sizes[:, None], sizes, labels[self.owner])

    @cached_property
    def tree(self) -> tuple[Labels, Points, Points]:
        """Complete linkage of the centres: children (K - 1, 2), and diameter and number of points (K - 1,) of each
        union."""
        from scipy.cluster.hierarchy import linkage  # slow to import
        from scipy.spatial.distance import pdist

        found = linkage(pdist(self.centres), "complete")
        children = found[:, :2].astype(np.int64)
        counts = np.concatenate([self.sizes, np.zeros(len(found))])
        for at, (one, other) in enumerate(children):
            counts[self.K + at] = counts[one] + counts[other]
        return children, found[:, 2], counts[self.K :]


def single_points(points: Points) -> Nodes:
    """Every point a node of its own."""
    return Nodes(points, np.ones(len(points)), np.arange(len(points)))


def screened(nodes: Nodes, lam: float) -> Labels:
    """The new number (K,) of each node after the unions that are certain at `lam` for uniform weights.

    Nodes whose centres are nowhere farther apart than lam times the number of their points are fused, whatever the
    other points are: sizes[k] sizes[j] (centre k - centre j) / number are feasible duals that hold them together.
    Complete linkage offers sets with their diameters; the largest that qualify are taken, until no more is found.
    """
    labels = np.arange(nodes.K)
    while nodes.K > 1:
        children, diameters, counts = nodes.tree
        found = _largest_unions(children, diameters <= lam * counts * (1 + ROUNDING))
        labels = found[labels]
        if int(found.max()) + 1 == nodes.K:
            break
        nodes = nodes.merged(found)
    return labels


def _largest_unions(children: Labels, certain: np.ndarray) -> Labels:
    """The leaves of a tree numbered by the highest certain union that holds them; leaves outside stay alone."""
    K = len(children) + 1
    labels = np.empty(K, dtype=np.int64)
    number = -1
    todo = [(2 * K - 2, False)]  # from the root: node, and whether a union above it was certain
    while todo:
        node, inside = todo.pop()
        leaf = node < K
        if not inside and (leaf or certain[node - K]):
            number += 1
            inside = True
        if leaf:
            labels[node] = number
        else:
            todo += [(int(child), inside) for child in children[node - K]]
    return labels
