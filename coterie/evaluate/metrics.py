"""Metrics that are computed from arrays, without asking clients."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def agreement(truth: Ints, found: Ints) -> dict[str, float]:
    """Return how well clusters agree with true groups, regardless of how they are numbered.

    Args:
        truth: (n,) the true group of each client.
        found: (n,) the cluster of each client.

    Returns:
        `ari`, the adjusted Rand index (0 by chance, 1 if equal); `nmi`, the normalised mutual information; `identity`,
        the share of clients in the right cluster under the best one-to-one matching of clusters and groups.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    counts = np.zeros((int(truth.max()) + 1, int(found.max()) + 1), dtype=np.int64)
    np.add.at(counts, (truth, found), 1)
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return {
        "ari": _adjusted_rand(counts),
        "nmi": _normalised_information(counts),
        "identity": float(counts[rows, columns].sum() / len(truth)),
    }


# scikit-learn has both indices, but checks its arguments for longer than a round of a small run takes.


def _adjusted_rand(counts: Ints) -> float:
    """Return the adjusted Rand index, from counts by group and cluster (G, K)."""
    return _beyond_chance(
        *(int((n * (n - 1) // 2).sum()) for n in (counts, counts.sum(axis=1), counts.sum(axis=0), counts.sum()))
    )


def weighted_rand_index(one: Ints, other: Ints, weights: Floats) -> float:
    """Return the adjusted Rand index of two clusterings in which a pair of clients counts by the product of weights.

    With equal weights it is the ordinary index. Clients with little information, whose clusters are nearly random,
    lower the index only a little if they have small weights.

    Args:
        one: (n,) the cluster of each client.
        other: (n,) the cluster of each client in the other clustering.
        weights: (n,) the weight of each client, at least 0.
    """
    shape = (int(one.max()) + 1, int(other.max()) + 1)
    sums, squares = np.zeros(shape), np.zeros(shape)
    np.add.at(sums, (one, other), weights)
    np.add.at(squares, (one, other), weights**2)
    axes: tuple[int | tuple[int, ...], ...] = ((), 1, 0, (0, 1))
    return _beyond_chance(*(float((sums.sum(axis=a) ** 2 - squares.sum(axis=a)).sum()) for a in axes))


def _beyond_chance(both: float, in_one: float, in_other: float, everywhere: float) -> float:
    """Return the share of pairs that are together in both clusterings beyond chance, of the largest possible number.

    Args:
        both: Pairs that are together in both clusterings.
        in_one: Pairs that are together in the first one.
        in_other: Pairs that are together in the second one.
        everywhere: All pairs.
    """
    if both == in_one == in_other:
        return 1.0
    by_chance = in_one * in_other / everywhere
    return (both - by_chance) / ((in_one + in_other) / 2 - by_chance)


def _normalised_information(counts: Ints) -> float:
    """Return the mutual information over the mean of the two entropies, from the same table; 1 for a single group."""
    joint = counts / counts.sum()
    groups, clusters = joint.sum(axis=1), joint.sum(axis=0)
    entropies = sum(-float((p[p > 0] * np.log(p[p > 0])).sum()) for p in (groups, clusters))
    if entropies == 0:
        return 1.0
    some = joint > 0
    mutual = float((joint[some] * np.log(joint[some] / np.outer(groups, clusters)[some])).sum())
    return max(0.0, mutual) / (entropies / 2)


def worst_tenth(values: Floats, higher_is_better: bool) -> float:
    """Return the mean of the worst tenth of the values, of at least one value."""
    ordered = np.sort(values) if higher_is_better else np.sort(values)[::-1]
    return float(ordered[: max(1, round(len(values) / 10))].mean())


def parameter_error(true: Floats, found: Floats) -> float:
    """Return d(theta, theta*) of Su, Xu, Yang (eq. 6): the largest distance under the best matching of the models.

    With K = k the matching is one to one and minimises the largest distance; otherwise every true model is compared
    with the nearest model found.

    Args:
        true: (k, d) the true coefficients.
        found: (K, d) the coefficients found.
    """
    from scipy.optimize import linear_sum_assignment  # slow to import

    distance = np.linalg.norm(true[:, None] - found[None], axis=2)
    if len(true) != len(found):
        return float(distance.min(axis=1).max())
    for limit in np.unique(distance):
        rows, columns = linear_sum_assignment(distance > limit)
        if not (distance[rows, columns] > limit).any():
            return float(limit)
    raise AssertionError("the largest distance always allows a matching")
