"""Gradient clustering (Armacki, Bajovic, Jakovetic, Kar 2022, for squared distances): centres that walk to their means.

x_k <- x_k - alpha * sum over the members i of cluster k of (x_k - a_i)

With n_k members the distance of x_k from their mean is multiplied by 1 - alpha n_k, so the cost falls in every step
while 0 < alpha < 2/n_k. A cluster may hold nearly all of the m points, so alpha must be below 2/m. It is given as a
multiple of 1/m, `step` = alpha m; up to 1, the default, a centre never steps past a mean.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from coterie.errors import ConfigError
from coterie.server.clustering.kmeans import seeds
from coterie.server.clustering.partition import Labels, Partition, Points, check_K, partition, totals

SEEDINGS = 10
"""As many k-means++ seedings are drawn; the centres walk from the one with the least cost."""
MOST_STEPS = 10_000
NEAR = 1e-4
"""Squared distances of centres from their means, summed, as a share of the mean variance: scikit-learn's tolerance.
Many points without clear clusters would go on changing for thousands of steps."""


def gradient_clustering(points: Points, K: int, seed: int, *, step: float = 1.0, seedings: int = SEEDINGS) -> Partition:
    """Points (m, p) in K clusters, by a walk with alpha = step/m, 0 < step < 2, from the best of `seedings`.

    A seeding that misses a cluster shows it in its cost, so that only one needs to be walked from. A centre that has
    lost all members is put on the point farthest from its own centre.
    """
    check_K(points, K)
    check_step(step)
    centred = points - points.mean(axis=0)  # squared distances by products lose less to rounding
    starts = [seeds(centred, K, seed, run) for run in range(seedings)]
    return partition(points, walk(centred, min(starts, key=partial(seeding_cost, centred)), step))


def seeding_cost(points: Points, centres: Points) -> float:
    """The cost of the partition of points (m, p) by the nearest of the centres (K, p), about its means.

    About the seeds themselves it would be mostly their own noise, and tell little in many dimensions.
    """
    return partition(points, nearest(points, centres)).cost(points)


def check_step(step: float) -> None:
    """Refuse a step with which centres could run away."""
    if not 0 < step < 2:
        raise ConfigError(
            f"gradient_step must be above 0 and below 2 (it is divided by the number of points), got {step}"
        )


def walk(points: Points, centres: Points, step: float) -> Labels:
    """Steps until the partition has settled, as labels (m,), or the centres have arrived at their means but for `NEAR`.

    Settled: it was the same before the step, and its means give the same again. The means are where the centres go as
    long as nobody changes, so they are then a fixed point of the update; centres that only creep towards them need
    no more steps.
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
        f"gradient clustering did not settle in {MOST_STEPS} steps: set gradient_step={step} larger (below 2), or use "
        "clustering=kmeans++"
    )


def nearest(points: Points, centres: Points) -> Labels:
    """The nearest centre of each point, (m,); ties go to the lowest number."""
    labels: Labels = np.argmin((centres**2).sum(axis=1) - 2 * points @ centres.T, axis=1)
    return labels


def refill(points: Points, centres: Points, labels: Labels, sizes: Points) -> Points:
    """Centres with the first empty one on the point farthest from its own centre."""
    farthest = np.argmax(((points - centres[labels]) ** 2).sum(axis=1))
    moved = centres.copy()
    moved[np.argmin(sizes)] = points[farthest]
    return moved
