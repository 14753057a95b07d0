"""Passes over all pairs of nodes, compiled by Numba; see `convex_numpy` for the description of the same functions."""

from __future__ import annotations

import numpy as np

from coterie.core.compiled import compiled
from coterie.server.clustering.convex_numpy import HOPELESS, HOPELESS_ROUND

CYCLIC_LIMIT = 300
"""Number of nodes below which cyclic ascent is faster: it needs more passes for more nodes, accelerated ascent not."""


@compiled
def edge_ascent(duals, before, centres, sizes, ends, steps, radii, inertia, passes):  # type: ignore[no-untyped-def]
    """See `convex_numpy.edge_ascent`."""
    E, d = duals.shape
    duals, before = duals.copy(), before.copy()
    sums, points = np.empty_like(centres), np.empty_like(centres)
    ahead, moved = np.empty(d), np.empty(d)
    for _ in range(passes):
        following = (1.0 + np.sqrt(1.0 + 4.0 * inertia * inertia)) / 2.0
        momentum = (inertia - 1.0) / following
        sums[:] = 0.0
        for e in range(E):
            k, j = ends[e, 0], ends[e, 1]
            for c in range(d):
                value = duals[e, c] + momentum * (duals[e, c] - before[e, c])
                sums[k, c] += value
                sums[j, c] -= value
        for k in range(len(sizes)):
            for c in range(d):
                points[k, c] = centres[k, c] - sums[k, c] / sizes[k]
        against = 0.0
        for e in range(E):
            k, j = ends[e, 0], ends[e, 1]
            square = 0.0
            for c in range(d):
                ahead[c] = duals[e, c] + momentum * (duals[e, c] - before[e, c])
                moved[c] = ahead[c] + steps[e] * (points[k, c] - points[j, c])
                square += moved[c] * moved[c]
            scale = 1.0 if square <= radii[e] * radii[e] else radii[e] / np.sqrt(square)
            turn = 0.0
            for c in range(d):
                value = scale * moved[c]
                old = duals[e, c]
                turn += (ahead[c] - value) * (value - old)
                before[e, c] = old
                duals[e, c] = value
            against += turn / steps[e]
        inertia = 1.0 if against > 0.0 else following
    return duals, before, inertia


@compiled
def cyclic_pass(duals, points, sizes, lam):  # type: ignore[no-untyped-def]
    """Optimise the dual of one pair after the other with all others fixed; update `duals` and `points` in place."""
    K, d = points.shape
    moved = np.empty(d)
    e = 0
    for k in range(K):
        for j in range(k + 1, K):
            weight = sizes[k] * sizes[j]
            step = weight / (sizes[k] + sizes[j])
            square = 0.0
            for c in range(d):
                value = duals[e, c] + step * (points[k, c] - points[j, c])
                moved[c] = value
                square += value * value
            radius = lam * weight
            scale = 1.0 if square <= radius * radius else radius / np.sqrt(square)
            for c in range(d):
                value = scale * moved[c]
                change = value - duals[e, c]
                duals[e, c] = value
                points[k, c] -= change / sizes[k]
                points[j, c] += change / sizes[j]
            e += 1


@compiled
def accelerated_pass(duals, before, points, sizes, lam, momentum):  # type: ignore[no-untyped-def]
    """See `convex_numpy.accelerated_pass`."""
    K, d = points.shape
    total = sizes.sum()
    sums = np.zeros((K, d))
    moved = np.empty(d)
    against = 0.0
    e = 0
    for k in range(K):
        for j in range(k + 1, K):
            weight = sizes[k] * sizes[j]
            step = weight / total
            square = 0.0
            for c in range(d):
                ahead = duals[e, c] + momentum * (duals[e, c] - before[e, c])
                value = ahead + step * (points[k, c] - points[j, c])
                moved[c] = value
                square += value * value
            radius = lam * weight
            scale = 1.0 if square <= radius * radius else radius / np.sqrt(square)
            turn = 0.0
            for c in range(d):
                value = scale * moved[c]
                old = duals[e, c]
                turn += (old + momentum * (old - before[e, c]) - value) * (value - old)
                before[e, c] = old
                duals[e, c] = value
                sums[k, c] += value
                sums[j, c] -= value
            against += turn / weight
            e += 1
    return sums, against


