"""Common interface of all clustering algorithms of the server: from the clients' solutions to clusters."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.errors import ConfigError, unknown_name
from coterie.server.clustering.counting import Cluster, count_clusters
from coterie.server.clustering.gradient import check_step, gradient_clustering
from coterie.server.clustering.kmeans import kmeans
from coterie.server.clustering.partition import Labels, Points, check_K, checked, partition, sklearn_seed
from coterie.server.clustering.separation import Separation, separation
from coterie.server.clustering.spectral import check_parts, spectral

CLUSTERINGS = ("kmeans++", "spectral", "convex", "gradient")
CHOICES = {
    "clustering": CLUSTERINGS,
    "convex_grid": ("log", "equidistant"),
    "convex_rule": ("b", "a-then-b"),
    "convex_weights": ("uniform", "knn"),
}
"""Settings with a fixed set of values."""


@dataclass(frozen=True)
class ClusterSettings:
    """Clustering algorithm and its settings.

    Raises:
        ConfigError: if a setting is not allowed.

    Example:
        >>> from coterie.extend import ClusterSettings
        >>> ClusterSettings("spectral", clusters=3).clusters
        3
    """

    clustering: str = "kmeans++"
    """Algorithm: `kmeans++`, `spectral`, `convex` or `gradient`."""
    clusters: int | None = None
    """Number of clusters (K). None: chosen by the silhouette, or for convex clustering by its rule."""
    spectral_parts: int = 3
    """Parts of spectral clustering (algorithm 2 of the paper): 3 for all, or 1 for the first only, as in theorem 3."""
    gradient_step: float = 1.0
    """Step size of gradient clustering times the number of points (alpha m), below 2."""
    lam: float | str | None = None
    """Lambda of convex clustering: a number; `oracle13`, the choice of the paper, which needs the true clusters; None:
    chosen from the path."""
    convex_grid: str = "log"
    """Lambdas of the path of convex clustering: `log`, or `equidistant` as in the paper."""
    convex_rule: str = "b"
    """Rule for the choice of lambda: `b`, or `a-then-b` as in the paper."""
    convex_weights: str = "uniform"
    """Weights of convex clustering: `uniform` or `knn`."""

    def __post_init__(self) -> None:
        for name, known in CHOICES.items():
            if getattr(self, name) not in known:
                raise unknown_name(name, getattr(self, name), known)
        if self.clusters is not None and self.clusters < 1:
            raise ConfigError(f"clusters must be at least 1, got {self.clusters}")
        check_parts(self.spectral_parts)
        check_step(self.gradient_step)
        self._check_lam()

    def _check_lam(self) -> None:
        if self.lam is None:
            return
        if self.clustering != "convex":
            raise ConfigError(f"lam={self.lam} needs clustering=convex, got {self.clustering}: leave lam out")
        if self.clusters is not None:
            raise ConfigError(
                f"lam={self.lam} determines the number of clusters: leave out lam or clusters={self.clusters}"
            )
        if isinstance(self.lam, str) and self.lam != "oracle13":
            raise ConfigError(f"lam must be a positive number or oracle13, got {self.lam!r}")
        if not isinstance(self.lam, str) and not 0 < self.lam < math.inf:
            raise ConfigError(f"lam must be a positive number or oracle13, got {self.lam}")


@dataclass(frozen=True)
class Clustered:
    """Clusters of points."""

    labels: Labels
    """Cluster of each point, (m,), numbered by first appearance."""
    K: int
    """Number of clusters."""
    separation: Separation
    """Separation of the clusters."""
    facts: dict[str, Any]
    """Facts for a report, as JSON values: clustering, K, counted, convex, separation, warnings."""


@dataclass(frozen=True)
class _Found:
    """Result of a clustering algorithm."""

    labels: Labels
    """Cluster of each point, (m,)."""
    counted: dict[str, object] | None = None
    """Facts about the choice of the number of clusters."""
    convex: dict[str, Any] | None = None
    """Facts about convex clustering."""
    warnings: tuple[str, ...] = ()
    """Warnings for the user."""


def cluster_points(
    points: npt.ArrayLike, settings: ClusterSettings, seed: int, truth: npt.NDArray[np.int64] | None = None
) -> Clustered:
    """Cluster points, such as the clients' solutions.

    The result does not depend on the order of the points, which are sorted first, so that random initialisation selects
    the same ones. If there are more dimensions than points, the points are rotated into a space with one dimension for
    each point, which preserves all distances and scalar products.

    Args:
        points: Points, (m, p).
        settings: Algorithm and settings.
        seed: Seed of random numbers.
        truth: True clusters, (m,); used for `lam="oracle13"` only.

    Returns:
        Clusters with facts for a report.

    Raises:
        ConfigError: if the settings do not fit the points.
        InputError: if the points are not finite numbers.

    Example:
        >>> from coterie.extend import ClusterSettings, cluster_points
        >>> cluster_points([[0.0], [0.1], [5.0], [5.1]], ClusterSettings(clusters=2), seed=0).labels
        array([0, 0, 1, 1])
    """
    given = checked(points)
    if truth is not None and len(truth) != len(given):
        raise ConfigError(f"there must be one true cluster for each of the {len(given)} points, got {len(truth)}")
    order = np.lexsort(given.T[::-1])
    place = np.argsort(order)
    coordinates = rotated(given[order])
    if settings.clustering == "convex":
        found = _by_convex(coordinates, settings, seed, None if truth is None else truth[order])
    else:
        found = _by_count(coordinates, settings, seed)
    clustered = _clustered(coordinates[place], found.labels[place], found, settings)
    if (path := (clustered.facts["convex"] or {}).get("path")) is not None:
        path |= {"tree": path["tree"] and _with_leaves(path["tree"], order), "labels": clustered.labels.tolist()}
    return clustered


def _with_leaves(tree: list[list[float]], order: Labels) -> list[list[float]]:
    """Return the merge tree of sorted points with the original numbers of the points."""
    names = [*order.tolist(), *range(len(order), 2 * len(order))]
    return [[float(names[int(one)]), float(names[int(other)]), *rest] for one, other, *rest in tree]


def rotated(points: Points) -> Points:
    """Return coordinates (m, min(m, p)) with the same distances and scalar products; the same points if p <= m."""
    if points.shape[1] <= len(points):
        return points
    upper = np.asarray(np.linalg.qr(points.T, mode="r"))
    return np.ascontiguousarray(upper.T)


def _clustered(points: Points, labels: Labels, found: _Found, settings: ClusterSettings) -> Clustered:
    """Return the clusters in the order of the points, with their separation and facts for a report."""
    part = partition(points, labels)
    measured = separation(points, part)
    facts = {
        "clustering": settings.clustering,
        "K": part.K,
        "counted": found.counted,
        "convex": found.convex and found.convex | {"satisfies_13": _satisfies_13(measured, found.convex, settings)},
        "separation": measured.facts(),
        "warnings": [*found.warnings, *measured.warnings],
    }
    return Clustered(part.labels, part.K, measured, facts)


def _satisfies_13(measured: Separation, convex: dict[str, Any], settings: ClusterSettings) -> bool | None:
    """Return whether lambda satisfies (13) for the clusters; None for weights `knn`, to which (13) does not apply."""
    return measured.satisfied_by(convex["lam"]) if settings.convex_weights == "uniform" else None


def _by_count(points: Points, settings: ClusterSettings, seed: int) -> _Found:
    """Cluster by k-means++, spectral or gradient clustering, with a given or chosen K."""
    cluster = _clustering(settings)
    if settings.clusters is not None:
        return _Found(cluster(points, settings.clusters, seed).labels)
    counted = count_clusters(points, cluster, seed=seed)
    return _Found(cluster(points, counted.K, seed).labels, counted=counted.facts(), warnings=counted.notes)


def _clustering(settings: ClusterSettings) -> Cluster:
    if settings.clustering == "spectral":
        return partial(spectral, parts=settings.spectral_parts)
    if settings.clustering == "gradient":
        return partial(gradient_clustering, step=settings.gradient_step)
    return kmeans


def _by_convex(points: Points, settings: ClusterSettings, seed: int, truth: Labels | None) -> _Found:
    """Cluster by convex clustering with a fixed lambda or one from the path."""
    from sklearn.exceptions import ConvergenceWarning  # slow to import

    from coterie.server.clustering.convex import ConvexClustering

    if settings.clusters is not None:
        check_K(points, settings.clusters)
    model = ConvexClustering(
        "path" if settings.lam is None else settings.lam,
        weights=settings.convex_weights,
        grid=settings.convex_grid,
        rule=settings.convex_rule,
        random_state=sklearn_seed(seed),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # replaced by a warning in the facts below
        model.fit(points, truth)
    if settings.lam is None and settings.clusters is not None:
        return _from_path(model, _place_of(settings.clusters, model))
    if settings.lam is None:
        found = _from_path(model, model.selected_)
        return replace(found, warnings=(*found.warnings, *_about_path(points, model, seed)))
    facts = _solved(model.lam_, model.objective_, model.gap_, model.certified_)
    return _Found(model.labels_, convex=facts, warnings=_doubts(facts))


def _place_of(K: int, path: Any) -> int:
    """Return the index of the middle lambda among those of a fitted path with K clusters."""
    at = np.flatnonzero(path.n_clusters_path_ == K)
    if not len(at):
        offered = ", ".join(map(str, np.unique(path.n_clusters_path_)))
        raise ConfigError(f"no lambda of the path has {K} clusters, only {offered}: set clusters to one of these")
    return int(at[len(at) // 2])


def _from_path(path: Any, at: int) -> _Found:
    """Return the result of a fitted path for one of its lambdas."""
    facts = _solved(path.lambdas_[at], path.objective_path_[at], path.gap_path_[at], path.certified_path_[at])
    facts["path"] = {
        "lambdas": path.lambdas_.tolist(),
        "K": path.n_clusters_path_.tolist(),
        "certified": path.certified_path_.tolist(),
        "selected": int(at),
        "tree": path.merge_tree_.tolist() if path.weights == "uniform" else None,
    }
    return _Found(path.labels_path_[at], convex=facts, warnings=_doubts(facts))


def _about_path(points: Points, path: Any, seed: int) -> tuple[str, ...]:
    """Return a warning if a path with uniform weights has no number of clusters at two or more lambdas.

    In many dimensions, such a path may jump from separate points to a single cluster even for clearly separated groups.
    """
    counts, found = path.n_clusters_path_, path.n_clusters_path_[path.selected_]
    if path.weights != "uniform" or (found > 1 and (counts == found).sum() > 1):
        return ()
    K = count_clusters(points, kmeans, seed=seed).K
    if found == K:
        return ()
    passed = ", ".join(map(str, np.unique(counts)[::-1]))
    advice = f"{'' if K == 1 else 'convex_weights=knn, or '}clustering=kmeans++ and clusters={K}"
    return (
        f"the path of convex clustering shows no groups: it has K={passed}, none of them at several lambdas between "
        f"the ends. The silhouette finds {K} clusters: set {advice}",
    )


def _solved(lam: float, objective: float, gap: float, certified: bool) -> dict[str, Any]:
    return {"lam": float(lam), "objective": float(objective), "gap": float(gap), "certified": bool(certified)}


def _doubts(facts: dict[str, Any]) -> tuple[str, ...]:
    if facts["certified"]:
        return ()
    return (
        f"the partition at lambda={facts['lam']:.3g} is not certified: convex clustering reached its maximum passes",
    )
