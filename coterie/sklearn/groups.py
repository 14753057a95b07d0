"""Groups of rows as clients: their ids, the federated data set, the seed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, column_or_1d

from coterie.core.dataset import FederatedDataset
from coterie.core.readings import number_text
from coterie.core.schema import Schema
from coterie.data.arrays import stack_shard
from coterie.data.columns import LONGEST_WHOLE
from coterie.data.encode import scaled
from coterie.data.remarks import FEW_ROWS
from coterie.data.table import RECOMMENDED, step_size, usual_learner
from coterie.errors import InputError
from coterie.training.result import Result

Array = npt.NDArray[Any]
ONE_GROUP = "all"
"""Id of the only client where no groups are given."""
TARGET = "y"
"""Name of the target in the schema of the result."""
LARGEST_SEED = 2**31 - 1


def seed_of(random_state: int | np.random.RandomState | None) -> int:
    """Return the seed for `coterie.fit` that follows from scikit-learn's `random_state`."""
    if random_state is None:
        return 0
    if isinstance(random_state, int | np.integer):
        return int(random_state)
    return int(check_random_state(random_state).randint(LARGEST_SEED))


def codes_of(groups: npt.ArrayLike | None, rows: int) -> tuple[Array, npt.NDArray[np.int64]]:
    """Return the different groups, sorted, and the position of each row's group (n,)."""
    if groups is None:
        warnings.warn(
            "fit was called without groups, so that all rows are one group and there is one model: pass groups=..., "
            "through a pipeline or a search by set_fit_request(groups=True) and metadata routing",
            UserWarning,
            stacklevel=4,
        )
        return np.array([ONE_GROUP], dtype=object), np.zeros(rows, np.int64)
    if isinstance(groups, list | tuple) and any(group is None or group != group for group in groups):
        raise InputError("groups has missing values: give the group of each row")  # NumPy would make them texts
    values = column_or_1d(check_array(groups, ensure_2d=False, dtype=None, ensure_all_finite=False))
    if len(values) != rows:
        raise InputError(f"{rows} rows but {len(values)} groups: give the group of each row")
    if any(value is None or value != value for value in values.tolist()):
        raise InputError("groups has missing values: give the group of each row")
    if values.dtype.kind == "O":
        values = np.array([group_id(value) for value in values.tolist()])
    if values.dtype.kind == "f" and (np.abs(values) >= LONGEST_WHOLE).any():
        raise InputError("groups are floating-point numbers that have lost their last digits: give them as texts")
    found, codes = np.unique(values, return_inverse=True)
    return found, codes.astype(np.int64)


def warn_of_many_groups(groups: int, rows: int) -> None:
    """Warn if most groups have a single row, as where the rows were given as groups."""
    if groups > rows / 2 and rows >= FEW_ROWS:
        warnings.warn(
            f"{groups} groups in {rows} rows only, of which nothing can be learned: are they the groups?",
            UserWarning,
            stacklevel=4,
        )


def group_id(group: object) -> str:
    """Return the id of a group as a client; 1 and 1.0 are the same group."""
    return number_text(group) if isinstance(group, float) else str(group)


def federation_of(schema: Schema, X: Array, y: Array, groups: Array, codes: npt.NDArray[np.int64]) -> FederatedDataset:
    """Return the groups as clients with standardised features."""
    order = np.argsort(codes, kind="stable")
    sizes = np.bincount(codes, minlength=len(groups))
    features = np.stack([scaled(X[:, j], scale) for j, scale in enumerate(schema.scales)], axis=1)[order]
    with np.errstate(over="ignore"):
        squares = (features**2).sum(axis=1)
    recommended = {
        **RECOMMENDED,
        "learner": usual_learner(schema),
        "lr": step_size(schema, squares, sizes),
    }
    train = stack_shard([group_id(group) for group in groups.tolist()], features, y[order], sizes.tolist())
    return FederatedDataset("scikit-learn", train, recommended=recommended, schema=schema)


def shares_of(result: Result) -> npt.NDArray[np.float64]:
    """Return the share of each cluster in the training rows, (K,)."""
    sizes = np.array([client.n for client in result.clients], dtype=np.float64)
    mass = sizes @ result.weights
    return np.asarray(mass / mass.sum())
