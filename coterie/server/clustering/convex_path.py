"""The clusterpath: which lambdas are tried, which of them is taken, and the tree of fusions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from coterie.server.clustering.partition import Labels, Points, by_first_appearance
from coterie.server.clustering.separation import BLOCK, centre_gaps

NEAR = 1.2
"""The ends of a log grid are found up to this factor."""
FIRST, FACTOR = 0.1, 1.25
"""Where the paper's search for the ends of the path begins, and its factor (appendix D.2)."""


def recovery_interval(points: Points, labels: Labels) -> tuple[float, float]:
    """Lower and upper end of (13): any lambda from lower to below upper recovers exactly the clusters `labels` (m,).

    lower is the largest of diameter / size, upper the least of centre distance / (2m - both sizes), infinite for one
    cluster. The condition is sufficient, far from necessary; lower >= upper (an empty interval) proves nothing. O(m^2
    d) for the diameters.
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
    """`count` lambdas, each the same factor above the last one, where the number of clusters changes.

    `ends` are lambdas with K > `most` / 2 and with K = `least`, known without solving but far apart; they are brought
    nearer by halving until they are known up to the factor `NEAR`. Each try costs one solution. `clusters_at` is not a
    number (nan) where nothing is proved; such a lambda stays between the ends.
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
    """The paper's grid: ends found from 0.1 in factors of 1.25, then equidistant lambdas.

    `clusters_at` solves one lambda and returns K; the first lambda has K = `most` (all separate), the last K = `least`.
    """
    low = high = FIRST
    while clusters_at(low) < most:
        low /= FACTOR
    while clusters_at(high) > least:
        high *= FACTOR
    return np.linspace(low, high, count)


def longest_life(counts: Sequence[int], allowed: Sequence[bool]) -> int | None:
    """The place of the lambda to take: the K that lives at the most allowed places, there the middle one.

    Of two that live equally long the finer is taken: a coarsening of the truth tends to live long as well. None if
    nothing is allowed.
    """
    places = [at for at, yes in enumerate(allowed) if yes]
    if not places:
        return None
    lives = {counts[at]: [other for other in places if counts[other] == counts[at]] for at in places}
    life = max(lives.items(), key=lambda item: (len(item[1]), item[0]))[1]
    return life[(len(life) - 1) // 2]


def some_structure(counts: Sequence[int], distinct: int) -> list[bool]:
    """Rule (b) chooses among these: at least two clusters, of two distinct points each on the average."""
    return [2 <= K <= distinct / 2 for K in counts]


def verified(points: Points, lambdas: Sequence[float], labels: Sequence[Labels]) -> list[bool]:
    """Rule (a) chooses among these: (13) holds for the lambda's own clusters. One cluster, and all separate, hold
    trivially."""
    found = []
    for lam, own in zip(lambdas, labels, strict=True):
        if not 2 <= int(own.max()) + 1 < len(points):
            found.append(False)
            continue
        lower, upper = recovery_interval(points, own)
        found.append(lower <= lam < upper)
    return found


def merge_tree(lambdas: Sequence[float], labels: Sequence[Labels]) -> Points:
    """The fusions as SciPy's linkage matrix (m - 1, 4): two parts, the lambda at which they are first together, points.

    `labels` are nested partitions, coarser with every lambda, the last of one cluster. Where more than two parts fuse
    between two lambdas of the path, they are joined one after the other at the same height.
    """
    m = len(labels[0])
    part, sizes = np.arange(m), dict.fromkeys(range(m), 1)  # of each point: the highest part it is in so far
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
    """The paper's choice in its experiments: uniform in (13) of the true clusters, its upper end if (13) is empty.

    For one true cluster the upper end is infinite; then the lower end is taken, from which on all is one cluster.
    """
    lower, upper = recovery_interval(points, labels)
    if math.isinf(upper):
        return lower
    return float(random.uniform(lower, upper)) if lower < upper else upper
