"""The clusterpath: grid of lambdas, choice of a lambda, and merge tree."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from coterie.server.clustering.partition import Labels, Points, by_first_appearance
from coterie.server.clustering.separation import BLOCK, centre_gaps

NEAR = 1.2
"""Precision of the ends of a logarithmic grid, as a factor."""
FIRST, FACTOR = 0.1, 1.25
"""First lambda and factor of the search for the ends of the path in the paper (appendix D.2)."""


def recovery_interval(points: Points, labels: Labels) -> tuple[float, float]:
    """Return the interval (13) of lambdas with which convex clustering recovers given clusters exactly.

    The lower end is the largest ratio diameter / size of a cluster. The upper end is the smallest ratio of the distance
    of two centres to 2m minus the sizes of both clusters, or infinity for a single cluster. The condition is
    sufficient, but far from necessary; an empty interval proves nothing. The time is O(m^2 d).

    Args:
        points: Points, (m, d).
        labels: Cluster of each point, (m,).

    Returns:
        Lower end (inclusive) and upper end (exclusive).

    Example:
        >>> import numpy as np
        >>> from coterie.clustering import recovery_interval
        >>> recovery_interval(np.array([[0.0], [1.0], [9.0], [10.0]]), np.array([0, 0, 1, 1]))
        (0.5, 2.25)
    """
    from scipy.spatial.distance import cdist  # slow to import

    points, labels = np.asarray(points, dtype=np.float64), by_first_appearance(np.asarray(labels))
    sizes = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    lower, centres = 0.0, []
    for members in np.split(points[order], np.cumsum(sizes)[:-1]):
        rows = max(1, BLOCK // len(members))
        blocks = (members[i : i + rows] for i in range(0, len(members), rows))
        lower = max(lower, max(float(cdist(block, members).max()) for block in blocks) / len(members))
        centres.append(members.mean(axis=0))
    return lower, centre_gaps(np.array(centres), sizes)[2]


def log_grid(
    clusters_at: Callable[[float], float], ends: tuple[float, float], most: int, least: int, count: int
) -> Points:
    """Return a logarithmic grid of lambdas over the range in which the number of clusters changes.

    Args:
        clusters_at: Function that solves the problem for a lambda and returns K, or NaN if K is not certified.
        ends: Two lambdas with K > `most` / 2 and with K = `least`. Bisection narrows the interval until its ends are
            known up to the factor `NEAR`.
        most: Largest number of clusters.
        least: Smallest number of clusters.
        count: Number of lambdas.
    """
    low, high = ends
    low, above = _halved(low, high, lambda lam: clusters_at(lam) > most / 2)
    _, high = _halved(above, high, lambda lam: clusters_at(lam) != least)
    return np.geomspace(low, high, count)


def _halved(low: float, high: float, is_low: Callable[[float], bool]) -> tuple[float, float]:
    while high > low * NEAR:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if is_low(middle) else (low, middle)
    return low, high


def equidistant_grid(clusters_at: Callable[[float], int], most: int, least: int, count: int) -> Points:
    """Return the equidistant grid of the paper, whose ends are searched from 0.1 in factors of 1.25.

    Args:
        clusters_at: Function that solves the problem for a lambda and returns K.
        most: Number of clusters at the first lambda (all points separate).
        least: Number of clusters at the last lambda.
        count: Number of lambdas.
    """
    low = high = FIRST
    while clusters_at(low) < most:
        low /= FACTOR
    while clusters_at(high) > least:
        high *= FACTOR
    return np.linspace(low, high, count)


def most_frequent_count(counts: Sequence[int], allowed: Sequence[bool]) -> int | None:
    """Return the index of the chosen lambda: the middle one of those with the most frequent number of clusters.

    Ties go to the larger number of clusters, since coarser partitions than the true one also tend to be frequent.

    Args:
        counts: Number of clusters at each lambda.
        allowed: Whether each lambda may be chosen.

    Returns:
        Index of the lambda, or None if none is allowed.
    """
    places = [at for at, chosen in enumerate(allowed) if chosen]
    if not places:
        return None
    lives = {counts[at]: [other for other in places if counts[other] == counts[at]] for at in places}
    life = max(lives.items(), key=lambda item: (len(item[1]), item[0]))[1]
    return life[(len(life) - 1) // 2]


def allowed_by_rule_b(counts: Sequence[int], distinct: int) -> list[bool]:
    """Return which lambdas rule (b) allows: at least two clusters with at least two distinct points on average."""
    return [2 <= K <= distinct / 2 for K in counts]


def allowed_by_rule_a(points: Points, lambdas: Sequence[float], labels: Sequence[Labels]) -> list[bool]:
    """Return which lambdas rule (a) allows: (13) holds for their clusters, other than trivially.

    It holds trivially for a single cluster and for separate points.
    """
    found = []
    for lam, own in zip(lambdas, labels, strict=True):
        if not 2 <= int(own.max()) + 1 < len(points):
            found.append(False)
            continue
        lower, upper = recovery_interval(points, own)
        found.append(lower <= lam < upper)
    return found


def merge_tree(lambdas: Sequence[float], labels: Sequence[Labels]) -> Points:
    """Return the merge tree as a linkage matrix of SciPy, (m - 1, 4), with lambdas as heights.

    If more than two parts fuse between two lambdas of the path, they are merged one after the other at equal heights.

    Args:
        lambdas: Lambdas in ascending order.
        labels: Partition at each lambda. Partitions must be nested, and the last one a single cluster.
    """
    m = len(labels[0])
    part, sizes = np.arange(m), dict.fromkeys(range(m), 1)  # present part of each point
    rows: list[tuple[float, float, float, float]] = []
    for lam, own in zip(lambdas, labels, strict=True):
        for cluster in range(int(own.max()) + 1):
            members = own == cluster
            first, *others = np.unique(part[members])
            for other in others:
                new = m + len(rows)
                sizes[new] = sizes[first] + sizes[other]
                rows.append((float(first), float(other), float(lam), float(sizes[new])))
                first = new
            part[members] = first
    return np.array(rows, dtype=np.float64).reshape(-1, 4)


def oracle_lambda(points: Points, labels: Labels, random: np.random.RandomState) -> float:
    """Return the lambda of the paper's experiments: uniform in (13) of the true clusters, or its upper end if empty.

    For a single true cluster, whose interval is unbounded, it is the lower end.

    Args:
        points: Points, (m, d).
        labels: True clusters, (m,).
        random: Random number generator.
    """
    lower, upper = recovery_interval(points, labels)
    if math.isinf(upper):
        return lower
    return float(random.uniform(lower, upper)) if lower < upper else upper
