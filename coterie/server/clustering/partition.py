"""What every clustering returns, and the arithmetic that they share. Points are the clients' solutions, (m, p)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import NUMBERS, as_array
from coterie.core.keys import Purpose, key_for
from coterie.errors import ConfigError, InputError

Points = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]

SAME = 1e-9
"""Points that differ by less than this share of the largest deviation from the mean are in one place: the difference is
rounding, and must not be cut into clusters."""
ROUNDING = 1e-12
"""Deviations from the mean below this share of the largest entry are what summing leaves of equal points."""


@dataclass(frozen=True)
class Partition:
    """Points in K clusters, none of them empty."""

    labels: Labels
    """(m,) numbered by first appearance, so that equal partitions have equal labels."""
    centres: Points
    """(K, p) the mean of each cluster's points."""

    @property
    def K(self) -> int:
        """The number of clusters."""
        return len(self.centres)

    def cost(self, points: Points) -> float:
        """The sum of squared distances to the own centre: twice (15) of the paper."""
        return float(((points - self.centres[self.labels]) ** 2).sum())


def partition(points: Points, labels: npt.NDArray[np.integer]) -> Partition:
    """The partition that `labels` (m,) describe, whatever their numbers."""
    renumbered = by_first_appearance(labels)
    sums, sizes = totals(points, renumbered, int(renumbered.max()) + 1)
    return Partition(renumbered, sums / sizes[:, None])


def by_first_appearance(labels: npt.NDArray[np.integer]) -> Labels:
    """Renumbered from 0 in the order in which the clusters first appear."""
    _, first, where = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[where.reshape(-1)])


def totals(points: Points, labels: Labels, K: int) -> tuple[Points, Points]:
    """The sum of each cluster's points (K, p) and their number (K,)."""
    from scipy.sparse import csr_matrix  # slow to import

    m = len(points)
    members = csr_matrix((np.ones(m), (labels, np.arange(m))), shape=(K, m))
    return np.asarray(members @ points), np.bincount(labels, minlength=K).astype(np.float64)


def places(points: Points) -> int:
    """The number of distinct points, those that differ by rounding counted once."""
    deviations = points - points.mean(axis=0)
    scale = np.abs(deviations).max(initial=0.0)
    if scale <= ROUNDING * np.abs(points).max(initial=0.0):
        return 1
    return len(np.unique(np.round(deviations / (SAME * scale)).astype(np.int64), axis=0))


def checked(points: npt.ArrayLike) -> Points:
    """Points as float64, two-dimensional, finite and at least one."""
    given = as_array(points, "points")
    if given.dtype.kind not in NUMBERS:
        raise InputError(f"points must be numbers, got type {given.dtype}")
    found = np.asarray(given, dtype=np.float64)
    if found.ndim != 2 or 0 in found.shape:
        raise InputError(f"points must be an array (m, p) with at least one row and column, got shape {found.shape}")
    bad = np.flatnonzero(~np.isfinite(found).all(axis=1))
    if len(bad):
        raise InputError(f"{len(bad)} of {len(found)} points are not finite, the first at row {bad[0]}: leave them out")
    return found


def check_K(points: Points, K: int) -> None:
    """Refuse a K that the points cannot fill: every cluster needs a distinct point of its own."""
    m = len(points)
    if not 1 <= K <= m:
        raise ConfigError(f"clusters must be between 1 and the {m} points there are, got {K}")
    distinct = places(points) if K > 1 else 1
    if distinct < K:
        raise ConfigError(f"clusters={K} but only {distinct} of the {m} points are distinct: choose at most {distinct}")


def sklearn_seed(seed: int, *counters: int) -> int:
    """A seed that scikit-learn takes (32 bits) from the key of the run."""
    return key_for(seed, Purpose.CLUSTERING, *counters) & 0xFFFFFFFF
