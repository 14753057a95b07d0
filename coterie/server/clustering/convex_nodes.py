"""Fused points as weighted nodes, and a test for nodes that are fused independently of all others."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.server.clustering.partition import Labels, Points, totals

ROUNDING = 1e-12
"""Relative tolerance of bounds, since distances on regular grids meet them exactly up to rounding."""


@dataclass(frozen=True)
class Nodes:
    """Partition of m points into K nodes; convex clustering of the weighted nodes equals that of the points."""

    centres: Points
    """Mean of each node's points, (K, d)."""
    sizes: Points
    """Number of points of each node, (K,), as floats for use as weights."""
    owner: Labels
    """Node of each point, (m,)."""

    @property
    def K(self) -> int:
        """Number of nodes."""
        return len(self.sizes)

    def merged(self, labels: Labels) -> Nodes:
        """Return the nodes after merging those with equal labels (K,), which are 0, 1, ... without gaps."""
        K = int(labels.max()) + 1
        sizes = np.bincount(labels, weights=self.sizes, minlength=K).astype(np.float64)
        sums, _ = totals(self.sizes[:, None] * self.centres, labels, K)
        return Nodes(sums / sizes[:, None], sizes, labels[self.owner])

    @cached_property
    def tree(self) -> tuple[Labels, Points, Points]:
        """Complete linkage of the centres: children (K - 1, 2), diameter and size (K - 1,) of each merge."""
        from scipy.cluster.hierarchy import linkage  # slow to import
        from scipy.spatial.distance import pdist

        found = linkage(pdist(self.centres), "complete")
        children = found[:, :2].astype(np.int64)
        counts = np.concatenate([self.sizes, np.zeros(len(found))])
        for at, (one, other) in enumerate(children):
            counts[self.K + at] = counts[one] + counts[other]
        return children, found[:, 2], counts[self.K :]


def single_points(points: Points) -> Nodes:
    """Return one node for each point."""
    return Nodes(points, np.ones(len(points)), np.arange(len(points)))


def screened(nodes: Nodes, lam: float) -> Labels:
    """Return the new label of each node, (K,), after all merges that are certain at `lam` for uniform weights.

    A set of nodes is fused, independently of all other points, if its diameter is at most lam times its number of
    points: the duals sizes[k] sizes[j] (centre k - centre j) / number are then feasible. Candidates are the sets of a
    complete linkage; the largest ones that satisfy the condition are merged, until no more are found.
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
    """Return the label of each leaf of a tree: leaves under the same highest certain merge have equal labels."""
    K = len(children) + 1
    labels = np.empty(K, dtype=np.int64)
    number = -1
    todo = [(2 * K - 2, False)]  # from the root: node, and whether a merge above it was certain
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
