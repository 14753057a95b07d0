"""scikit-learn estimators: `ClusteredClassifier` and `ClusteredRegressor`, fitted with one group (site, client) a row.

::

    model = ClusteredClassifier(clusters=3).fit(X, y, groups=site)
    model.cluster_                          # {site: cluster}
    model.predict(X_new, groups=site_new)   # sites that trained predict by the model of their cluster

They work in pipelines and searches through scikit-learn's metadata routing (docs/sklearn.md).
"""

from __future__ import annotations

import inspect
import warnings
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from coterie.core.dataset import FederatedDataset
from coterie.core.readings import number_text
from coterie.core.schema import Label, Number, Schema
from coterie.data.arrays import stack_shard
from coterie.data.encode import scaled
from coterie.data.table import RECOMMENDED, step_size
from coterie.errors import ConfigError, InputError
from coterie.learners import LearnerChoice
from coterie.methods import FedAvg
from coterie.training.fitting import fit
from coterie.training.planning import MethodChoice, names_of
from coterie.training.result import Result

__all__ = ["ClusterModel", "ClusteredClassifier", "ClusteredRegressor", "estimator_of"]

Array = npt.NDArray[Any]
ONE_GROUP = "all"
"""Id of the only client where no groups are given."""
TARGET = "y"
"""Name of the target in the schema of the result."""
LARGEST_SEED = 2**31 - 1


class _Clustered(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Base of both estimators: parameters, groups, and the choice of models for each row."""

    def __init__(
        self,
        method: MethodChoice = "auto",
        *,
        clusters: int | str | None = None,
        learner: LearnerChoice | None = None,
        standardize: bool = True,
        random_state: int | np.random.RandomState | None = None,
        **options: Any,
    ) -> None:
        self.method = method
        self.clusters = clusters
        self.learner = learner
        self.standardize = standardize
        self.random_state = random_state
        for name, value in options.items():  # `fit` checks them, since scikit-learn wants no checks here
            setattr(self, name, value)

    # ---- parameters ------------------------------------------------------------------------------------------

    def _options(self) -> dict[str, Any]:
        """Return the options of `coterie.fit` that were given to the constructor or by `set_params`."""
        own = set(inspect.signature(_Clustered.__init__).parameters)
        return {
            name: value
            for name, value in vars(self).items()
            if name not in own and not name.startswith("_") and not name.endswith("_")
        }

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return all parameters by name, options of `coterie.fit` included."""
        return {**super().get_params(deep), **self._options()}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name; options of `coterie.fit` may be new ones."""
        known = super().get_params(deep=True)
        for name, value in params.items():
            if name not in known and "__" not in name:
                setattr(self, name, value)
        super().set_params(**{name: value for name, value in params.items() if name in known or "__" in name})
        return self

    # ---- fitting ---------------------------------------------------------------------------------------------

    def _fit(self, X: Array, y: Array, classes: tuple[Label, ...], groups: npt.ArrayLike | None) -> Self:
        values, codes = _groups(groups, len(X))
        data = _federation(self._schema(X, classes), X, y, values, codes)
        method: MethodChoice = self.method if len(values) > 1 else "fedavg"
        result = fit(data, method, learner=self.learner, seed=_seed(self.random_state), **self._fit_options(values))
        self.result_: Result = result
        self.groups_ = values
        self.cluster_ = dict(zip(values.tolist(), result.assignments.values(), strict=True))
        self.weights_ = _shares(result)
        self.n_iter_ = max(1, len(result.records))
        return self

    def _fit_options(self, groups: Array) -> dict[str, Any]:
        """Return the options for `coterie.fit`; for one group only those that one model can have."""
        given = {"clusters": self.clusters, **self._options()}
        if "seed" in given:
            raise ConfigError("seed is no parameter of the estimator: use random_state")
        given = {name: value for name, value in given.items() if value is not None}
        return given if len(groups) > 1 else {name: given[name] for name in names_of(FedAvg) if name in given}

    def _schema(self, X: Array, classes: tuple[Label, ...]) -> Schema:
        """Return the schema of a table of numbers, so that the result standardises and can be exported."""
        names = getattr(self, "feature_names_in_", None)
        names = [f"x{j}" for j in range(X.shape[1])] if names is None else [str(name) for name in names]
        means, deviations = X.mean(axis=0), X.std(axis=0)
        same = X.min(axis=0) == X.max(axis=0)
        scales = [(float(m), 0.0 if c else float(s)) for m, s, c in zip(means, deviations, same, strict=True)]
        if not self.standardize:
            scales = [(0.0, 1.0)] * X.shape[1]
        return Schema(tuple(Number(name) for name in names), tuple(scales), TARGET, classes)

    # ---- predicting ------------------------------------------------------------------------------------------

    def _outputs(self, X: npt.ArrayLike, groups: npt.ArrayLike | None, support: Any) -> Array:
        """Return numbers (n,) or probabilities (n, C)."""
        check_is_fitted(self)
        rows = validate_data(self, X, reset=False, dtype=np.float64)
        names, codes = (np.array([None], dtype=object), np.zeros(len(rows), np.int64))
        if groups is not None:
            names, codes = _groups(groups, len(rows))
        found: Array | None = None
        for code, name in enumerate(names.tolist()):
            own = codes == code
            outputs = self._of_group(self._columns(rows[own]), name, support)
            found = np.empty((len(rows), *outputs.shape[1:])) if found is None else found
            found[own] = outputs
        assert found is not None, "validate_data refuses an array without rows"
        return found

    def _of_group(self, samples: dict[str, Array], group: object, support: Any) -> Array:
        """Return the outputs for the rows of one group, by the models that serve it."""
        if group is not None and _id(group) in self.result_.assignments:
            return self._ask(samples, client=_id(group))
        given = None if support is None or group is None else self._support_of(support, group)
        return self._ask(samples, support=given) if given is not None else self._ask(samples, weights=self.weights_)

    def _support_of(self, support: Any, group: object) -> tuple[dict[str, Array], Array] | None:
        """Return the labelled rows of a new group; None if it has none."""
        if not isinstance(support, tuple | list) or len(support) != 3:
            raise InputError("support must be (X, y, groups): labelled rows of new groups, and the group of each row")
        rows = validate_data(self, support[0], reset=False, dtype=np.float64)
        labels = column_or_1d(support[1])
        names, codes = _groups(support[2], len(rows))
        if len(labels) != len(rows):
            raise InputError(f"support has {len(rows)} rows but {len(labels)} labels: give one label a row")
        own = np.array([_id(name) == _id(group) for name in names.tolist()])[codes]
        return (self._columns(rows[own]), self._targets(labels[own])) if own.any() else None

    def _columns(self, X: Array) -> dict[str, Array]:
        names = self.result_.schema.feature_names
        return {name: X[:, j] for j, name in enumerate(names)}

    def _ask(
        self,
        samples: dict[str, Array],
        *,
        client: str | None = None,
        support: tuple[dict[str, Array], Array] | None = None,
        weights: Array | None = None,
    ) -> Array:
        raise NotImplementedError

    def _targets(self, y: Array) -> Array:
        """Return labels as the result knows them."""
        raise NotImplementedError


class ClusteredClassifier(ClassifierMixin, _Clustered):  # type: ignore[misc]
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
            raise InputError(f"y holds only the class {self.classes_[0]!r}: one class is not enough for a classifier")
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


class ClusteredRegressor(RegressorMixin, _Clustered):  # type: ignore[misc]
    """A regressor that finds clusters among groups of rows (sites, clients) and trains a model for each cluster.

    Parameters and attributes are those of `ClusteredClassifier` without `classes_`; the default learner is linear
    regression with an intercept.
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


class ClusterModel(BaseEstimator):  # type: ignore[misc]
    """The model of one cluster of a finished run as a fitted estimator: `predict`, and `predict_proba` for classes.

    Args:
        result: A finished run.
        cluster: Number of the cluster.
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
    """
    result.module(cluster)  # refuses a cluster that does not exist
    return ClusterModel(result, cluster)


# ---- helpers -----------------------------------------------------------------------------------------------------


def _seed(random_state: int | np.random.RandomState | None) -> int:
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(LARGEST_SEED))


