"""Agglomerative clustering: repeated merging of the two nearest clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.errors import ConfigError
from coterie.server.clustering.partition import Labels, Points, by_first_appearance

Linkage = Literal["average", "complete"]


@dataclass(frozen=True)
class Agglomerated:
    """Result of agglomerative clustering."""

    labels: Labels
    """Cluster of each point, (m,), numbered by first appearance."""
    heights: Points
    """Distances of all merges down to one cluster in ascending order, (m - 1,). The number of clusters for a distance
    limit is 1 plus the number of larger distances."""

    @property
    def K(self) -> int:
        """Number of clusters."""
        return int(self.labels.max()) + 1


def agglomerate(apart: Points, linkage: Linkage, *, K: int | None = None, limit: float = np.inf) -> Agglomerated:
    """Cluster points by agglomeration.

    Args:
        apart: Distances between all points, (m, m).
        linkage: Distance of two clusters: `average` or `complete` (largest) distance of their points.
        K: Number of clusters; None: determined by `limit`.
        limit: Maximum distance at which clusters are merged, if K is None.

    Returns:
        Clusters and the distances of the merges.

    Raises:
        ConfigError: if K is not between 1 and m.

    Example:
        >>> import numpy as np
        >>> from coterie.extend import agglomerate
        >>> points = np.array([0.0, 0.1, 5.0])
        >>> agglomerate(np.abs(points[:, None] - points), "average", K=2).labels
        array([0, 0, 1])
    """
    m = len(apart)
    if K is not None and not 1 <= K <= m:
        raise ConfigError(f"clusters must be between 1 and the {m} clients that replied, got {K}")
    if m == 1:
        return Agglomerated(np.zeros(1, dtype=np.int64), np.zeros(0))
    from scipy.cluster import hierarchy  # slow to import

    tree = merges(apart, linkage)
    heights = np.asarray(tree[:, 2])
    count = 1 + int((heights > limit).sum()) if K is None else K
    return Agglomerated(by_first_appearance(hierarchy.cut_tree(tree, n_clusters=count)[:, 0]), heights)


def merges(apart: Points, linkage: Linkage) -> Points:
    """Return the merge tree of m >= 2 points as a linkage matrix of SciPy, (m - 1, 4), given distances (m, m)."""
    from scipy.cluster import hierarchy  # slow to import
    from scipy.spatial.distance import squareform

    return np.asarray(hierarchy.linkage(squareform(apart, checks=False), method=linkage))
