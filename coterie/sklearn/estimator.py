"""Base of both estimators: parameters, fitting, and the choice of models for each row."""

from __future__ import annotations

import inspect
import warnings
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from coterie.core.schema import Label, Number, Schema
from coterie.errors import ConfigError, InputError, shown
from coterie.learners import LearnerChoice
from coterie.methods import FedAvg
from coterie.sklearn.groups import (
    TARGET,
    Array,
    codes_of,
    federation_of,
    group_id,
    seed_of,
    shares_of,
    warn_of_many_groups,
)
from coterie.training.fitting import fit
from coterie.training.planning import MethodChoice, names_of
from coterie.training.predicting import warn_of_spellings
from coterie.training.result import Result

RECENT_ROUNDS, FALLING = 5, 0.05
"""A training loss that fell by more than this share of the first one in so many rounds has not converged."""


class ClusteredEstimator(BaseEstimator):  # type: ignore[misc] # scikit-learn has no types
    """Base of `ClusteredClassifier` and `ClusteredRegressor`."""

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
        own = set(inspect.signature(ClusteredEstimator.__init__).parameters)
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
        values, codes = codes_of(groups, len(X))
        warn_of_many_groups(len(values), len(X))
        target_scale = (0.0, 1.0) if classes else (float(y.mean()), float(y.std()))
        schema = replace(self._schema(X, classes), target_scale=target_scale)
        data = federation_of(schema, X, y, values, codes)
        method: MethodChoice = self.method if len(values) > 1 else "fedavg"
        result = fit(data, method, learner=self.learner, seed=seed_of(self.random_state), **self._fit_options(values))
        self.result_: Result = result
        self.groups_ = values
        self.cluster_ = dict(zip(values.tolist(), result.assignments.values(), strict=True))
        self.weights_ = shares_of(result)
        self.n_iter_ = max(1, len(result.records))
        _warn_unless_converged(result)
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
            names, codes = codes_of(groups, len(rows))
            ids, trained = [group_id(name) for name in names.tolist()], self.result_.assignments
            new = [name for name in ids if name not in trained]
            warn_of_spellings(new, trained)
            _warn_without_support(new, support)
        elif np.count_nonzero(self.weights_) > 1:
            warnings.warn(
                f"predict was called without groups, so that all rows are predicted by the mixture of "
                f"{np.count_nonzero(self.weights_)} models and not by the model of their group: pass groups=...",
                UserWarning,
                stacklevel=4,
            )
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
        if group is not None and group_id(group) in self.result_.assignments:
            return self._ask(samples, client=group_id(group))
        given = None if support is None or group is None else self._support_of(support, group)
        return self._ask(samples, support=given) if given is not None else self._ask(samples, weights=self.weights_)

    def _support_of(self, support: Any, group: object) -> tuple[dict[str, Array], Array] | None:
        """Return the labelled rows of a new group; None if it has none."""
        if not isinstance(support, tuple | list) or len(support) != 3:
            raise InputError("support must be (X, y, groups): labelled rows of new groups, and the group of each row")
        rows = validate_data(self, support[0], reset=False, dtype=np.float64)
        labels = column_or_1d(support[1])
        names, codes = codes_of(support[2], len(rows))
        if len(labels) != len(rows):
            raise InputError(f"support has {len(rows)} rows but {len(labels)} labels: give one label a row")
        own = np.array([group_id(name) == group_id(group) for name in names.tolist()])[codes]
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


def _warn_without_support(new: list[str], support: Any) -> None:
    """Warn of new groups without labelled rows although there are labelled rows of others."""
    if not isinstance(support, tuple | list) or len(support) != 3:
        return
    known = {group_id(group) for group in np.asarray(support[2], dtype=object).tolist()}
    lost = [name for name in new if name not in known]
    if lost:
        warnings.warn(
            f"support has no rows of {len(lost)} new group{'' if len(lost) == 1 else 's'}, such as {shown(lost[0])}: "
            "they are predicted by the mixture of all models",
            UserWarning,
            stacklevel=5,
        )


def _warn_unless_converged(result: Result) -> None:
    """Warn if the last round was the last one allowed and the training loss was still falling."""
    losses = [record.loss for record in result.records if record.loss is not None]
    if result.metrics.stopped is not None or len(losses) <= RECENT_ROUNDS:
        return
    before, last = losses[-RECENT_ROUNDS - 1], losses[-1]
    if before - last > FALLING * losses[0]:
        warnings.warn(
            f"the training loss still fell by {1 - last / before:.1%} in the last {RECENT_ROUNDS} of "
            f"{len(result.records)} rounds: increase rounds, or standardise the features",
            ConvergenceWarning,
            stacklevel=4,
        )