def _groups(groups: npt.ArrayLike | None, rows: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the different groups, sorted, and the position of each row's group (n,)."""
    if groups is None:
        warnings.warn(
            "fit was called without groups, so that all rows are one group and there is one model: pass groups=..., "
            "through a pipeline or a search by set_fit_request(groups=True) and metadata routing",
            UserWarning,
            stacklevel=4,
        )
        return np.array([ONE_GROUP], dtype=object), np.zeros(rows, np.int64)
    values = column_or_1d(check_array(groups, ensure_2d=False, dtype=None, ensure_all_finite=False))
    if len(values) != rows:
        raise InputError(f"{rows} rows but {len(values)} groups: give the group of each row")
    if any(value is None or value != value for value in values.tolist()):
        raise InputError("groups has missing values: give the group of each row")
    found, codes = np.unique(values.astype(str) if values.dtype.kind == "O" else values, return_inverse=True)
    return found, codes.astype(np.int64)


def _id(group: object) -> str:
    """Return the id of a group as a client; 1 and 1.0 are the same group."""
    return number_text(group) if isinstance(group, float) else str(group)


def _federation(schema: Schema, X: Array, y: Array, groups: Array, codes: npt.NDArray[np.int64]) -> FederatedDataset:
    """Return the groups as clients with standardised features."""
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes, minlength=len(groups))
    features = np.stack([scaled(X[:, j], scale) for j, scale in enumerate(schema.scales)], axis=1)[order]
    with np.errstate(over="ignore"):
        squares = (features**2).sum(axis=1)
    recommended = {
        **RECOMMENDED,
        "learner": "logistic" if schema.classes else "linear:bias=true",
        "lr": step_size(schema, squares, sizes),
    }
    train = stack_shard([_id(group) for group in groups.tolist()], features, y[order], sizes.tolist())
    return FederatedDataset("scikit-learn", train, recommended=recommended, schema=schema)


def _plain_labels(classes: Array) -> tuple[Label, ...]:
    """Return the classes as labels that a schema can hold; others, such as 0.5, as texts."""
    labels = classes.tolist()
    return tuple(labels) if all(isinstance(label, str | int) for label in labels) else tuple(map(str, labels))


def _shares(result: Result) -> npt.NDArray[np.float64]:
    """Return the share of each cluster in the training rows, (K,)."""
    sizes = np.array([client.n for client in result.clients], dtype=np.float64)
    mass = sizes @ result.weights
    return np.asarray(mass / mass.sum())
