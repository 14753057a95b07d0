"""Convex clustering as an estimator: partitions that are proved, for one lambda or along the path.

Armacki, Bajovic, Jakovetic, Kar, "A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments": problem (12), condition (13), appendix C. With uniform weights clusters never split as lambda grows
(Chiquet, Gutierrez, Rigaill 2017; Jiang, Vavasis, Zhai 2020).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from coterie.errors import ConfigError, unknown_name
from coterie.server.clustering.convex_dual import Ascent, Solution, best_kernels, solve
from coterie.server.clustering.convex_graph import Graph, lambda_range, nearest_neighbours, solve_graph
from coterie.server.clustering.convex_memory import bytes_for_distances, bytes_for_duals, check_memory
from coterie.server.clustering.convex_nodes import Nodes, screened
from coterie.server.clustering.convex_path import (
    equidistant_grid,
    log_grid,
    longest_life,
    merge_tree,
    oracle_lambda,
    recovery_interval,
    some_structure,
    verified,
)
from coterie.server.clustering.partition import Labels, Points, by_first_appearance, totals

__all__ = ["ConvexClustering", "recovery_interval"]

GRID_SIZES = {"log": 25, "equidistant": 10}
SEARCH_PASSES = 100
"""For a lambda that only serves to find the ends of the path."""
SLACK = 1e-3
"""A partition that cannot be proved at lambda itself may be proved at one larger by at most this share."""


class ConvexClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Convex (sum-of-norms) clustering of points a_i, the rows of an array A (m, d).

    Minimises ``1/2 sum_i |u_i - a_i|^2 + lam sum_{i<j} w_ij |u_i - u_j|``; points with the same u are a cluster. Which
    points have the same u is proved, not read off with a tolerance.

    Parameters
    ----------
    lam : a positive number, "path" or "oracle13"
        "path" solves a grid of lambdas and takes one by `rule`. "oracle13" is the choice of the paper's experiments:
        uniform in the interval (13) of the TRUE clusters, given as y to `fit`, or its upper end if (13) is empty. It
        is for reproductions only, since it needs to know the answer.
    weights : "uniform" or "knn"
        "uniform": w = 1 for all pairs. "knn": w = exp(-decay d^2 / mean d^2) for each point's nearest neighbours, in
        either direction, and 0 for all others; d^2 is the squared distance and its mean is over these pairs.
    n_neighbors, decay : for "knn" only
    grid : "log" or "equidistant"
        "log": equal factors between the lambdas, from one with more clusters than half of the points to one at which
        all are one cluster (for "knn": all that are connected). "equidistant": the grid of the paper, whose ends
        are searched from 0.1 in factors of 1.25.
    grid_size : number of lambdas, by default 25 for "log" and 10 for "equidistant"
    rule : "b" or "a-then-b"
        "b": the K with the longest life, which is the number of lambdas of the grid with that K, among 2 <= K <= half
        of the distinct points. Of two equal ones the finer, and one cluster if no K is in that range; what is proved
        goes before what is not.
        "a-then-b": the same among the lambdas that satisfy (13) with their own clusters (neither one cluster nor all
        separate), and rule "b" if there are none.
    max_passes : passes over all pairs for one lambda; when they are over, `certified_` is False
    memory_limit : bytes; by default half of what is available. A problem that may need more is refused before it starts
    random_state : for "oracle13" only

    Attributes
    ----------
    labels_ (m,), n_clusters_
        Clusters, numbered by first appearance. If not certified: every cluster is proved to be fused, but some may
        belong together ("uniform"), so K is an upper bound; or the best guess ("knn").
    centroids_ (K, d)
        The u of each cluster: the solution, which is drawn towards the other clusters.
    means_ (K, d)
        The mean of each cluster's points.
    objective_, gap_, relative_gap_
        The objective at the solution, and at most how far it is above the least one; the latter as a share of the
        objective.
    certified_
        True: `labels_` are exactly the clusters at `proved_lam_`, up to rounding.
    lam_, proved_lam_
        The lambda that was solved, and the one for which the partition is proved: the same in most cases, larger by at
        most 0.1 % where lam lies so close to a fusion that no proof came in time.
    passes_
        Passes over all pairs that were needed, for the lambda taken.
    n_components_
        For "knn": the connected parts of the graph, which no lambda joins.
    lambdas_, n_clusters_path_, certified_path_, objective_path_, gap_path_ (N,), labels_path_ (N, m)
        For a path: each lambda in ascending order, its K, whether its partition is proved, its objective and gap, and
        its labels.
    selected_
        For a path: the place of `lam_` in `lambdas_`.
    merge_tree_ (m - 1, 4)
        For a path with uniform weights: SciPy's linkage matrix, with the lambda at which two parts are first together
        as height.
    """

    def __init__(
        self,
        lam: float | str = "path",
        *,
        weights: str = "uniform",
        n_neighbors: int = 5,
        decay: float = 0.5,
        grid: str = "log",
        grid_size: int | None = None,
        rule: str = "b",
        max_passes: int = 1000,
        memory_limit: int | None = None,
        random_state: Any = 0,
    ) -> None:
        self.lam = lam
        self.weights = weights
        self.n_neighbors = n_neighbors
        self.decay = decay
        self.grid = grid
        self.grid_size = grid_size
        self.rule = rule
        self.max_passes = max_passes
        self.memory_limit = memory_limit
        self.random_state = random_state

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike | None = None) -> Self:
        """Cluster the rows of X (m, d). y (m,) are the true clusters, read for lam="oracle13" only."""
        points: Points = validate_data(self, X, dtype=np.float64, ensure_all_finite=True)
        self._check_settings()
        problem = self._problem(points)
        if self.lam == "path":
            self._fit_path(points, problem)
        else:
            self.lam_ = self._single_lambda(points, y)
            self._keep(points, problem.path([self.lam_], self.max_passes)[0])
        if not self.certified_:
            warnings.warn(
                f"the partition at lam={self.lam_:.4g} is not proved after max_passes={self.max_passes} passes "
                f"(relative gap {self.relative_gap_:.1e}): raise max_passes, or move lam a little",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _check_settings(self) -> None:
        choices = {"weights": ("uniform", "knn"), "grid": tuple(GRID_SIZES), "rule": ("b", "a-then-b")}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, str(getattr(self, name)), known)
        if isinstance(self.lam, str):
            if self.lam not in ("path", "oracle13"):
                raise unknown_name("lam", self.lam, ("path", "oracle13"))
        elif not (isinstance(self.lam, Real) and math.isfinite(self.lam) and self.lam > 0):
            raise ConfigError(f"lam must be a positive number, 'path' or 'oracle13', got {self.lam!r}")
        wholes = {"n_neighbors": 1, "max_passes": 1, "grid_size": 2, "memory_limit": 1}
        for name, least in wholes.items():
            value = getattr(self, name)
            if value is None and name in ("grid_size", "memory_limit"):
                continue
            if not (isinstance(value, Integral) and int(value) >= least):
                raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
        if not (isinstance(self.decay, Real) and math.isfinite(self.decay) and self.decay >= 0):
            raise ConfigError(f"decay must be a number from 0 on, got {self.decay!r}")
        if self.weights == "knn" and (self.lam == "oracle13" or self.rule == "a-then-b"):
            raise ConfigError(
                "(13) is a condition for uniform weights: with weights='knn' use rule='b' and a number or 'path' as lam"
            )

    def _single_lambda(self, points: Points, y: npt.ArrayLike | None) -> float:
        if self.lam != "oracle13":
            return float(self.lam)
        if y is None:
            raise ConfigError(
                "lam='oracle13' needs the true clusters: fit(A, true_labels); without them use lam='path'"
            )
        truth = np.asarray(y)
        if truth.shape != (len(points),):
            raise ConfigError(f"the true clusters must be {len(points)} labels, one a point, got shape {truth.shape}")
        lam = oracle_lambda(points, truth, check_random_state(self.random_state))
        if lam <= 0:
            raise ConfigError(
                f"(13) gives lam={lam:g} for these true clusters, which must be positive: two of them have the same "
                "mean, or all points are equal"
            )
        return lam

    def _problem(self, points: Points) -> _Uniform | _Neighbours:
        if self.weights == "knn":
            problem = _Neighbours(points, self.n_neighbors, self.decay, self.memory_limit)
            self.n_components_ = int(problem.graph.components.max()) + 1
            return problem
        return _Uniform(points, self.memory_limit)

    def _fit_path(self, points: Points, problem: _Uniform | _Neighbours) -> None:
        self.lambdas_ = self._grid(problem)
        found = problem.path(self.lambdas_.tolist(), self.max_passes)
        self.labels_path_ = np.array([each.labels for each in found])
        self.n_clusters_path_ = self.labels_path_.max(axis=1) + 1
        self.certified_path_ = np.array([each.certified for each in found])
        self.objective_path_ = np.array([each.objective for each in found])
        self.gap_path_ = np.array([each.gap for each in found])
        self.selected_ = self._chosen(points, problem)
        self.lam_ = float(self.lambdas_[self.selected_])
        self._keep(points, found[self.selected_])
        if self.weights == "uniform":
            self.merge_tree_ = merge_tree(self.lambdas_.tolist(), list(self.labels_path_))

    def _grid(self, problem: _Uniform | _Neighbours) -> Points:
        count = self.grid_size or GRID_SIZES[self.grid]
        low, high = problem.ends()
        if high == 0:  # all points are equal, or nothing is connected: every lambda says the same
            return np.ones(1)
        if self.grid == "equidistant":
            return equidistant_grid(
                lambda lam: problem.path([lam], self.max_passes)[0].K, problem.most, problem.least, count
            )

        def proved_clusters(lam: float) -> float:
            found = problem.path([lam], min(SEARCH_PASSES, self.max_passes))[0]
            return found.K if found.certified else math.nan

        return log_grid(proved_clusters, (min(low, high / 2), high), problem.most, problem.least, count)

    def _chosen(self, points: Points, problem: _Uniform | _Neighbours) -> int:
        counts: list[int] = self.n_clusters_path_.tolist()
        if problem.least > 1:  # connected parts live for ever
            return counts.index(problem.least)
        rules = [some_structure(counts, problem.most)]
        if self.rule == "a-then-b":
            rules.insert(0, verified(points, self.lambdas_.tolist(), list(self.labels_path_)))
        for allowed in rules:
            # What is not proved is only an upper bound of K, so it is taken only if nothing else is there.
            for among in (self.certified_path_ & allowed, np.array(allowed)):
                chosen = longest_life(counts, among.tolist())
                if chosen is not None:
                    return chosen
        return counts.index(1)

    def _keep(self, points: Points, found: _Found) -> None:
        self.labels_ = found.labels
        self.n_clusters_ = found.K
        self.centroids_ = found.centroids
        sums, sizes = totals(points, found.labels, self.n_clusters_)
        self.means_ = sums / sizes[:, None]
        self.objective_, self.gap_ = found.objective, found.gap
        self.relative_gap_ = found.gap / found.objective if found.objective > 0 else 0.0
        self.certified_, self.proved_lam_, self.passes_ = found.certified, found.proved_lam, found.passes


