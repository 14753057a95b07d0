"""Partitions of points, and functions that all clustering algorithms share."""

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
"""Tolerance for equal points, as a share of the largest deviation from the mean: smaller differences are rounding."""
ROUNDING = 1e-12
"""Deviations from the mean, as a share of the largest entry, up to which all points are equal."""


@dataclass(frozen=True)
class Partition:
    """Partition of m points into K clusters, none of which is empty."""

    labels: Labels
    """Cluster of each point, (m,), numbered by first appearance, so that equal partitions have equal labels."""
    centres: Points
    """Mean of each cluster's points, (K, p)."""

    @property
    def K(self) -> int:
        """Number of clusters."""
        return len(self.centres)

    def cost(self, points: Points) -> float:
        """Return the sum of squared distances of the points to their centres, twice (15) of the paper."""
        return float(((points - self.centres[self.labels]) ** 2).sum())


def partition(points: Points, labels: npt.NDArray[np.integer]) -> Partition:
    """Return the partition with these labels, (m,), which may be any integers."""
    renumbered = by_first_appearance(labels)
    sums, sizes = totals(points, renumbered, int(renumbered.max()) + 1)
    return Partition(renumbered, sums / sizes[:, None])


def by_first_appearance(labels: npt.NDArray[np.integer]) -> Labels:
    """Return labels renumbered from 0 in the order of first appearance."""
    _, first, where = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first), dtype=np.int64)
    rank[np.argsort(first)] = np.arange(len(first))
    return np.asarray(rank[where.reshape(-1)])


def totals(points: Points, labels: Labels, K: int) -> tuple[Points, Points]:
    """Return the sum, (K, p), and the number, (K,), of the points of each cluster."""
    from scipy.sparse import csr_matrix  # slow to import

    m = len(points)
    members = csr_matrix((np.ones(m), (labels, np.arange(m))), shape=(K, m))
    return np.asarray(members @ points), np.bincount(labels, minlength=K).astype(np.float64)


def places(points: Points) -> int:
    """Return the number of distinct points up to rounding."""
    deviations = points - points.mean(axis=0)
    scale = np.abs(deviations).max(initial=0.0)
    if scale <= ROUNDING * np.abs(points).max(initial=0.0):
        return 1
    return len(np.unique(np.round(deviations / (SAME * scale)).astype(np.int64), axis=0))


def checked(points: npt.ArrayLike) -> Points:
    """Return points as a float64 array, (m, p).

    Raises:
        InputError: if they are not a two-dimensional array of finite numbers with at least one row and column.
    """
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
    """Raise ConfigError if K is not between 1 and the number of distinct points."""
    m = len(points)
    if not 1 <= K <= m:
        raise ConfigError(f"clusters must be between 1 and the number of points ({m}), got {K}")
    distinct = places(points) if K > 1 else 1
    if distinct < K:
        raise ConfigError(f"clusters={K} but only {distinct} of the {m} points are distinct: choose at most {distinct}")


def sklearn_seed(seed: int, *counters: int) -> int:
    """Return a 32-bit seed for scikit-learn, derived from the seed of the run."""
    return key_for(seed, Purpose.CLUSTERING, *counters) & 0xFFFFFFFF
