"""Statistical models of grouped data: least squares for all or for each client, and a linear mixed model.

Each function fits the training samples of all clients and gives the root mean squared error on each client's own
held-out samples, shape (m,): NaN for a client that has none. All models have an intercept.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Shard
from coterie.errors import InputError, TrainingError

Floats = npt.NDArray[np.float64]


def pooled_rmse(data: FederatedDataset) -> Floats:
    """Return the errors of least squares on the samples of all clients, with the minimum-norm solution."""
    x, y, _ = _samples(data.train)
    intercept, slopes = _least_squares(x, y)
    return _held_out(data, lambda client, rows: intercept + rows @ slopes)


def alone_rmse(data: FederatedDataset) -> Floats:
    """Return the errors of least squares for each client alone.

    With as many features as samples or more, the slopes are the minimum-norm solution; the intercept is free, so
    that a client with one sample predicts its target.
    """
    x, y, owner = _samples(data.train)
    models = [_least_squares(x[owner == client], y[owner == client]) for client in range(len(data.clients))]
    return _held_out(data, lambda client, rows: models[client][0] + rows @ models[client][1])


def mixed_model_rmse(data: FederatedDataset) -> Floats:
    """Return the errors of a linear mixed model with common slopes and a random intercept for each client.

    It is fitted by restricted maximum likelihood.

    The features enter as coordinates along their principal directions, which gives the same predictions and leaves out
    collinear directions. A client's prediction holds its predicted intercept.
    """
    x, y, owner = _samples(data.train)
    centre = x.mean(axis=0)
    basis = _directions(x - centre)

    def design(rows: Floats) -> Floats:
        return np.column_stack([np.ones(len(rows)), (rows - centre) @ basis])

    fitted = _fit_mixed_model(y, design(x), owner)
    common = np.asarray(fitted.fe_params)
    own = {client: float(np.asarray(effect)[0]) for client, effect in fitted.random_effects.items()}
    return _held_out(data, lambda client, rows: design(rows) @ common + own[client])


def _fit_mixed_model(y: Floats, design: Floats, owner: npt.NDArray[np.int64]) -> Any:
    try:
        statsmodels: Any = import_module("statsmodels.api")
        tools: Any = import_module("statsmodels.tools.sm_exceptions")
    except ImportError:
        raise InputError("a linear mixed model needs statsmodels: pip install 'coterie[stats]'") from None
    with warnings.catch_warnings():
        # a variance of zero between clients is an answer, not a failure
        warnings.simplefilter("ignore", tools.ConvergenceWarning)
        try:
            fitted = statsmodels.MixedLM(y, design, groups=owner).fit(reml=True)
        except np.linalg.LinAlgError as error:
            raise TrainingError(
                f"the mixed model cannot be fitted ({error}): are there clients with several rows?"
            ) from None
    if not np.isfinite(np.asarray(fitted.fe_params)).all():
        raise TrainingError("the mixed model has no finite solution: scale the features and look for constant ones")
    return fitted


def _directions(centred: Floats) -> Floats:
    """Return the principal directions with nonzero variance, scaled to variance 1, (d, rank)."""
    _, lengths, directions = np.linalg.svd(centred, full_matrices=False)
    kept = lengths > lengths.max(initial=0) * max(centred.shape) * np.finfo(np.float64).eps
    return np.asarray(directions[kept].T * (np.sqrt(len(centred)) / lengths[kept]))


def _least_squares(x: Floats, y: Floats) -> tuple[float, Floats]:
    """Return intercept and slopes (d,) from x (n, d) and y (n,); the slopes of minimum norm if several fit."""
    centre, mean = x.mean(axis=0), float(y.mean())
    slopes = np.linalg.lstsq(x - centre, y - mean, rcond=None)[0]
    return mean - float(centre @ slopes), slopes


def _samples(shard: Shard) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Return features (N, d), targets (N,) and the position of each sample's client (N,)."""
    if not shard.y.is_floating_point():
        raise InputError("least squares and mixed models predict numbers, but the labels are classes")
    x = shard.x.numpy().reshape(len(shard.x), -1).astype(np.float64, copy=False)
    owner = np.repeat(np.arange(len(shard)), shard.sizes)
    rows = np.concatenate([np.arange(a, b) for a, b in zip(shard.starts, shard.stops, strict=True)])
    return x[rows], shard.y.numpy().astype(np.float64, copy=False)[rows], owner


def _held_out(data: FederatedDataset, predict: Callable[[int, Floats], Floats]) -> Floats:
    """Return the RMSE of each client's predictions, (m,)."""
    test = data.test
    if test is None:
        raise InputError("there are no held-out samples to measure the error on: give test data, or holdout above 0")
    x, y = test.x.numpy().reshape(len(test.x), -1).astype(np.float64, copy=False), test.y.numpy()
    errors = np.full(len(test), np.nan)
    for client, (first, last) in enumerate(zip(test.starts, test.stops, strict=True)):
        if last > first:
            errors[client] = np.sqrt(np.mean((predict(client, x[first:last]) - y[first:last]) ** 2))
    return errors
