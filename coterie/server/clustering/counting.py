"""Choice of the number of clusters by the silhouette, with a test against a single cluster.

The silhouette is not a test and is not defined for K=1. Therefore the K that it proposes must pass a test: the clusters
must explain more of the scatter of the points than K clusters explain of each of 20 Gaussian samples with the same mean
and covariance. Otherwise K is 1. The probability that a single Gaussian cluster is split is at most about 1/20. The
test is conservative: with at most as many points as dimensions, two clusters are found only if they account for much of
the scatter. A single cluster with extreme outliers may be split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coterie.core.keys import Purpose, generator, key_for
from coterie.errors import ConfigError
from coterie.server.clustering.partition import Partition, Points, places

Cluster = Callable[[Points, int, int], Partition]
"""Function that clusters points: (points, K, seed) to a partition."""

SAMPLE = 2000
"""Maximum number of points, which are drawn at random; clusters with fewer than 1 in 500 clients may be missed."""
MOST = 15
"""Default of the largest K."""
CLOUDS = 20
"""Number of Gaussian samples in the test."""
TIE = 1e-9
"""Differences of silhouettes up to which they are ties; ties go to the smaller K."""


@dataclass(frozen=True)
class OneCloud:
    """Test of K clusters against a single Gaussian cluster."""

    K: int
    """Number of clusters proposed by the silhouette."""
    left: float
    """Share of the scatter that K clusters do not explain, cost(K) / cost(1)."""
    left_in_clouds: tuple[float, ...]
    """The same share for each Gaussian sample."""

    @property
    def explains(self) -> bool:
        """Whether a single Gaussian cluster explains the points: a Gaussian sample has a share that is not larger."""
        return self.left >= min(self.left_in_clouds)


@dataclass(frozen=True)
class Counted:
    """Chosen number of clusters."""

    K: int
    """Number of clusters."""
    scores: dict[int, float]
    """Mean silhouette for each K."""
    one_cloud: OneCloud | None
    """Test against a single Gaussian cluster; None if no K was tried."""
    notes: tuple[str, ...]
    """Warnings for the user."""

    def facts(self) -> dict[str, object]:
        """Return facts for a report as JSON values."""
        cloud = self.one_cloud
        return {
            "K": self.K,
            "rule": "silhouette",
            "scores": {str(K): score for K, score in self.scores.items()},
            "one_cloud": cloud
            and {
                "proposed": cloud.K,
                "left": cloud.left,
                "least_left_in_clouds": min(cloud.left_in_clouds),
                "explains": cloud.explains,
            },
        }


def count_clusters(points: Points, cluster: Cluster, most: int | None = None, seed: int = 0) -> Counted:
    """Choose the number of clusters: the K with the largest mean silhouette, or 1 if it does not pass the test.

    Args:
        points: Points, (m, p).
        cluster: Clustering algorithm.
        most: Largest K; by default 15, or fewer if there are fewer distinct points.
        seed: Seed of random numbers.

    Raises:
        ConfigError: if `most` is below 1.
    """
    if most is not None and most < 1:
        raise ConfigError(f"the largest number of clusters must be at least 1, got {most}")
    seen = sample(points, seed)
    limit = min(most or MOST, places(seen), len(seen) - 1)
    if limit < 2:
        note = "the number of clusters is 1: there are fewer than 3 points, all are equal, or only 1 cluster is allowed"
        return Counted(1, {}, None, (note,))
    cut = {K: cluster(seen, K, seed) for K in range(1, limit + 1)}
    K, scores = by_silhouette(seen, cut)
    notes = [f"K={K} is the largest number that was tried: there may be more clusters"] if (most or MOST) == K else []
    cloud = compare_with_one_cloud(seen, cut[K], cluster, seed)
    if cloud.explains:
        notes = [
            f"the silhouette proposes {K} clusters, but a single Gaussian cluster can be split as well: K is set to 1"
        ]
    return Counted(1 if cloud.explains else K, scores, cloud, tuple(notes))


def sample(points: Points, seed: int) -> Points:
    """Return all points, or a random sample of `SAMPLE` points in their order."""
    if len(points) <= SAMPLE:
        return points
    chosen = generator(key_for(seed, Purpose.CLUSTERING, 0)).choice(len(points), SAMPLE, replace=False)
    return points[np.sort(chosen)]


def by_silhouette(points: Points, cut: dict[int, Partition]) -> tuple[int, dict[int, float]]:
    """Return the K with the largest mean silhouette, and the silhouettes for each K."""
    from scipy.spatial.distance import cdist  # slow to import
    from sklearn.metrics import silhouette_score

    distance = cdist(points, points)
    scores = {
        K: float(silhouette_score(distance, part.labels, metric="precomputed")) for K, part in cut.items() if K > 1
    }
    best = max(scores.values())
    return next(K for K, score in scores.items() if score >= best - TIE), scores


def compare_with_one_cloud(points: Points, found: Partition, cluster: Cluster, seed: int) -> OneCloud:
    """Test clusters of points (m, p) against clusters of Gaussian samples with the same mean and covariance."""
    mean = points.mean(axis=0)
    _, spread, axes = np.linalg.svd(points - mean, full_matrices=False)
    root = axes * (spread / math.sqrt(len(points) - 1))[:, None]
    random = generator(key_for(seed, Purpose.CLUSTERING, 1))

    def left(cloud: Points, part: Partition) -> float:
        return part.cost(cloud) / float(((cloud - cloud.mean(axis=0)) ** 2).sum())

    clouds = [mean + random.standard_normal((len(points), len(root))) @ root for _ in range(CLOUDS)]
    shares = tuple(left(cloud, cluster(cloud, found.K, seed)) for cloud in clouds)
    return OneCloud(found.K, left(points, found), shares)
