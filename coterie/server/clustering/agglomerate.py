"""Agglomeration: the two nearest clusters become one, again and again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from coterie.errors import ConfigError
from coterie.server.clustering.partition import Labels, Points, by_first_appearance

Linkage = Literal["average", "complete"]


@dataclass(frozen=True)
class Agglomerated:
    """Clusters, and how far apart those were that were united on the way to one."""

    labels: Labels
    """(m,) numbered by first appearance."""
    heights: Points
    """(m - 1,) ascending: a limit between two of them gives as many clusters as there are heights above it, plus 1."""

    @property
    def K(self) -> int:
        return int(self.labels.max()) + 1


def agglomerate(apart: Points, linkage: Linkage, *, K: int | None = None, limit: float = np.inf) -> Agglomerated:
    """Unite by distances (m, m), of clusters the mean or the largest one, until K are left.

    Without K: while the nearest two are at most `limit` apart.
    """
    m = len(apart)
    if K is not None and not 1 <= K <= m:
        raise ConfigError(f"clusters must be between 1 and the {m} clients that answered, got {K}")
    if m == 1:
        return Agglomerated(np.zeros(1, dtype=np.int64), np.zeros(0))
    from scipy.cluster import hierarchy  # slow to import

    tree = merges(apart, linkage)
    heights = np.asarray(tree[:, 2])
    count = 1 + int((heights > limit).sum()) if K is None else K
    return Agglomerated(by_first_appearance(hierarchy.cut_tree(tree, n_clusters=count)[:, 0]), heights)


def merges(apart: Points, linkage: Linkage) -> Points:
    """Return the tree of unions (m - 1, 4) of m >= 2 points by their distances (m, m), in SciPy's form."""
    from scipy.cluster import hierarchy  # slow to import
    from scipy.spatial.distance import squareform

    return np.asarray(hierarchy.linkage(squareform(apart, checks=False), method=linkage))