@dataclass(frozen=True)
class _Found:
    """One lambda's solution in the coordinates of the data."""

    labels: Labels
    centroids: Points
    objective: float
    gap: float
    certified: bool
    proved_lam: float
    passes: int

    @property
    def K(self) -> int:
        return len(self.centroids)


class _Uniform:
    """Uniform weights: equal points as one node, in as many dimensions as the points span."""

    least = 1

    def __init__(self, points: Points, memory_limit: int | None) -> None:
        self.memory_limit = memory_limit
        check_memory(bytes_for_distances(len(points)), memory_limit, f"the distances of {len(points)} points")
        self.mean = points.mean(axis=0)
        distinct, owner = np.unique(points - self.mean, axis=0, return_inverse=True)
        self.basis = _spanned(distinct)
        owner = owner.reshape(-1)
        self.nodes = Nodes(distinct @ self.basis.T, np.bincount(owner).astype(np.float64), owner)
        self.scatter = float(self.nodes.sizes @ (self.nodes.centres**2).sum(axis=1))
        self.most = len(distinct)

    def ends(self) -> tuple[float, float]:
        """Below the first lambda more than half of the distinct points are alone; at the second all are one cluster."""
        from sklearn.neighbors import NearestNeighbors  # slow to import

        if self.most == 1:
            return 0.0, 0.0
        nearest, _ = NearestNeighbors(n_neighbors=1).fit(self.nodes.centres).kneighbors()
        m = len(self.nodes.owner)
        return float(np.median(nearest)) / (2 * (m - 1)), float(self.nodes.tree[1][-1]) / m

    def path(self, lambdas: Sequence[float], budget: int) -> list[_Found]:
        """Ascending lambdas, each from the partition of the one before."""
        nodes = self.nodes.merged(screened(self.nodes, lambdas[0]))
        K, d = nodes.centres.shape
        check_memory(
            bytes_for_duals(K, d),
            self.memory_limit,
            f"{K} points that are not fused from the start, in {d} dimensions,",
        )
        ascent = Ascent(nodes, lambdas[0], best_kernels())
        return [self._told(solve(ascent, lam, self.scatter, budget, SLACK)) for lam in lambdas]

    def _told(self, found: Solution) -> _Found:
        labels = by_first_appearance(found.nodes.owner)
        _, first = np.unique(labels, return_index=True)
        centroids = found.points[found.nodes.owner[first]] @ self.basis + self.mean
        return _Found(labels, centroids, found.objective, found.gap, found.certified, found.proved_lam, found.passes)


