"""One door to the server's clusterings: the clients' solutions in, clusters and how far to trust them out."""

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
"""The settings that are names, and their values."""


@dataclass(frozen=True)
class ClusterSettings:
    """Which clustering, and how."""

    clustering: str = "kmeans++"
    clusters: int | None = None
    """K; None: by the silhouette. Convex clustering looks for K on its path; None: by its rule."""
    spectral_parts: int = 3
    """3: all of algorithm 2. 1: its first part alone, as in theorem 3."""
    gradient_step: float = 1.0
    """alpha m of gradient clustering, below 2."""
    lam: float | str | None = None
    """Convex clustering: a fixed lambda; "oracle13", the paper's choice from the true clusters; None: by the path."""
    convex_grid: str = "log"
    """The lambdas of the path: log or equidistant (the paper's)."""
    convex_rule: str = "b"
    """Which of them is taken: b, or a-then-b (the paper's)."""
    convex_weights: str = "uniform"
    """uniform, or knn."""

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
            raise ConfigError(f"lam={self.lam} belongs to clustering=convex, not to {self.clustering}: leave it out")
        if self.clusters is not None:
            raise ConfigError(
                f"lam={self.lam} already decides the number of clusters: leave out clusters={self.clusters}"
            )
        if isinstance(self.lam, str) and self.lam != "oracle13":
            raise ConfigError(f"lam must be a positive number or oracle13, got {self.lam!r}")
        if not isinstance(self.lam, str) and not 0 < self.lam < math.inf:
            raise ConfigError(f"lam must be a positive number or oracle13, got {self.lam}")


@dataclass(frozen=True)
class Clustered:
    """The clients' clusters."""

    labels: Labels
    """(m,) numbered by first appearance."""
    K: int
    separation: Separation
    facts: dict[str, Any]
    """Everything a report needs, ready for JSON: clustering, K, counted, convex, separation, warnings."""


@dataclass(frozen=True)
class _Found:
    """Labels (m,), and what the way to them has to tell."""

    labels: Labels
    counted: dict[str, object] | None = None
    convex: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()


def cluster_points(
    points: npt.ArrayLike, settings: ClusterSettings, seed: int, truth: npt.NDArray[np.int64] | None = None
) -> Clustered:
    """Cluster points (m, p), one a client. `truth` (m,), the true clusters, is read for lam="oracle13" alone.

    The partition does not depend on the order of the points: they are sorted first, so that random seedings fall on
    the same ones. Points with more entries than there are points are rotated into as many dimensions as points,
    which leaves all distances and products as they are.
    """
    given = checked(points)
    if truth is not None and len(truth) != len(given):
        raise ConfigError(f"the true clusters must be one for each of the {len(given)} points, got {len(truth)}")
    order = np.lexsort(given.T[::-1])
    place = np.argsort(order)
    turned = rotated(given[order])
    if settings.clustering == "convex":
        found = _by_convex(turned, settings, seed, None if truth is None else truth[order])
    else:
        found = _by_count(turned, settings, seed)
    clustered = _clustered(turned[place], found.labels[place], found, settings)
    if (path := (clustered.facts["convex"] or {}).get("path")) is not None:
        path |= {"tree": path["tree"] and _with_leaves(path["tree"], order), "labels": clustered.labels.tolist()}
    return clustered


def _with_leaves(tree: list[list[float]], order: Labels) -> list[list[float]]:
    """A merge tree of points that were sorted, with the numbers they had before."""
    names = [*order.tolist(), *range(len(order), 2 * len(order))]
    return [[float(names[int(one)]), float(names[int(other)]), *rest] for one, other, *rest in tree]


def rotated(points: Points) -> Points:
    """Coordinates (m, min(m, p)) with the same distances and products; the points themselves unless p > m."""
    if points.shape[1] <= len(points):
        return points
    upper = np.asarray(np.linalg.qr(points.T, mode="r"))
    return np.ascontiguousarray(upper.T)


def _clustered(points: Points, labels: Labels, found: _Found, settings: ClusterSettings) -> Clustered:
    """The clusters in the order of the clients, measured."""
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
    """Whether lambda satisfies (13) with the clusters found; None for weights, for which (13) is not meant."""
    return measured.satisfied_by(convex["lam"]) if settings.convex_weights == "uniform" else None


def _by_count(points: Points, settings: ClusterSettings, seed: int) -> _Found:
    """K-means++, spectral or gradient clustering with K given or counted."""
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
    """Convex clustering with a fixed lambda, or with one from the path."""
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
        warnings.simplefilter("ignore", ConvergenceWarning)  # that a partition is not proved is said below
        model.fit(points, truth)
    if settings.lam is None and settings.clusters is not None:
        return _from_path(model, _place_of(settings.clusters, model))
    if settings.lam is None:
        found = _from_path(model, model.selected_)
        return replace(found, warnings=(*found.warnings, *_about_path(points, model, seed)))
    facts = _solved(model.lam_, model.objective_, model.gap_, model.certified_)
    return _Found(model.labels_, convex=facts, warnings=_doubts(facts))


def _place_of(K: int, path: Any) -> int:
    """The middle one of the lambdas of a fitted path that give K clusters."""
    at = np.flatnonzero(path.n_clusters_path_ == K)
    if not len(at):
        offered = ", ".join(map(str, np.unique(path.n_clusters_path_)))
        raise ConfigError(f"no lambda of the path gives {K} clusters, only {offered}: set clusters to one of these")
    return int(at[len(at) // 2])


def _from_path(path: Any, at: int) -> _Found:
    """What a fitted path found at one of its lambdas."""
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
    """A sentence where no number of clusters lives at two lambdas of a path with uniform weights.

    In many dimensions such a path may go from all separate to a single cluster at once, however clear the groups are.
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
        f"the path of convex clustering shows no groups: it goes through K={passed} and stays at none between the "
        f"ends. The silhouette finds {K}: give {advice}",
    )


def _solved(lam: float, objective: float, gap: float, certified: bool) -> dict[str, Any]:
    return {"lam": float(lam), "objective": float(objective), "gap": float(gap), "certified": bool(certified)}


def _doubts(facts: dict[str, Any]) -> tuple[str, ...]:
    if facts["certified"]:
        return ()
    return (f"the partition at lambda={facts['lam']:.3g} is not proved: convex clustering used up its passes",)
