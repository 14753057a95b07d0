"""Convex clustering: against CVXPY with its default solver, and how it grows with the points and the dimensions.

    python benchmarks/convex_clustering.py            # both
    python benchmarks/convex_clustering.py --growth   # without CVXPY
    python benchmarks/convex_clustering.py --growth --quick

Ten clusters of equal size with the models of the paper's figure 2 as centres and noise of 0.1 around them. "recovery"
is 1.02 times the lower end of (13), where the clusters are found; "transition" is 0.75 times that, near the
smallest lambda at which they are. Processor seconds, one thread, Numba's compilation apart. CVXPY is no dependency:
`pip install cvxpy`.
"""

import argparse
import importlib.util
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from coterie.clustering import ConvexClustering, recovery_interval
from coterie.errors import ConfigError
from coterie.server.clustering.partition import by_first_appearance

FACTORS = {"recovery": 1.02, "transition": 0.75}
REPEATS = 5
TOGETHER = 1e-3
"""Points nearer than this count as fused in CVXPY's answer, which comes without a proof."""
SIZES = [(100, 20), (300, 20), (1000, 20), (3000, 20), (5000, 20), (100, 200), (300, 200), (1000, 200), (2000, 200)]
TOO_LARGE = (5000, 200)


def data(m: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points (m, d) and their clusters."""
    random = np.random.default_rng(0)
    lows = np.array([1.0, 4, 7, 10, 13, -2, -5, -8, -11, -14])
    centres = lows[:, None] + random.random((10, d))
    truth = np.arange(m) % 10
    return centres[truth] + 0.1 * random.standard_normal((m, d)), truth


def seconds(work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.process_time()
    found = work()
    return time.process_time() - started, found


def by_cvxpy(points: np.ndarray, lam: float) -> np.ndarray:
    """Return u (m, d) from a conic solver."""
    import cvxpy

    m = len(points)
    one, other = np.triu_indices(m, 1)
    differences = np.zeros((len(one), m))
    differences[np.arange(len(one)), one], differences[np.arange(len(one)), other] = 1.0, -1.0
    u = cvxpy.Variable(points.shape)
    lengths = cvxpy.norm(differences @ u, 2, axis=1)
    cvxpy.Problem(cvxpy.Minimize(0.5 * cvxpy.sum_squares(u - points) + lam * cvxpy.sum(lengths))).solve()
    return np.asarray(u.value)


def labels_of(u: np.ndarray) -> np.ndarray:
    from scipy.cluster.hierarchy import fcluster, linkage

    return by_first_appearance(fcluster(linkage(u, "single"), TOGETHER, "distance"))


def against_cvxpy(m: int, d: int) -> None:
    points, truth = data(m, d)
    lower, _ = recovery_interval(points, truth)
    print(f"{f'm={m}, d={d}':<16} {'K':>4} {'ours, s':>9} {'CVXPY, s':>9} {'ratio':>8} {'same partition':>15}")
    for name, factor in FACTORS.items():
        lam = factor * lower
        ours = [seconds(lambda lam=lam: ConvexClustering(lam).fit(points)) for _ in range(REPEATS)]
        found, own = ours[0][1], median(took for took, _ in ours)
        theirs, u = seconds(lambda lam=lam: by_cvxpy(points, lam))
        same = "yes" if found.certified_ and (labels_of(u) == found.labels_).all() else "no"
        print(
            f"{name:<16} {found.n_clusters_:>4} {own:>9.4f} {theirs:>9.1f} {theirs / own:>8.0f} {same:>15}", flush=True
        )


def growth(sizes: list[tuple[int, int]]) -> None:
    print(f"{'m':>5} {'d':>4} {'':<11} {'K':>5} {'seconds':>8} {'passes':>7} {'certified':>10}")
    for m, d in sizes:
        points, truth = data(m, d)
        lower, _ = recovery_interval(points, truth)
        for name, factor in FACTORS.items():
            took, found = seconds(lambda lam=factor * lower, points=points: ConvexClustering(lam).fit(points))
            reported = f"{found.n_clusters_:>5} {took:>8.3f} {found.passes_:>7} {found.certified_!s:>10}"
            print(f"{m:>5} {d:>4} {name:<11} {reported}", flush=True)


def refusal() -> None:
    points, truth = data(*TOO_LARGE)
    lower, _ = recovery_interval(points, truth)
    print(f"{TOO_LARGE[0]:>5} {TOO_LARGE[1]:>4} transition refused: ", end="")
    try:
        ConvexClustering(FACTORS["transition"] * lower, memory_limit=16 * 10**9).fit(points)
    except ConfigError as error:
        print(error)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true", help="only the growth, without CVXPY")
    parser.add_argument("--quick", action="store_true", help="up to 1000 points in 20 dimensions")
    chosen = parser.parse_args()
    with threadpool_limits(limits=1):
        compiling, _ = seconds(
            lambda: [ConvexClustering(lam).fit(data(m, 3)[0]) for m, lam in ((40, 0.01), (320, 0.003))]
        )
        print(f"first use, with Numba's compilation where it is not in the cache: {compiling:.1f} s")
        if not chosen.growth:
            if importlib.util.find_spec("cvxpy"):
                against_cvxpy(100, 20)
            else:
                print(
                    "CVXPY is not installed, so there is nothing to compare with: `pip install cvxpy`, or use --growth"
                )
        growth(SIZES[:3] if chosen.quick else SIZES)
        if not chosen.quick:
            refusal()
