"""K-means++ (algorithm 3 of the paper): seeds far from each other, then Lloyd's steps until nothing moves."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from coterie.server.clustering.partition import Labels, Partition, Points, check_K, partition, sklearn_seed

RESTARTS = 10
"""A single seeding misses a cluster in up to 3 of 10 runs on the paper's data; the best of ten does not."""


def kmeans(points: Points, K: int, seed: int, *, restarts: int = RESTARTS) -> Partition:
    """The best of `restarts` runs of k-means++ on points (m, p), by the cost.

    scikit-learn's seeding is the greedy one: each further seed is the best of 2 + ln K draws, where the paper takes
    the first. An emptied cluster is given the point farthest from its centre. Equal points are always in one
    cluster, so K must not exceed the number of distinct points.
    """
    check_K(points, K)
    return partition(points, run_sklearn(points, n_clusters=K, n_init=restarts, random_state=sklearn_seed(seed, K)))


def lloyd(points: Points, centres: Points) -> Partition:
    """Lloyd's steps from `centres` (K, p) until no point changes its cluster."""
    return partition(points, run_sklearn(points, n_clusters=len(centres), init=centres, n_init=1, tol=0.0))


def run_sklearn(points: Points, **settings: Any) -> Labels:
    """Labels (m,) by scikit-learn's KMeans, on one thread: with more, sums and so ties depend on their number."""
    from sklearn.cluster import KMeans  # slow to import

    with _thread_pools().limit(limits=1):
        return np.asarray(KMeans(**settings).fit(points).labels_)


@cache
def _thread_pools() -> ThreadpoolController:
    """The thread pools of all libraries; to look for them takes longer than to cluster a few hundred points."""
    return ThreadpoolController()


def seeds(points: Points, K: int, seed: int, run: int) -> Points:
    """K of the points (K, p) by greedy k-means++ seeding, another draw for each `run`."""
    from sklearn.cluster import kmeans_plusplus  # slow to import

    with _thread_pools().limit(limits=1):
        return np.asarray(kmeans_plusplus(points, K, random_state=sklearn_seed(seed, K, run))[0])
