"""Passes over all pairs of nodes, row by row in NumPy, for use without Numba.

The index of the pair of nodes k < j among all pairs of K nodes is k (2 K - k - 1) / 2 + j - k - 1, so the pairs of a
node with all later nodes are adjacent. Arrays:

- ``points`` (K, d): present solution u of each node;
- ``centres`` (K, d): mean of the points of each node;
- ``sizes`` (K,): number of points of each node;
- ``duals`` (K (K - 1) / 2, d): dual z of each pair, with length at most ``lam sizes[k] sizes[j]``, which acts on node k
  with the sign + and on node j with the sign -.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]

CYCLIC_LIMIT = 0
"""Cyclic ascent is not used here, since it is sequential and would need a Python loop over pairs."""
HOPELESS_ROUND, HOPELESS = 4, 1.05
"""Round after which the search for a proof stops if the ratio is still larger than this value, since the search in
large sets is as expensive as passes. Numba's cache does not notice a change here: delete `__pycache__` after one."""


def _rows(K: int) -> Iterator[tuple[int, slice]]:
    """Yield the index of each node but the last, and the slice of its pairs with later nodes."""
    start = 0
    for k in range(K - 1):
        end = start + K - 1 - k
        yield k, slice(start, end)
        start = end


def shortened(vectors: Floats, radii: Floats) -> Floats:
    """Return the vectors, shortened to their maximum lengths `radii`."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scale = np.minimum(1.0, radii / np.maximum(lengths, np.finfo(float).tiny))
    return np.asarray(vectors * scale[:, None])


def edge_ascent(
    duals: Floats,
    before: Floats,
    centres: Floats,
    sizes: Floats,
    ends: Whole,
    steps: Floats,
    radii: Floats,
    inertia: float,
    passes: int,
) -> tuple[Floats, Floats, float]:
    """Take accelerated steps of the duals of E weighted edges; the momentum is reset when it points against a step.

    Args:
        duals: Dual of each edge, (E, d).
        before: Duals before the previous step, (E, d).
        centres: Mean of the points of each node, (K, d).
        sizes: Number of points of each node, (K,).
        ends: Nodes of each edge, (E, 2); a dual acts on the first one with the sign +, on the second one with -.
        steps: Step size of each edge, (E,).
        radii: Maximum length of each dual, (E,).
        inertia: Number from which the momentum of the next step is computed.
        passes: Number of steps.

    Returns:
        The duals, those before the last step, and the inertia.
    """
    one, other = ends[:, 0], ends[:, 1]
    for _ in range(passes):
        following = (1 + math.sqrt(1 + 4 * inertia**2)) / 2
        ahead = duals + (inertia - 1) / following * (duals - before)
        sums = np.zeros_like(centres)
        np.add.at(sums, one, ahead)
        np.subtract.at(sums, other, ahead)
        points = centres - sums / sizes[:, None]
        new = shortened(ahead + steps[:, None] * (points[one] - points[other]), radii)
        against = float((((ahead - new) * (new - duals)) / steps[:, None]).sum())
        before, duals = duals, new
        inertia = 1.0 if against > 0 else following
    return duals, before, inertia


def cyclic_pass(duals: Floats, points: Floats, sizes: Floats, lam: float) -> None:
    """Raise NotImplementedError; see `CYCLIC_LIMIT`."""
    raise NotImplementedError


def accelerated_pass(
    duals: Floats, before: Floats, points: Floats, sizes: Floats, lam: float, momentum: float
) -> tuple[Floats, float]:
    """Take one accelerated step of all duals, in place.

    The step sizes are sizes[k] sizes[j] / m for m points in total, which is exact, since the Laplacian of the complete
    graph is m I - 1 1^T.

    Args:
        duals: Duals, which are updated in place.
        before: Duals before the previous step, which are updated in place.
        points: Solution u at the extrapolated duals, (K, d).
        sizes: Number of points of each node, (K,).
        lam: The lambda.
        momentum: Factor of the extrapolation.

    Returns:
        Sum of the duals of each node, (K, d), and a number that is positive if the momentum points against the step.
    """
    K = len(points)
    sums, against, total = np.zeros_like(points), 0.0, sizes.sum()
    for k, row in _rows(K):
        weights = sizes[k] * sizes[k + 1 :]
        old = duals[row].copy()
        ahead = old + momentum * (old - before[row])
        stepped = ahead + (weights / total)[:, None] * (points[k] - points[k + 1 :])
        new = shortened(stepped, lam * weights)
        against += float(((ahead - new) * (new - old)).sum(axis=1) @ (1.0 / weights))
        before[row], duals[row] = old, new
        sums[k] += new.sum(axis=0)
        sums[k + 1 :] -= new
    return sums, against


def node_sums(duals: Floats, K: int) -> Floats:
    """Return the sum of the duals over the pairs of each node, (K, d)."""
    sums = np.zeros((K, duals.shape[1]))
    for k, row in _rows(K):
        sums[k] += duals[row].sum(axis=0)
        sums[k + 1 :] -= duals[row]
    return sums


def total_distance(points: Floats, sizes: Floats) -> float:
    """Return the sum of sizes[k] sizes[j] |u_k - u_j| over all pairs."""
    return sum(
        float(sizes[k] * (sizes[k + 1 :] @ np.linalg.norm(points[k + 1 :] - points[k], axis=1)))
        for k in range(len(points) - 1)
    )


def all_apart(points: Floats, sizes: Floats, gap: float) -> bool:
    """Return whether the gap proves that no two nodes have the same u at the optimum.

    The gap is an upper bound of the sum of sizes[k] |u_k - u*_k|^2, hence |(u_k - u_j) - (u*_k - u*_j)|^2 <=
    gap (1 / sizes[k] + 1 / sizes[j]).
    """
    for k in range(len(points) - 1):
        squares = ((points[k + 1 :] - points[k]) ** 2).sum(axis=1)
        if (squares <= gap * (1.0 / sizes[k] + 1.0 / sizes[k + 1 :])).any():
            return False
    return True


def merge_duals(duals: Floats, labels: Whole, out: Floats) -> None:
    """Write the duals of merged nodes to the beginning of `out`; `labels` (K,) are the new indices of the nodes."""
    K = int(labels.max()) + 1
    out[: K * (K - 1) // 2] = 0.0
    for k, row in _rows(len(labels)):
        first, second = np.minimum(labels[k], labels[k + 1 :]), np.maximum(labels[k], labels[k + 1 :])
        between = first != second
        sign = np.where(first == labels[k], 1.0, -1.0)[between, None]
        places = (first * (2 * K - first - 1) // 2 + second - first - 1)[between]
        np.add.at(out, places, sign * duals[row][between])


def fusion_ratio(duals: Floats, centres: Floats, sizes: Floats, members: Whole, lam: float, rounds: int) -> float:
    """Return the smallest ratio r found for which nodes are proved to be fused at r lam; a ratio up to 1 means at lam.

    A proof consists of duals within the set that move every centre to the common mean, with lengths at most r lam times
    their weights. The search starts from the present duals and alternates between shortening the duals and correcting
    their sums by the smallest change. The maximum length approaches lam from round to round, since sets that are barely
    fused have no margin.

    Args:
        duals: Present duals of all pairs.
        centres: Centres of all nodes, (K, d).
        sizes: Number of points of each node, (K,).
        members: Nodes of the set in ascending order, (s,).
        lam: The lambda.
        rounds: Maximum number of corrections.
    """
    own, mine = sizes[members], centres[members]
    total, s = own.sum(), len(members)
    demand = own[:, None] * (mine - own @ mine / total)
    inner = _inner_duals(duals, members, len(centres))
    weights = np.concatenate([own[a] * own[a + 1 :] for a in range(s)])
    best = np.inf
    for r in range(rounds + 1):
        if r > 0:
            inner = shortened(inner, (1.0 - 10.0 ** (-1.0 - r / 5.0)) * lam * weights)
        missing = demand - node_sums(inner, s)
        for a, row in _rows(s):
            inner[row] += (own[a + 1 :, None] * missing[a] - own[a] * missing[a + 1 :]) / total
        best = min(best, float((np.linalg.norm(inner, axis=1) / (lam * weights)).max()))
        if best <= 1.0 or (r == HOPELESS_ROUND and best > HOPELESS):
            break
    return best


def _inner_duals(duals: Floats, members: Whole, K: int) -> Floats:
    """Return the duals of the pairs within a set, (s (s - 1) / 2, d), whose members are in ascending order."""
    places = [k * (2 * K - k - 1) // 2 + members[a + 1 :] - k - 1 for a, k in enumerate(members)]
    return np.asarray(duals[np.concatenate(places)])
