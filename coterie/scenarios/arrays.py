"""A user's own data: arrays for each client, checked before anything is computed."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from coterie.core.keys import hash_ids
from coterie.core.population import Population
from coterie.core.shard import ClientId, Shard
from coterie.errors import InputError

ClientArrays = tuple[npt.ArrayLike, npt.ArrayLike]
PerClient = Mapping[Any, ClientArrays] | Sequence[ClientArrays]


CHECKED_AT_ONCE = 100_000
"""Rows looked at together for values that are not finite."""
MOST_CLASSES = 100_000
"""Whole numbers from here on are taken for targets of a regression that were not passed as floats."""


def from_arrays(
    clients: PerClient,
    *,
    test: PerClient | None = None,
    truth: Mapping[Any, Hashable] | Sequence[Hashable] | None = None,
    name: str = "arrays",
) -> Population:
    """Clients from arrays.

    clients: {id: (x, y)} or a sequence of (x, y); x (n_i, ...) numbers, y (n_i,) integer labels 0..C-1 or numbers.
        Sizes may differ, the shape of a sample may not.
    test: held-out samples of the same clients, in the same form; for accuracies in records and reports.
    truth: the true group of each client, if it is known; only for scoring and for the method `oracle`.
    """
    named = _named(clients, "client")
    if not named:
        raise InputError("no clients: give at least one (x, y)")
    train = _shard(named, "")
    held_out = None
    if test is not None:
        tests = _named(test, "client")
        _same_clients("test", tests, named)
        held_out = _shard({c: tests[c] for c in named}, " (test)")
        _same_kind(train, held_out)
    codes, group_names = _groups(truth, list(named))
    return Population(name, train, held_out, truth=codes, group_names=group_names)


def from_rows(
    x: npt.NDArray[np.generic],
    y: npt.ArrayLike,
    sizes: Sequence[int] | npt.NDArray[np.int64],
    *,
    ids: Sequence[Hashable] | None = None,
    truth: Mapping[Any, Hashable] | Sequence[Hashable] | None = None,
    name: str = "rows",
) -> Population:
    """Clients from flat arrays, without a copy: for data that hardly fits, or lives in a file as `numpy.memmap`.

    x: (N, ...) float32 or float64; client i owns the next sizes[i] rows. A run in the same dtype (`dtype=...`) streams
        through it block by block.
    y: (N,) integer labels 0..C-1 or numbers. ids: one for each client, by default 0, 1, ... truth: as in `from_arrays`.
    """
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64) or x.ndim < 2 or 0 in x.shape:
        kind = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise InputError(f"x must be an array (samples, features, ...) of float32 or float64, got {kind}")
    targets, counts = _targets(y, "rows"), np.asarray(sizes)
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.size == 0 or counts.min() < 1:
        raise InputError("sizes must be whole numbers of at least 1, one for each client")
    if not len(x) == len(targets) == counts.sum():
        raise InputError(
            f"{len(x)} rows of x, {len(targets)} of y, and sizes that add up to {counts.sum()}: they differ"
        )
    named = [str(i) for i in (range(len(counts)) if ids is None else ids)]
    if len(set(named)) != len(counts):
        raise InputError(
            f"{len(set(named))} different ids for {len(counts)} clients: give every client an id of its own"
        )
    for first in range(0, len(x), CHECKED_AT_ONCE):
        _refuse_holes(x[first : first + CHECKED_AT_ONCE], f"x from row {first} on")
    codes, group_names = _groups(truth, named)
    return Population(name, stack_shard(named, x, targets, counts), truth=codes, group_names=group_names)


def stack_shard(
    ids: Sequence[ClientId],
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    sizes: Sequence[int] | npt.NDArray[np.int64],
) -> Shard:
    """A shard from flat arrays that are known to be sound; client i has the next sizes[i] rows."""
    stops = np.cumsum(np.asarray(sizes, dtype=np.int64))
    return Shard(tuple(ids), hash_ids(ids), torch.from_numpy(x), torch.from_numpy(y), stops - np.asarray(sizes), stops)


def client_ids(clients: int) -> list[ClientId]:
    """client-00, client-01, ...: names that sort in their order."""
    return [f"client-{index:0{len(str(clients - 1))}d}" for index in range(clients)]


def group_tests(
    ids: Sequence[ClientId],
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    truth: npt.NDArray[np.int64],
    each: int,
) -> Shard:
    """Held-out samples of which group g owns rows g*each to (g+1)*each; all its clients share them."""
    starts = truth * each
    return Shard(tuple(ids), hash_ids(ids), torch.from_numpy(x), torch.from_numpy(y), starts, starts + each)


def _named(clients: PerClient, what: str) -> dict[ClientId, ClientArrays]:
    if isinstance(clients, Mapping):
        named = {str(key): value for key, value in clients.items()}
        if len(named) != len(clients):
            raise InputError(f"two {what} ids are equal as text: give every client an id of its own")
        return named
    if isinstance(clients, str | bytes) or not isinstance(clients, Sequence):
        raise InputError(f"clients must be {{id: (x, y)}} or a sequence of (x, y), got {type(clients).__name__}")
    return {str(index): value for index, value in enumerate(clients)}


def _shard(named: Mapping[ClientId, ClientArrays], part: str) -> Shard:
    xs: list[npt.NDArray[np.generic]] = []
    ys: list[npt.NDArray[np.generic]] = []
    for client, pair in named.items():
        where = f"client {client!r}{part}"
        if not isinstance(pair, Sequence) or len(pair) != 2:
            raise InputError(f"{where}: expected a pair (x, y), got {type(pair).__name__}")
        x, y = _features(pair[0], where), _targets(pair[1], where)
        if len(x) != len(y):
            raise InputError(f"{where}: {len(x)} samples but {len(y)} labels; there must be one label a sample")
        if len(x) == 0:
            raise InputError(f"{where} has no samples: leave it out")
        if xs and x.shape[1:] != xs[0].shape[1:]:
            raise InputError(f"{where}: samples of shape {x.shape[1:]}, but those before have {xs[0].shape[1:]}")
        if ys and y.dtype.kind != ys[0].dtype.kind:
            raise InputError(f"{where}: labels of type {y.dtype}, but those before are {ys[0].dtype}; use one kind")
        xs.append(x)
        ys.append(y)
    return stack_shard(list(named), np.concatenate(xs), np.concatenate(ys), [len(y) for y in ys])


def _array(values: npt.ArrayLike, what: str) -> npt.NDArray[np.generic]:
    try:
        return np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} is no array of numbers ({error})") from None


def _features(values: npt.ArrayLike, where: str) -> npt.NDArray[np.generic]:
    x = _array(values, f"{where}: x")
    if x.dtype.kind not in "fiub":
        raise InputError(f"{where}: x must hold numbers, got type {x.dtype}; encode texts and categories first")
    if x.ndim < 2:
        raise InputError(
            f"{where}: x must have shape (samples, features, ...), got {x.shape}; reshape to (n, 1) for one feature"
        )
    if 0 in x.shape[1:]:
        raise InputError(f"{where}: x has no features, shape {x.shape}; give at least one")
    if x.dtype != np.float64:
        x = x.astype(np.float32, copy=False)
    _refuse_holes(x, f"{where}: x")
    return x


def _targets(values: npt.ArrayLike, where: str) -> npt.NDArray[np.generic]:
    y = _array(values, f"{where}: y")
    if y.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: y must hold integer labels 0..C-1 or numbers, got type {y.dtype}; number the classes first"
        )
    if y.ndim != 1:
        raise InputError(f"{where}: y must have shape (samples,), got {y.shape}; use y.ravel() or the class index")
    if y.dtype.kind == "f":
        _refuse_holes(y, f"{where}: y")
        return y.astype(np.float64, copy=False)
    if y.size and int(y.min()) < 0:
        raise InputError(
            f"{where}: labels must be 0..C-1, got {int(y.min())}; shift them, or pass floats for regression"
        )
    if y.size and int(y.max()) >= MOST_CLASSES:
        raise InputError(f"{where}: label {int(y.max())} would mean as many classes; pass floats if these are numbers")
    return y.astype(np.int64, copy=False)


def _refuse_holes(values: npt.NDArray[np.generic], what: str) -> None:
    bad = ~np.isfinite(values)
    if bad.any():
        row = int(np.argwhere(bad)[0][0])
        raise InputError(
            f"{what} has {int(bad.sum())} NaN or infinite values, the first in sample {row}: impute or drop them"
        )


def _same_clients(what: str, found: Mapping[ClientId, object], named: Mapping[ClientId, object]) -> None:
    if found.keys() != named.keys():
        odd = sorted(found.keys() ^ named.keys())[0]
        side = f"only in {what}" if odd in found else f"missing in {what}"
        raise InputError(f"{what} must name the same clients as the training data; {odd!r} is {side}")


def _same_kind(train: Shard, test: Shard) -> None:
    if train.x.shape[1:] != test.x.shape[1:]:
        raise InputError(
            f"test samples have shape {tuple(test.x.shape[1:])}, training samples {tuple(train.x.shape[1:])}: "
            "prepare both in the same way"
        )
    if train.y.is_floating_point() != test.y.is_floating_point():
        raise InputError("test labels and training labels must be of one kind: both integer classes or both numbers")


def _groups(
    truth: Mapping[Any, Hashable] | Sequence[Hashable] | None, ids: list[ClientId]
) -> tuple[npt.NDArray[np.int64] | None, tuple[str, ...]]:
    if truth is None:
        return None, ()
    if isinstance(truth, Mapping):
        by_id = {str(key): str(value) for key, value in truth.items()}
        _same_clients("truth", by_id, dict.fromkeys(ids))
        labels = [by_id[i] for i in ids]
    else:
        labels = [str(value) for value in truth]
        if len(labels) != len(ids):
            raise InputError(f"truth has {len(labels)} groups for {len(ids)} clients: give one for each")
    names = sorted(set(labels))
    return np.array([names.index(label) for label in labels], dtype=np.int64), tuple(names)
