"""Passes over all pairs of nodes, row by row in NumPy: what is used without Numba.

Nodes k < j of K have the pair number k (2 K - k - 1) / 2 + j - k - 1, so a node's pairs with all later nodes lie side
by side. Arrays:

- ``points`` (K, d): the present u; ``centres`` (K, d): the means of the points fused in each node; ``sizes`` (K,): how
  many they are.
- ``duals`` (K (K - 1) / 2, d): z of each pair, at most ``lam sizes[k] sizes[j]`` long; node k feels +z, node j feels
  -z.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Whole = NDArray[np.intp]

CYCLIC_LIMIT = 0
"""Cyclic ascent is sequential by nature and would be a loop over pairs in Python."""
HOPELESS_ROUND, HOPELESS = 4, 1.05
"""A set that is still so far from a proof after so many rounds is given up: large sets cost as much as passes.
Numba's cache does not notice a change here: delete `__pycache__` after one."""


def _rows(K: int) -> Iterator[tuple[int, slice]]:
    """For every node but the last: its number, and where its pairs with the later nodes are."""
    begin = 0
    for k in range(K - 1):
        end = begin + K - 1 - k
        yield k, slice(begin, end)
        begin = end


def shortened(vectors: Floats, radii: Floats) -> Floats:
    """Each vector, cut to its radius if it is longer."""
    lengths = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
    scale = np.minimum(1.0, radii / np.maximum(lengths, np.finfo(float).tiny))
    return np.asarray(vectors * scale[:, None])


def cyclic_pass(duals: Floats, points: Floats, sizes: Floats, lam: float) -> None:
    """Not offered here, see `CYCLIC_LIMIT`."""
    raise NotImplementedError


def accelerated_pass(
    duals: Floats, before: Floats, points: Floats, sizes: Floats, lam: float, momentum: float
) -> tuple[Floats, float]:
    """One step of all duals from where momentum has carried them; `points` belong to that place.

    The steps are sizes[k] sizes[j] / m for m points in all: exact, since the Laplacian of the complete graph is m I -
    1 1^T. Changes `duals` and `before` (those of the last step) in place. Returns the sums of duals over each node's
    pairs (K, d), and a number above 0 if momentum points against the step.
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
    """The sum of the duals over each node's pairs (K, d)."""
    sums = np.zeros((K, duals.shape[1]))
    for k, row in _rows(K):
        sums[k] += duals[row].sum(axis=0)
        sums[k + 1 :] -= duals[row]
    return sums


def total_distance(points: Floats, sizes: Floats) -> float:
    """The sum of sizes[k] sizes[j] |u_k - u_j| over all pairs."""
    return sum(
        float(sizes[k] * (sizes[k + 1 :] @ np.linalg.norm(points[k + 1 :] - points[k], axis=1)))
        for k in range(len(points) - 1)
    )


def all_apart(points: Floats, sizes: Floats, gap: float) -> bool:
    """Whether the gap proves that no two nodes have the same u at the optimum.

    The gap bounds the sum of sizes[k] |u_k - u*_k|^2, hence |(u_k - u_j) - (u*_k - u*_j)|^2 <= gap (1 / sizes[k] + 1 /
    sizes[j]).
    """
    for k in range(len(points) - 1):
        squares = ((points[k + 1 :] - points[k]) ** 2).sum(axis=1)
        if (squares <= gap * (1.0 / sizes[k] + 1.0 / sizes[k + 1 :])).any():
            return False
    return True


def merge_duals(duals: Floats, labels: Whole, out: Floats) -> None:
    """Fills the beginning of `out` with the duals of merged nodes, `labels` (K,) being each node's new number."""
    K = int(labels.max()) + 1
    out[: K * (K - 1) // 2] = 0.0
    for k, row in _rows(len(labels)):
        first, second = np.minimum(labels[k], labels[k + 1 :]), np.maximum(labels[k], labels[k + 1 :])
        between = first != second
        sign = np.where(first == labels[k], 1.0, -1.0)[between, None]
        places = (first * (2 * K - first - 1) // 2 + second - first - 1)[between]
        np.add.at(out, places, sign * duals[row][between])


def fusion_ratio(duals: Floats, centres: Floats, sizes: Floats, members: Whole, lam: float, rounds: int) -> float:
    """The least r found for which the members (s,) are proved to be fused from r lam on; at most 1 means: at lam.

    Proof: duals inside the set that alone carry every member's centre to the common mean, none longer than r lam times
    its weight. Such duals are sought from the present ones: cut to a little less than lam, corrected by the least
    change that carries all centres again, and so on for so many rounds. The cut comes nearer to lam from round to
    round, since sets near the end of being fused have no room.
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
    """The duals (s (s - 1) / 2, d) of the pairs inside a set; the members are ascending."""
    places = [k * (2 * K - k - 1) // 2 + members[a + 1 :] - k - 1 for a, k in enumerate(members)]
    return np.asarray(duals[np.concatenate(places)])
