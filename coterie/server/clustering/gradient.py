"""Gradient clustering for squared distances (Armacki, Bajovic, Jakovetic, Kar 2022).

x_k <- x_k - alpha * sum over the members i of cluster k of (x_k - a_i)

A step multiplies the distance of x_k from the mean of its n_k members by 1 - alpha n_k, so the cost decreases if 0 <
alpha < 2/n_k. Since a cluster may contain almost all of the m points, alpha must be below 2/m. The setting `step` is
alpha m. With the default, 1, or less, a centre never moves beyond the mean.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from coterie.errors import ConfigError
from coterie.server.clustering.kmeans import seeds
from coterie.server.clustering.partition import Labels, Partition, Points, check_K, partition, totals

SEEDINGS = 10
"""Number of k-means++ initialisations; the one with the smallest cost is used."""
MOST_STEPS = 10_000
"""Maximum number of steps."""
NEAR = 1e-4
"""Tolerance: sum of the squared distances of centres from their means as a share of the mean variance, as in
scikit-learn. Without it, many points without clear clusters would need thousands of steps."""


def gradient_clustering(points: Points, K: int, seed: int, *, step: float = 1.0, seedings: int = SEEDINGS) -> Partition:
    """Cluster points by gradient clustering.

    An initialisation that misses a cluster has a larger cost, so only the best one is used. A centre without members is
    moved to the point that is farthest from its own centre.

    Args:
        points: Points, (m, p).
        K: Number of clusters.
        seed: Seed of random numbers.
        step: Step size times m, above 0 and below 2.
        seedings: Number of k-means++ initialisations.

    Raises:
        ConfigError: if K or the step size is out of range, or the steps do not converge.
    """
    check_K(points, K)
    check_step(step)
    centred = points - points.mean(axis=0)  # for accurate squared distances by matrix products
    starts = [seeds(centred, K, seed, run) for run in range(seedings)]
    return partition(points, walk(centred, min(starts, key=partial(seeding_cost, centred)), step))


def seeding_cost(points: Points, centres: Points) -> float:
    """Return the cost, with respect to the means, of the partition by nearest centres.

    The cost with respect to the initial centres would mostly be their noise in many dimensions.

    Args:
        points: Points, (m, p).
        centres: Initial centres, (K, p).
    """
    return partition(points, nearest(points, centres)).cost(points)


def check_step(step: float) -> None:
    """Raise ConfigError for a step size with which centres could diverge."""
    if not 0 < step < 2:
        raise ConfigError(
            f"gradient_step must be above 0 and below 2 (the step size times the number of points), got {step}"
        )


def walk(points: Points, centres: Points, step: float) -> Labels:
    """Take steps until convergence and return the labels, (m,).

    The steps have converged if the centres are near the means of their members (`NEAR`), or if the partition did not
    change in the last step and is also the partition by the means. The means are then a fixed point of the steps.

    Args:
        points: Points, (m, p).
        centres: Initial centres, (K, p).
        step: Step size times m.

    Raises:
        ConfigError: if the steps do not converge.
    """
    alpha, enough = step / len(points), NEAR * float(points.var(axis=0).mean())
    before = np.empty(0, dtype=np.int64)
    for _ in range(MOST_STEPS):
        labels = nearest(points, centres)
        sums, sizes = totals(points, labels, len(centres))
        if not sizes.all():
            centres = refill(points, centres, labels, sizes)
            continue
        means = sums / sizes[:, None]
        settled = np.array_equal(labels, before) and np.array_equal(nearest(points, means), labels)
        if settled or float(((centres - means) ** 2).sum()) <= enough:
            return labels
        centres = centres - alpha * sizes[:, None] * (centres - means)
        before = labels
    raise ConfigError(
        f"gradient clustering did not converge in {MOST_STEPS} steps with gradient_step={step}: use a larger "
        "gradient_step (below 2) or clustering=kmeans++"
    )


def nearest(points: Points, centres: Points) -> Labels:
    """Return the nearest centre of each point, (m,); ties go to the lowest index."""
    labels: Labels = np.argmin((centres**2).sum(axis=1) - 2 * points @ centres.T, axis=1)
    return labels


def refill(points: Points, centres: Points, labels: Labels, sizes: Points) -> Points:
    """Return the centres after moving the first empty one to the point that is farthest from its own centre."""
    farthest = np.argmax(((points - centres[labels]) ** 2).sum(axis=1))
    moved = centres.copy()
    moved[np.argmin(sizes)] = points[farthest]
    return moved