@compiled
def node_sums(duals, K):  # type: ignore[no-untyped-def]
    """See `convex_numpy.node_sums`."""
    d = duals.shape[1]
    sums = np.zeros((K, d))
    e = 0
    for k in range(K):
        for j in range(k + 1, K):
            for c in range(d):
                sums[k, c] += duals[e, c]
                sums[j, c] -= duals[e, c]
            e += 1
    return sums


@compiled
def total_distance(points, sizes):  # type: ignore[no-untyped-def]
    """See `convex_numpy.total_distance`."""
    K, d = points.shape
    total = 0.0
    for k in range(K):
        row = 0.0
        for j in range(k + 1, K):
            square = 0.0
            for c in range(d):
                square += (points[k, c] - points[j, c]) ** 2
            row += sizes[j] * np.sqrt(square)
        total += sizes[k] * row
    return total


@compiled
def all_apart(points, sizes, gap):  # type: ignore[no-untyped-def]
    """See `convex_numpy.all_apart`."""
    K, d = points.shape
    for k in range(K):
        for j in range(k + 1, K):
            square = 0.0
            for c in range(d):
                square += (points[k, c] - points[j, c]) ** 2
            if square <= gap * (1.0 / sizes[k] + 1.0 / sizes[j]):
                return False
    return True


@compiled
def merge_duals(duals, labels, out):  # type: ignore[no-untyped-def]
    """See `convex_numpy.merge_duals`."""
    K = labels.max() + 1
    d = duals.shape[1]
    out[: K * (K - 1) // 2] = 0.0
    e = 0
    for k in range(len(labels)):
        for j in range(k + 1, len(labels)):
            first = min(labels[k], labels[j])
            second = max(labels[k], labels[j])
            if first != second:
                sign = 1.0 if first == labels[k] else -1.0
                place = first * (2 * K - first - 1) // 2 + second - first - 1
                for c in range(d):
                    out[place, c] += sign * duals[e, c]
            e += 1


@compiled
def fusion_ratio(duals, centres, sizes, members, lam, rounds):  # type: ignore[no-untyped-def]
    """See `convex_numpy.fusion_ratio`."""
    K, d = centres.shape
    s = len(members)
    total = 0.0
    mean = np.zeros(d)
    for k in members:
        total += sizes[k]
        mean += sizes[k] * centres[k]
    mean /= total
    inner = np.empty((s * (s - 1) // 2, d))
    e = 0
    for a in range(s):
        k = members[a]
        for b in range(a + 1, s):
            inner[e] = duals[k * (2 * K - k - 1) // 2 + members[b] - k - 1]
            e += 1
    best = np.inf
    missing = np.empty((s, d))
    for r in range(rounds + 1):
        shrunk = (1.0 - 10.0 ** (-1.0 - r / 5.0)) * lam
        for a in range(s):
            for c in range(d):
                missing[a, c] = sizes[members[a]] * (centres[members[a], c] - mean[c])
        e = 0
        for a in range(s):
            for b in range(a + 1, s):
                if r > 0:
                    square = 0.0
                    for c in range(d):
                        square += inner[e, c] * inner[e, c]
                    radius = shrunk * sizes[members[a]] * sizes[members[b]]
                    if square > radius * radius:
                        for c in range(d):
                            inner[e, c] *= radius / np.sqrt(square)
                for c in range(d):
                    missing[a, c] -= inner[e, c]
                    missing[b, c] += inner[e, c]
                e += 1
        worst = 0.0
        e = 0
        for a in range(s):
            size_a = sizes[members[a]]
            for b in range(a + 1, s):
                size_b = sizes[members[b]]
                square = 0.0
                for c in range(d):
                    inner[e, c] += (size_b * missing[a, c] - size_a * missing[b, c]) / total
                    square += inner[e, c] * inner[e, c]
                worst = max(worst, square / (lam * size_a * size_b) ** 2)
                e += 1
        best = min(best, np.sqrt(worst))
        if best <= 1.0 or (r == HOPELESS_ROUND and best > HOPELESS):
            break
    return best
