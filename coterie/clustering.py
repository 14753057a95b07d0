"""Convex clustering as a scikit-learn estimator, and a figure of its clusterpath.

Example:
    >>> import numpy as np
    >>> from coterie.clustering import ConvexClustering
    >>> points = np.array([[0.0, 0.0], [0.1, 0.0], [5.0, 5.0], [5.1, 5.0]])
    >>> ConvexClustering().fit_predict(points)
    array([0, 0, 1, 1])
"""

from collections.abc import Sequence

from coterie.errors import ConfigError
from coterie.report.clusterpath import clusterpath
from coterie.server.clustering.convex import ConvexClustering, recovery_interval

__all__ = ["ConvexClustering", "path_picture", "recovery_interval"]


def path_picture(model: ConvexClustering, names: Sequence[str] | None = None) -> str:
    """Return a figure of the clusterpath of a fitted model.

    Args:
        model: Model that was fitted with `lam="path"` and `weights="uniform"`.
        names: Name of each point; by default their indices.

    Returns:
        Content of an SVG file.

    Raises:
        ConfigError: if the model has no merge tree, or the number of names differs from the number of points.

    Example:
        >>> from coterie.clustering import ConvexClustering, path_picture
        >>> model = ConvexClustering(lam="path").fit([[0.0], [0.1], [5.0], [5.1]])
        >>> path_picture(model, names=["a", "b", "c", "d"])[:4]
        '<svg'
    """
    if not hasattr(model, "merge_tree_"):
        raise ConfigError("the model has no merge tree: fit it with lam='path' and weights='uniform' first")
    if names is not None and len(names) != len(model.labels_):
        raise ConfigError(f"names must have one entry for each of the {len(model.labels_)} points, got {len(names)}")
    counts = model.n_clusters_path_.tolist()
    return clusterpath(
        model.merge_tree_, model.lambdas_.tolist(), counts, model.selected_, model.labels_.tolist(), names
    )
