"""Convex clustering as a scikit-learn estimator, with certified partitions for one lambda or along the path.

Armacki, Bajovic, Jakovetic, Kar, "A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments": problem (12), condition (13), appendix C. With uniform weights, clusters never split as lambda increases
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
    allowed_by_rule_a,
    allowed_by_rule_b,
    equidistant_grid,
    log_grid,
    merge_tree,
    most_frequent_count,
    oracle_lambda,
    recovery_interval,
)
from coterie.server.clustering.partition import Labels, Points, by_first_appearance, totals

__all__ = ["ConvexClustering", "recovery_interval"]

GRID_SIZES = {"log": 25, "equidistant": 10}
"""Default number of lambdas of each grid."""
SEARCH_PASSES = 100
"""Maximum number of passes for lambdas in the search for the ends of the path."""
SLACK = 1e-3
"""Maximum relative increase of lambda in the proof of a partition that cannot be certified at lambda itself."""


class ConvexClustering(ClusterMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Convex (sum-of-norms) clustering with certified partitions, as a scikit-learn estimator.

    For points a_i, the rows of a matrix (m, d), it minimises ``1/2 sum_i |u_i - a_i|^2 + lam sum_{i<j} w_ij |u_i -
    u_j|``. Points with the same u form a cluster. Equality of u is certified by a proof, not determined with a
    tolerance.

    Args:
        lam: A positive number, `"path"` or `"oracle13"`. `"path"` solves a grid of lambdas and chooses one by `rule`.
            `"oracle13"` is the choice in the experiments of the paper, a uniform random number in the interval (13) of
            the TRUE clusters, which are the argument y of `fit`, or its upper end if (13) is empty. It is for
            reproductions only, since it needs the true clusters.
        weights: `"uniform"` or `"knn"`. Uniform weights are 1 for all pairs. With `"knn"`, the weights are
            exp(-decay d^2 / mean d^2) for pairs of nearest neighbours in either direction, and 0 for all others, where
            d is the distance and the mean is over these pairs.
        n_neighbors: Number of neighbours for `"knn"`.
        decay: Decay of the weights for `"knn"`.
        grid: `"log"` or `"equidistant"`. `"log"` has constant ratios between lambdas, from one with more clusters than
            half of the points to one with a single cluster (for `"knn"`, one for each connected component).
            `"equidistant"` is the grid of the paper, whose ends are searched from 0.1 in factors of 1.25.
        grid_size: Number of lambdas; by default 25 for `"log"` and 10 for `"equidistant"`.
        rule: `"b"` or `"a-then-b"`. Rule `"b"` chooses the most frequent number of clusters K in the grid, with K
            between 2 and half of the distinct points; ties go to the larger K, and K is 1 if there is no such K.
            Certified partitions are preferred. `"a-then-b"` applies the same rule to lambdas that satisfy (13) for
            their own clusters (other than a single cluster or separate points), or to all lambdas if there are none.
        max_passes: Maximum number of passes over all pairs for one lambda; if it is reached, `certified_` is False.
        memory_limit: Maximum memory in bytes; by default half of the available memory. Larger problems are refused.
        random_state: Seed or random number generator for `"oracle13"`.

    Attributes:
        labels_: Cluster of each point, (m,), numbered by first appearance. If it is not certified: with uniform
            weights, the points of a cluster certainly belong together, but clusters may have to be merged, so that K is
            an upper bound; with `"knn"`, it is the best guess.
        n_clusters_: Number of clusters (K).
        centroids_: Solution u of each cluster, (K, d), which is shrunk towards the other clusters.
        means_: Mean of each cluster's points, (K, d).
        objective_: Objective of the solution.
        gap_: Upper bound of the difference between `objective_` and the minimum.
        relative_gap_: `gap_` as a share of `objective_`.
        certified_: Whether `labels_` are exactly the clusters at `proved_lam_`, up to rounding.
        lam_: Lambda of the solution.
        proved_lam_: Lambda for which the partition is certified: `lam_`, or at most 0.1 % more near a fusion.
        passes_: Number of passes over all pairs for `lam_`.
        n_components_: Number of connected components of the graph, for `"knn"`.
        lambdas_: Lambdas of the path in ascending order, (N,).
        n_clusters_path_: Number of clusters at each lambda, (N,).
        certified_path_: Whether the partition at each lambda is certified, (N,).
        objective_path_: Objective at each lambda, (N,).
        gap_path_: Gap at each lambda, (N,).
        labels_path_: Labels at each lambda, (N, m).
        selected_: Index of `lam_` in `lambdas_`.
        merge_tree_: Linkage matrix of SciPy, (m - 1, 4), with lambdas as heights, for a path with uniform weights.

    Example:
        >>> from coterie.clustering import ConvexClustering
        >>> model = ConvexClustering(lam=0.5).fit([[0.0], [0.1], [5.0], [5.1]])
        >>> model.labels_, model.certified_
        (array([0, 0, 1, 1]), True)
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
        """Cluster points.

        Args:
            X: Points, (m, d).
            y: True clusters, (m,); used for `lam="oracle13"` only.

        Returns:
            The fitted estimator.

        Raises:
            ConfigError: if a setting is not allowed, or the problem needs too much memory.
        """
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
                f"the partition at lam={self.lam_:.4g} is not certified after max_passes={self.max_passes} passes "
                f"(relative gap {self.relative_gap_:.1e}): increase max_passes, or change lam slightly",
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
        integers = {"n_neighbors": 1, "max_passes": 1, "grid_size": 2, "memory_limit": 1}
        for name, least in integers.items():
            value = getattr(self, name)
            if value is None and name in ("grid_size", "memory_limit"):
                continue
            if not (isinstance(value, Integral) and int(value) >= least):
                raise ConfigError(f"{name} must be a whole number from {least} on, got {value!r}")
        if not (isinstance(self.decay, Real) and math.isfinite(self.decay) and self.decay >= 0):
            raise ConfigError(f"decay must be a number from 0 on, got {self.decay!r}")
        if self.weights == "knn" and (self.lam == "oracle13" or self.rule == "a-then-b"):
            raise ConfigError(
                "condition (13) is for uniform weights only: with weights='knn' use rule='b', lam as a number or 'path'"
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
            raise ConfigError(
                f"there must be one true cluster for each of the {len(points)} points, got shape {truth.shape}"
            )
        lam = oracle_lambda(points, truth, check_random_state(self.random_state))
        if lam <= 0:
            raise ConfigError(
                f"condition (13) gives lam={lam:g} for these true clusters, but lam must be positive: check that the "
                "clusters have different means and that not all points are equal"
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
        if high == 0:  # all points are equal or none are connected: the partition is the same for every lambda
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
        if problem.least > 1:  # connected components are never merged
            return counts.index(problem.least)
        rules = [allowed_by_rule_b(counts, problem.most)]
        if self.rule == "a-then-b":
            rules.insert(0, allowed_by_rule_a(points, self.lambdas_.tolist(), list(self.labels_path_)))
        for allowed in rules:
            # Without a certificate, K is only an upper bound, so such lambdas are chosen only if there are no others.
            for among in (self.certified_path_ & allowed, np.array(allowed)):
                chosen = most_frequent_count(counts, among.tolist())
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
    """Solution for one lambda in the coordinates of the data."""

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
    """Problem with uniform weights; equal points are one node, in coordinates of the subspace spanned by the points."""

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
        """Return a lambda below which more than half of the points are separate, and one with a single cluster."""
        from sklearn.neighbors import NearestNeighbors  # slow to import

        if self.most == 1:
            return 0.0, 0.0
        nearest, _ = NearestNeighbors(n_neighbors=1).fit(self.nodes.centres).kneighbors()
        m = len(self.nodes.owner)
        return float(np.median(nearest)) / (2 * (m - 1)), float(self.nodes.tree[1][-1]) / m

    def path(self, lambdas: Sequence[float], budget: int) -> list[_Found]:
        """Solve for ascending lambdas, each starting from the partition of the previous one."""
        nodes = self.nodes.merged(screened(self.nodes, lambdas[0]))
        K, d = nodes.centres.shape
        check_memory(
            bytes_for_duals(K, d),
            self.memory_limit,
            f"{K} points that are not fused at the first lambda, in {d} dimensions,",
        )
        ascent = Ascent(nodes, lambdas[0], best_kernels())
        return [self._converted(solve(ascent, lam, self.scatter, budget, SLACK)) for lam in lambdas]

    def _converted(self, found: Solution) -> _Found:
        labels = by_first_appearance(found.nodes.owner)
        _, first = np.unique(labels, return_index=True)
        centroids = found.points[found.nodes.owner[first]] @ self.basis + self.mean
        return _Found(labels, centroids, found.objective, found.gap, found.certified, found.proved_lam, found.passes)


def _spanned(centred: Points) -> Points:
    """Return an orthonormal basis, (rank, d), of the span of the rows of `centred` (K, d)."""
    _, values, rows = np.linalg.svd(centred, full_matrices=False)
    cut = values[0] * max(centred.shape) * np.finfo(float).eps
    return np.asarray(rows[: max(1, int((values > cut).sum()))])


class _Neighbours:
    """Problem with weights of nearest neighbours."""

    def __init__(self, points: Points, neighbours: int, decay: float, memory_limit: int | None) -> None:
        check_memory(bytes_for_distances(len(points)), memory_limit, f"the distances of {len(points)} points")
        self.mean = points.mean(axis=0)
        self.graph: Graph = nearest_neighbours(points - self.mean, neighbours, decay)
        self.most, self.least = len(np.unique(points, axis=0)), int(self.graph.components.max()) + 1

    def ends(self) -> tuple[float, float]:
        """Return the range of lambdas; see `lambda_range`."""
        return lambda_range(self.graph)

    def path(self, lambdas: Sequence[float], budget: int) -> list[_Found]:
        """Solve for each lambda separately, since clusters may split as lambda increases with these weights."""
        return [self._one(lam, budget) for lam in lambdas]

    def _one(self, lam: float, budget: int) -> _Found:
        found = solve_graph(self.graph, lam, budget)
        sums, sizes = totals(found.points, found.labels, int(found.labels.max()) + 1)
        centroids = sums / sizes[:, None] + self.mean
        return _Found(found.labels, centroids, found.objective, found.gap, found.certified, lam, found.passes)
