"""How many clusters? By the silhouette; and is there more than one at all?

The silhouette is no test, and is not defined for K=1. So what it proposes has to pass one: K clusters must leave less
of the scatter than K clusters do of a single Gaussian cloud with the same mean and covariance, for every one of 20 such
clouds. Otherwise the answer is 1. A single cloud is so taken for several in about one case of 20 at most. The test is
cautious: where there are no more points than dimensions, two clusters are seen only if they account for much of the
scatter. A cloud with far outliers may be cut.
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
"""A clustering: (points, K, seed) to a partition."""

SAMPLE = 2000
"""At most so many points are looked at, chosen by lot. A cluster with less than one client in 500 may be missed."""
MOST = 15
"""The largest K tried unless told otherwise."""
CLOUDS = 20
TIE = 1e-9
"""Silhouettes closer than this are equal, and the smaller K wins."""


@dataclass(frozen=True)
class OneCloud:
    """Whether one Gaussian cloud would explain the points."""

    K: int
    """What the silhouette proposed."""
    left: float
    """The share of the scatter that K clusters leave, cost(K) / cost(1)."""
    left_in_clouds: tuple[float, ...]
    """The same for single Gaussian clouds."""

    @property
    def explains(self) -> bool:
        """True if some cloud is cut as well as the points are."""
        return self.left >= min(self.left_in_clouds)


@dataclass(frozen=True)
class Counted:
    """How many clusters there are, and why."""

    K: int
    scores: dict[int, float]
    """By K: the mean silhouette."""
    one_cloud: OneCloud | None
    """None if there was nothing to count."""
    notes: tuple[str, ...]
    """What the user has to know."""

    def facts(self) -> dict[str, object]:
        """For a report, ready for JSON."""
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
    """The number of clusters of points (m, p), from 1 to `most` (15, or fewer if there are fewer distinct points).

    It is the K with the largest mean silhouette, if that passes the test against one cloud.
    """
    if most is not None and most < 1:
        raise ConfigError(f"the largest number of clusters to try must be at least 1, got {most}")
    seen = sample(points, seed)
    limit = min(most or MOST, places(seen), len(seen) - 1)
    if limit < 2:
        note = "there is nothing to count: fewer than 3 points, or all equal, or at most 1 cluster was allowed"
        return Counted(1, {}, None, (note,))
    cut = {K: cluster(seen, K, seed) for K in range(1, limit + 1)}
    K, scores = by_silhouette(seen, cut)
    notes = [f"K={K} is the largest that was tried: there may be more"] if (most or MOST) == K else []
    cloud = compare_with_one_cloud(seen, cut[K], cluster, seed)
    if cloud.explains:
        notes = [f"the silhouette proposed {K} clusters, but one Gaussian cloud can be cut as well: taken as 1 cluster"]
    return Counted(1 if cloud.explains else K, scores, cloud, tuple(notes))


def sample(points: Points, seed: int) -> Points:
    """All points, or `SAMPLE` of them by lot, in their order."""
    if len(points) <= SAMPLE:
        return points
    chosen = generator(key_for(seed, Purpose.CLUSTERING, 0)).choice(len(points), SAMPLE, replace=False)
    return points[np.sort(chosen)]


def by_silhouette(points: Points, cut: dict[int, Partition]) -> tuple[int, dict[int, float]]:
    """The K with the largest mean silhouette over all points, and the silhouettes."""
    from scipy.spatial.distance import cdist  # slow to import
    from sklearn.metrics import silhouette_score

    distance = cdist(points, points)
    scores = {
        K: float(silhouette_score(distance, part.labels, metric="precomputed")) for K, part in cut.items() if K > 1
    }
    best = max(scores.values())
    return next(K for K, score in scores.items() if score >= best - TIE), scores


def compare_with_one_cloud(points: Points, found: Partition, cluster: Cluster, seed: int) -> OneCloud:
    """Cut `CLOUDS` Gaussian clouds with the mean and covariance of points (m, p) into as many clusters as found."""
    mean = points.mean(axis=0)
    _, spread, axes = np.linalg.svd(points - mean, full_matrices=False)
    root = axes * (spread / math.sqrt(len(points) - 1))[:, None]
    random = generator(key_for(seed, Purpose.CLUSTERING, 1))

    def left(cloud: Points, part: Partition) -> float:
        return part.cost(cloud) / float(((cloud - cloud.mean(axis=0)) ** 2).sum())

    clouds = [mean + random.standard_normal((len(points), len(root))) @ root for _ in range(CLOUDS)]
    shares = tuple(left(cloud, cluster(cloud, found.K, seed)) for cloud in clouds)
    return OneCloud(found.K, left(points, found), shares)
