"""Spectral k-means (algorithm 2 of the paper, after Kumar and Kannan 2010): k-means in a subspace with little noise.

paper     code
A         points, (m, p), not centred
A^        projected, in coordinates of the top K right singular vectors: distances are those of A^
nu_k      centres
S_k       core, as a mask (m, K)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError
from coterie.server.clustering.kmeans import kmeans, lloyd
from coterie.server.clustering.partition import Partition, Points, partition, totals

CORE = 1 / 3
"""Maximum ratio, for core points, of the distances to the own centre and to any other centre."""


def spectral(points: Points, K: int, seed: int, *, parts: int = 3) -> Partition:
    """Cluster points by spectral k-means.

    The 10-approximation of the paper in the projected space is replaced by the best of ten k-means++ runs, which has no
    guarantee; algorithms with a guarantee are impractical.

    Args:
        points: Points, (m, p).
        K: Number of clusters.
        seed: Seed of random numbers.
        parts: Parts of the algorithm: 3 for all, or 1 for the first only (theorem 3).

    Raises:
        ConfigError: if K exceeds the number of distinct points, or `parts` is neither 1 nor 3.
    """
    check_parts(parts)
    projected = project(points, K)
    first = kmeans(projected, K, seed)
    if parts == 1:
        return partition(points, first.labels)
    return lloyd(points, core_means(points, projected, first))


def check_parts(parts: int) -> None:
    """Raise ConfigError unless `parts` is 1 or 3."""
    if parts not in (1, 3):
        raise ConfigError(f"spectral_parts must be 3 (the whole algorithm) or 1 (its first part only), got {parts}")


def project(points: Points, K: int) -> Points:
    """Return coordinates, (m, min(K, m, p)), in the span of the top K right singular vectors."""
    left, sizes, _ = np.linalg.svd(points, full_matrices=False)
    return np.asarray(left[:, :K] * sizes[:K])


def core_means(points: Points, projected: Points, first: Partition) -> Points:
    """Return the mean of the original points of each core, or of the whole cluster if its core is empty, (K, p)."""
    core = core_of(projected, first.centres)
    whole, _ = totals(points, first.labels, first.K)
    means = whole / np.bincount(first.labels)[:, None]
    filled = core.any(axis=0)
    means[filled] = (core.T[filled].astype(np.float64) @ points) / core.sum(axis=0)[filled, None]
    return means


def core_of(projected: Points, centres: Points) -> npt.NDArray[np.bool_]:
    """Return whether each point is a core point of each cluster, (m, K)."""
    from scipy.spatial.distance import cdist  # slow to import

    distance = cdist(projected, centres)
    nearest = np.argmin(distance, axis=1)
    rows = np.arange(len(projected))
    own = distance[rows, nearest]
    distance[rows, nearest] = np.inf
    core = np.zeros(distance.shape, dtype=bool)
    core[rows, nearest] = own <= CORE * distance.min(axis=1)
    return core
