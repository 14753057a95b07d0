"""The classifier."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from coterie.core.schema import Label
from coterie.errors import InputError, shown
from coterie.sklearn.estimator import ClusteredEstimator
from coterie.sklearn.groups import Array


class ClusteredClassifier(ClassifierMixin, ClusteredEstimator):  # type: ignore[misc]
    """A classifier that finds clusters among groups of rows (sites, clients) and trains a model for each cluster.

    Args:
        method: "auto" diagnoses the groups and takes the recommended method, maybe one model for all; or a name
            (`coterie methods`), or a typed value such as `IFCA(clusters=4)`.
        clusters: Number of clusters, or "auto" where the method can choose it; None for the default of the method.
        learner: Model family such as "logistic" or "mlp:hidden=32"; by default logistic regression.
        standardize: Whether features are scaled to mean 0 and standard deviation 1 over all rows.
        random_state: Seed, or a `numpy.random.RandomState` that one is drawn from. None is the seed 0, so that every
            call gives the same result.
        **options: Options of `coterie.fit`, such as `rounds` and `lr`. They are parameters like the others.

    Attributes:
        classes_: Labels of the classes, sorted.
        cluster_: The cluster of each group that trained, by the value of the group.
        groups_: The groups that trained, sorted.
        weights_: Share of each cluster in the training rows; new groups are predicted by this mixture.
        result_: The `coterie.Result` with models, certainty, costs and records.
        n_features_in_, feature_names_in_, n_iter_: As in scikit-learn.

    Without `groups` all rows are one group, and the estimator is one ordinary model.

    Example:
        >>> import numpy as np
        >>> from coterie.sklearn import ClusteredClassifier
        >>> random = np.random.default_rng(0)
        >>> site, X = np.repeat(np.arange(8), 30), random.normal(size=(240, 2))
        >>> y = np.where(np.where(site % 2, 1, -1) * X[:, 0] > 0, "yes", "no")
        >>> model = ClusteredClassifier("ifca", clusters=2, rounds=20, restarts=2).fit(X, y, groups=site)
        >>> bool(model.score(X, y, groups=site) > 0.9)
        True
    """

    classes_: Array

    def fit(self, X: npt.ArrayLike, y: npt.ArrayLike, groups: npt.ArrayLike | None = None) -> Self:
        """Find clusters among the groups and train a model for each.

        Args:
            X: Features (n, d), numbers.
            y: Class of each row (n,).
            groups: Group of each row (n,), such as the name of its site.

        Returns:
            The fitted estimator.

        Raises:
            ValueError: if the arrays cannot be used, or there is only one class.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(labels)
        self.classes_, numbers = np.unique(labels, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(
                f"y holds only the class {shown(self.classes_[0])}: one class is not enough for a classifier"
            )
        return self._fit(rows, numbers.astype(np.int64), _plain_labels(self.classes_), groups)

    def predict(self, X: npt.ArrayLike, groups: npt.ArrayLike | None = None, support: Any = None) -> Array:
        """Return the most probable class of each row; arguments as in `predict_proba`."""
        check_is_fitted(self)
        return np.asarray(self.classes_[self.predict_proba(X, groups, support).argmax(axis=1)])

    def predict_proba(self, X: npt.ArrayLike, groups: npt.ArrayLike | None = None, support: Any = None) -> Array:
        """Return the probability of each class (n, C), in the order of `classes_`.

        Args:
            X: Features (n, d).
            groups: Group of each row (n,). Groups that trained predict by the model of their cluster. All others, and
                all rows if no groups are given, are predicted by the mixture of all models with weights `weights_`.
            support: Labelled rows (X, y, groups) of new groups, which are placed by them.

        Returns:
            The probabilities.

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
        """Return the accuracy of `predict(X, groups)`."""
        return float(accuracy_score(y, self.predict(X, groups), sample_weight=sample_weight))

    def _ask(
        self,
        samples: dict[str, Array],
        *,
        client: str | None = None,
        support: tuple[dict[str, Array], Array] | None = None,
        weights: Array | None = None,
    ) -> Array:
        if weights is not None:
            return self.result_.predict_proba_mixed(samples, weights)
        return self.result_.predict_proba(samples, client=client, support=support)

    def _targets(self, y: Array) -> Array:
        odd = [label for label in y.tolist() if label not in self.classes_.tolist()]
        if odd:
            raise InputError(f"support holds the class {odd[0]!r}, which was not in the training")
        return self.result_.schema.class_labels(np.searchsorted(self.classes_, y))


def _plain_labels(classes: Array) -> tuple[Label, ...]:
    """Return the classes as labels that a schema can hold; others, such as 0.5, as texts."""
    labels = classes.tolist()
    return tuple(labels) if all(isinstance(label, str | int) for label in labels) else tuple(map(str, labels))