def _spanned(centred: Points) -> Points:
    """Orthonormal rows (rank, d) that span the rows of `centred` (K, d). Rotating into them changes no distance."""
    _, values, rows = np.linalg.svd(centred, full_matrices=False)
    cut = values[0] * max(centred.shape) * np.finfo(float).eps
    return np.asarray(rows[: max(1, int((values > cut).sum()))])


class _Neighbours:
    """Weights of nearest neighbours."""

    def __init__(self, points: Points, neighbours: int, decay: float, memory_limit: int | None) -> None:
        check_memory(bytes_for_distances(len(points)), memory_limit, f"the distances of {len(points)} points")
        self.mean = points.mean(axis=0)
        self.graph: Graph = nearest_neighbours(points - self.mean, neighbours, decay)
        self.most, self.least = len(np.unique(points, axis=0)), int(self.graph.components.max()) + 1

    def ends(self) -> tuple[float, float]:
        return lambda_range(self.graph)

    def path(self, lambdas: Sequence[float], budget: int) -> list[_Found]:
        """Each lambda by itself: with weights, clusters may split again as lambda grows."""
        return [self._one(lam, budget) for lam in lambdas]

    def _one(self, lam: float, budget: int) -> _Found:
        found = solve_graph(self.graph, lam, budget)
        sums, sizes = totals(found.points, found.labels, int(found.labels.max()) + 1)
        centroids = sums / sizes[:, None] + self.mean
        return _Found(found.labels, centroids, found.objective, found.gap, found.certified, lam, found.passes)
