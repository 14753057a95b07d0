"""The regressor."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import RegressorMixin
from sklearn.metrics import r2_score
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.sklearn.estimator import ClusteredEstimator
from coterie.sklearn.groups import Array


class ClusteredRegressor(RegressorMixin, ClusteredEstimator):  # type: ignore[misc]
    """A regressor that finds clusters among groups of rows (sites, clients) and trains a model for each cluster.

    Parameters and attributes are those of `ClusteredClassifier` without `classes_`; the default learner is linear
    regression with an intercept.

    Example:
        >>> import numpy as np
        >>> from coterie.sklearn import ClusteredRegressor
        >>> random = np.random.default_rng(0)
        >>> site, X = np.repeat(np.arange(8), 30), random.normal(size=(240, 2))
        >>> y = np.where(site % 2, 2.0, -2.0) * X[:, 0] + X[:, 1]
        >>> model = ClusteredRegressor("ifca", clusters=2, rounds=30, restarts=2).fit(X, y, groups=site)
        >>> bool(model.score(X, y, groups=site) > 0.9)
        True
    """

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Find clusters among the groups and train a model for each.

        Args:
            X: Features (n, d), numbers.
            y: Target of each row (n,).
            groups: Group of each row (n,), such as the name of its site.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if the arrays cannot be used.
        """
        rows, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        return self._fit(rows, targets.astype(np.float64), (), groups)

    def predict(self, X: npt.ArrayLike, groups: npt.ArrayLike | None = None, support: Any = None) -> Array:
        """Return the prediction for each row (n,).

        Args:
            X: Features (n, d).
            groups: Group of each row (n,). Groups that trained predict by the model of their cluster. All others, and
                all rows if no groups are given, are predicted by the mixture of all models with weights `weights_`.
            support: Labelled rows (X, y, groups) of new groups, which are placed by them.

        Returns:
            The predictions.

        Raises:
            ValueError: if the arrays cannot be used.
        """
        check_is_fitted(self)
        return self._outputs(X, groups, support)

    def score(
        self,
        X: npt.ArrayLike,
        y: npt.ArrayLike,
        groups: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> float:
        """Return the coefficient of determination R^2 of `predict(X, groups)`."""
        return float(r2_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _ask(
        self,
        samples: dict[str, Array],
        *,
        client: str | None = None,
        support: tuple[dict[str, Array], Array] | None = None,
        weights: Array | None = None,
    ) -> Array:
        if weights is not None:
            return self.result_.predict_mixed(samples, weights)
        return self.result_.predict(samples, client=client, support=support)

    def _targets(self, y: Array) -> Array:
        return np.asarray(y, dtype=np.float64)
