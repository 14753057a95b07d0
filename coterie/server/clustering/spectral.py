"""Spectral k-means (algorithm 2 of the paper, after Kumar and Kannan 2010): k-means where the noise is least.

paper     here
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
"""A core point is at most this share as far from its own centre as from any other."""


def spectral(points: Points, K: int, seed: int, *, parts: int = 3) -> Partition:
    """Points (m, p) in K clusters by all three parts, or with `parts=1` by the first alone (theorem 3).

    The paper's 10-approximation in the projected space is the best of ten k-means++ runs; it has no guarantee, but
    one that has is not practical.
    """
    check_parts(parts)
    projected = project(points, K)
    first = kmeans(projected, K, seed)
    if parts == 1:
        return partition(points, first.labels)
    return lloyd(points, core_means(points, projected, first))


def check_parts(parts: int) -> None:
    """Refuse anything but all parts or the first alone."""
    if parts not in (1, 3):
        raise ConfigError(f"spectral_parts must be 3 (all of the algorithm) or 1 (its first part alone), got {parts}")


def project(points: Points, K: int) -> Points:
    """Coordinates (m, min(K, m, p)) in the span of the top K right singular vectors."""
    left, sizes, _ = np.linalg.svd(points, full_matrices=False)
    return np.asarray(left[:, :K] * sizes[:K])


def core_means(points: Points, projected: Points, first: Partition) -> Points:
    """Part II: the mean (K, p) of the original rows of each core; of the whole cluster where the core is empty."""
    core = core_of(projected, first.centres)
    whole, _ = totals(points, first.labels, first.K)
    means = whole / np.bincount(first.labels)[:, None]
    filled = core.any(axis=0)
    means[filled] = (core.T[filled].astype(np.float64) @ points) / core.sum(axis=0)[filled, None]
    return means


def core_of(projected: Points, centres: Points) -> npt.NDArray[np.bool_]:
    """(m, K): whether a point is so near to a centre that it is at most a third as far from it as from all others."""
    from scipy.spatial.distance import cdist  # slow to import

    distance = cdist(projected, centres)
    nearest = np.argmin(distance, axis=1)
    rows = np.arange(len(projected))
    own = distance[rows, nearest]
    distance[rows, nearest] = np.inf
    core = np.zeros(distance.shape, dtype=bool)
    core[rows, nearest] = own <= CORE * distance.min(axis=1)
    return core
