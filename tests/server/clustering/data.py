"""Solutions of the clients for the linear problems of the paper, without a federation."""

from __future__ import annotations

import numpy as np

FIGURE_2 = [(1, 2), (4, 5), (7, 8), (10, 11), (13, 14), (-2, -1), (-5, -4), (-8, -7), (-11, -10), (-14, -13)]
D_2 = [(0, 1), (1, 2), (-1, 0), (-2, -1)]


def solutions(intervals, n: int, seed: int, m: int = 100, d: int = 20):
    """Return least-squares solutions (m, d) of clients with n samples (5 active features, noise 1) and the truth."""
    random = np.random.default_rng(seed)
    models = np.array([random.uniform(a, b, d) for a, b in intervals])
    truth = np.arange(m) % len(models)
    points = np.empty((m, d))
    for i in range(m):
        active = np.argsort(random.random((n, d)), axis=1) < 5
        x = np.where(active, random.standard_normal((n, d)), 0.0)
        y = x @ models[truth[i]] + random.standard_normal(n)
        points[i] = np.linalg.lstsq(x, y, rcond=None)[0]
    return points, truth


def gaussian(m: int, p: int, seed: int):
    return np.random.default_rng(seed).standard_normal((m, p))


def blobs(sizes, centres, noise: float = 0.1, seed: int = 0):
    """Return points around centres, cluster after cluster, and their labels."""
    truth = np.repeat(np.arange(len(sizes)), sizes)
    random = np.random.default_rng(seed)
    centres = np.asarray(centres, dtype=float)
    return centres[truth] + noise * random.standard_normal((len(truth), centres.shape[1])), truth
