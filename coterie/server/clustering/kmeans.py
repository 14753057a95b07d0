"""K-means clustering with k-means++ initialisation (algorithm 3 of the paper)."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from coterie.server.clustering.partition import Labels, Partition, Points, check_K, partition, sklearn_seed

RESTARTS = 10
"""Number of initialisations; on the data of the paper, a single one misses a cluster in up to 3 of 10 runs."""


def kmeans(points: Points, K: int, seed: int, *, restarts: int = RESTARTS) -> Partition:
    """Cluster points by k-means with several k-means++ initialisations, and return the result with the smallest cost.

    scikit-learn uses greedy k-means++, in which each further centre is the best of 2 + ln K draws instead of one draw
    as in the paper. A cluster that becomes empty receives the point that is farthest from its centre.

    Args:
        points: Points, (m, p).
        K: Number of clusters.
        seed: Seed of random numbers.
        restarts: Number of initialisations.

    Raises:
        ConfigError: if K exceeds the number of distinct points.
    """
    check_K(points, K)
    return partition(points, run_sklearn(points, n_clusters=K, n_init=restarts, random_state=sklearn_seed(seed, K)))


def lloyd(points: Points, centres: Points) -> Partition:
    """Cluster points by Lloyd's algorithm from initial centres (K, p) until no point changes its cluster."""
    return partition(points, run_sklearn(points, n_clusters=len(centres), init=centres, n_init=1, tol=0.0))


def run_sklearn(points: Points, **settings: Any) -> Labels:
    """Return the labels, (m,), of scikit-learn's KMeans in one thread, since sums and ties depend on the threads."""
    from sklearn.cluster import KMeans  # slow to import

    with _thread_pools().limit(limits=1):
        return np.asarray(KMeans(**settings).fit(points).labels_)


@cache
def _thread_pools() -> ThreadpoolController:
    """Return the thread pools of all libraries; the search takes longer than clustering a few hundred points."""
    return ThreadpoolController()


def seeds(points: Points, K: int, seed: int, run: int) -> Points:
    """Draw K initial centres, (K, p), by greedy k-means++, with different random numbers for each `run`."""
    from sklearn.cluster import kmeans_plusplus  # slow to import

    with _thread_pools().limit(limits=1):
        return np.asarray(kmeans_plusplus(points, K, random_state=sklearn_seed(seed, K, run))[0])
