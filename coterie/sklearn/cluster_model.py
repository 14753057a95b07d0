"""The model of one cluster as an estimator."""

from __future__ import annotations

from typing import Any

from sklearn.base import BaseEstimator

from coterie.sklearn.groups import Array
from coterie.training.result import Result


class ClusterModel(BaseEstimator):  # type: ignore[misc]
    """The model of one cluster of a finished run as a fitted estimator: `predict`, and `predict_proba` for classes.

    Args:
        result: A finished run.
        cluster: Number of the cluster.

    Example:
        >>> import coterie
        >>> from coterie.sklearn import ClusterModel
        >>> result = coterie.fit(coterie.scenario("mixed-regression", clients=8), "fedavg", rounds=2)
        >>> ClusterModel(result, 0).predict([[0.0] * result.profile.features[0]]).shape
        (1,)
    """

    def __init__(self, result: Result, cluster: int = 0) -> None:
        self.result = result
        self.cluster = cluster

    def predict(self, X: Any) -> Array:
        """Return the predictions (n,) for samples as `Result.predict` takes them: raw rows for a run of a table."""
        return self.result.predict(X, cluster=self.cluster)

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class (n, C)."""
        return self.result.predict_proba(X, cluster=self.cluster)


def estimator_of(result: Result, cluster: int = 0) -> ClusterModel:
    """Return the model of a cluster as a fitted estimator, which needs Coterie wherever it is used.

    Args:
        result: A finished run.
        cluster: Number of the cluster.

    Returns:
        The estimator.

    Raises:
        InputError: if there is no such cluster.

    Example:
        >>> import coterie
        >>> from coterie.sklearn import estimator_of
        >>> result = coterie.fit(coterie.scenario("mixed-regression", clients=8), "fedavg", rounds=2)
        >>> estimator_of(result).predict([[0.0] * result.profile.features[0]]).shape
        (1,)
    """
    result.module(cluster)  # refuses a cluster that does not exist
    return ClusterModel(result, cluster)
