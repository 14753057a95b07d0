"""Clusterings as tools of their own, in scikit-learn's manner, and the picture of a path."""

from collections.abc import Sequence

from coterie.errors import ConfigError
from coterie.report.clusterpath import clusterpath
from coterie.server.clustering.convex import ConvexClustering, recovery_interval

__all__ = ["ConvexClustering", "path_picture", "recovery_interval"]


def path_picture(model: ConvexClustering, names: Sequence[str] | None = None) -> str:
    """The path of a fitted model as the text of an SVG file; `names` (m,) are those of the points."""
    if not hasattr(model, "merge_tree_"):
        raise ConfigError("a picture needs a tree: fit with lam='path' and weights='uniform' first")
    if names is not None and len(names) != len(model.labels_):
        raise ConfigError(f"names must be {len(model.labels_)}, one a point, got {len(names)}")
    counts = model.n_clusters_path_.tolist()
    return clusterpath(
        model.merge_tree_, model.lambdas_.tolist(), counts, model.selected_, model.labels_.tolist(), names
    )
