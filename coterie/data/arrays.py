"""A user's own data: arrays for each client, checked before anything is computed."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Mapping, Sequence, Set
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import as_array, tensor_of
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import hash_ids
from coterie.core.shard import ClientId, Shard
from coterie.core.source import StoredRows
from coterie.errors import ColumnWarning, InputError

ClientArrays = tuple[npt.ArrayLike, npt.ArrayLike]
PerClient = Mapping[Any, ClientArrays] | Sequence[ClientArrays]


CHECKED_AT_ONCE = 100_000
"""Rows looked at together for values that are not finite."""
FEW_SAMPLES = 20
"""Number of samples below which targets may hold two whole numbers by chance."""
LARGEST_LABEL = 100_000
"""Size of whole numbers from which they are taken for the target of a regression."""


def from_arrays(
    clients: PerClient,
    *,
    test: PerClient | None = None,
    truth: Mapping[Any, Hashable] | Sequence[Hashable] | None = None,
    name: str = "arrays",
) -> FederatedDataset:
    """Return the clients whose samples are given as arrays.

    Arrays may have any memory layout, byte order and size of numbers.

    Args:
        clients: {id: (x, y)} or a sequence of (x, y); x (n_i, ...) numbers, y (n_i,) integer labels or numbers. Sizes
            may differ, the shape of a sample may not. Integers and true/false (1 and 0) are class labels; a simulated
            run has the classes that occur, and `Result.predict` returns the labels. Floats are targets of a regression.
        test: Held-out samples of the same clients, in the same form, for the scores in records and reports.
        truth: True group of each client, if it is known; only for scoring and for the method `oracle`.
        name: Name of the data.

    Returns:
        The clients.

    Raises:
        InputError: if an array is masked, holds missing or infinite values or texts, or does not fit the others.

    Example:
        >>> import numpy as np
        >>> import coterie
        >>> x = np.arange(12.0).reshape(6, 2)
        >>> coterie.from_arrays({"north": (x, [0, 1, 0, 1, 0, 1]), "south": (x[:4], [1, 1, 0, 0])}).clients
        ('north', 'south')
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
    labels = _labels(train, held_out)
    _warn_of_classes(train)
    return FederatedDataset(_text(name, "name"), train, held_out, truth=codes, group_names=group_names, labels=labels)


def from_rows(
    x: npt.NDArray[np.generic],
    y: npt.ArrayLike,
    sizes: Sequence[int] | npt.NDArray[np.int64],
    *,
    ids: Sequence[Hashable] | None = None,
    truth: Mapping[Any, Hashable] | Sequence[Hashable] | None = None,
    name: str = "rows",
) -> FederatedDataset:
    """Return clients whose samples lie in flat arrays, for data that hardly fits or is a `numpy.memmap`.

    With `engine="dask"`, workers read their rows of a `numpy.memmap` from its file, which must be on a disk that all
    machines share; `y` is sent.

    Args:
        x: Samples (N, ...), float32 or float64; client i owns the next sizes[i] rows. A run in the same dtype
            (`dtype=...`) streams through it block by block. Rows in C order and native byte order are not copied.
        y: Integer labels or numbers (N,).
        sizes: Number of samples of each client.
        ids: Id of each client; by default 0, 1, ...
        truth: True group of each client, as in `from_arrays`.
        name: Name of the data.

    Returns:
        The clients.

    Raises:
        InputError: if the arrays do not fit each other, or hold missing or infinite values.

    Example:
        >>> import numpy as np
        >>> import coterie
        >>> data = coterie.from_rows(np.arange(10.0).reshape(5, 2), [0, 1, 0, 1, 1], sizes=[2, 3])
        >>> data.train.sizes.tolist()
        [2, 3]
    """
    if not isinstance(x, np.ndarray) or x.dtype.kind != "f" or x.itemsize not in (4, 8) or x.ndim < 2 or 0 in x.shape:
        kind = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise InputError(f"x must be an array (samples, features, ...) of float32 or float64, got {kind}")
    as_array(x, "x")  # refuses masked arrays
    targets, counts = _targets(y, "rows"), as_array(sizes, "sizes")
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.size == 0 or counts.min() < 1:
        raise InputError("sizes must be whole numbers of at least 1, one for each client")
    if not len(x) == len(targets) == counts.sum():
        raise InputError(
            f"{len(x)} rows of x, {len(targets)} of y, and sizes that add up to {counts.sum()}: they differ"
        )
    named = [_text(i, "client id") for i in (range(len(counts)) if ids is None else _listed(ids, "ids"))]
    if len(set(named)) != len(counts) or len(named) != len(counts):
        raise InputError(f"{len(set(named))} different ids for {len(counts)} clients: give every client a different id")
    for first in range(0, len(x), CHECKED_AT_ONCE):
        _refuse_holes(x[first : first + CHECKED_AT_ONCE], f"x from row {first} on")
    codes, group_names = _groups(truth, named)
    train = stack_shard(named, x, targets, counts)
    labels = _labels(train, None)
    _warn_of_classes(train)
    return FederatedDataset(
        _text(name, "name"), train, truth=codes, group_names=group_names, labels=labels, stored=stored_rows(x)
    )


def stored_rows(x: npt.NDArray[np.generic]) -> StoredRows | None:
    """Return where the rows of a `numpy.memmap`, or of a part of it, are; None for other arrays."""
    mapped = x
    while isinstance(mapped.base, np.ndarray):
        mapped = mapped.base
    if not isinstance(mapped, np.memmap) or mapped.filename is None or mapped.mode == "c":  # its changes are not stored
        return None
    if not x.flags.c_contiguous or not x.dtype.isnative:
        return None
    offset = mapped.offset + x.ctypes.data - mapped.ctypes.data
    return StoredRows(str(mapped.filename), offset, x.dtype.name, x.shape)


def stack_shard(
    ids: Sequence[ClientId],
    x: npt.NDArray[np.generic],
    y: npt.NDArray[np.generic],
    sizes: Sequence[int] | npt.NDArray[np.int64],
) -> Shard:
    """Return a shard of flat arrays that hold numbers, in any layout; client i has the next sizes[i] rows."""
    counts = np.asarray(sizes, dtype=np.int64)
    stops = np.cumsum(counts)
    return Shard(tuple(ids), hash_ids(ids), tensor_of(x), tensor_of(y), stops - counts, stops)


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
    """Return held-out samples, of which group g owns rows g*each to (g+1)*each; all its clients share them."""
    starts = truth * each
    return Shard(tuple(ids), hash_ids(ids), tensor_of(x), tensor_of(y), starts, starts + each)


def _named(clients: PerClient, what: str) -> dict[ClientId, ClientArrays]:
    if isinstance(clients, Mapping):
        named = {_text(key, f"{what} id"): value for key, value in clients.items()}
        if len(named) != len(clients):
            raise InputError(f"two {what} ids are equal as text: give every client a different id")
        return named
    if isinstance(clients, str | bytes) or not isinstance(clients, Sequence):
        raise InputError(f"clients must be {{id: (x, y)}} or a sequence of (x, y), got {type(clients).__name__}")
    return {str(index): value for index, value in enumerate(clients)}


def _shard(named: Mapping[ClientId, ClientArrays], part: str) -> Shard:
    xs: list[npt.NDArray[np.generic]] = []
    ys: list[npt.NDArray[np.generic]] = []
    for client, pair in named.items():
        where = f"client {client!r}{part}"
        if not isinstance(pair, tuple | list) or len(pair) != 2:
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


def _features(values: npt.ArrayLike, where: str) -> npt.NDArray[np.generic]:
    x = as_array(values, f"{where}: x")
    if x.dtype.kind not in "fiub":
        raise InputError(f"{where}: x must hold numbers, got type {x.dtype}; encode texts and categories first")
    if x.ndim < 2:
        raise InputError(
            f"{where}: x must have shape (samples, features, ...), got {x.shape}; reshape to (n, 1) for one feature"
        )
    if 0 in x.shape[1:]:
        raise InputError(f"{where}: x has no features, shape {x.shape}; give at least one")
    wide = x.dtype.kind == "f" and x.itemsize >= 8
    with np.errstate(over="ignore"):  # infinite values are refused below
        x = x.astype(np.float64 if wide else np.float32, copy=False)
    _refuse_holes(x, f"{where}: x")
    return x


def _targets(values: npt.ArrayLike, where: str) -> npt.NDArray[np.generic]:
    y = as_array(values, f"{where}: y")
    if y.dtype.kind not in "fiub":
        raise InputError(
            f"{where}: y must hold integer labels or numbers, got type {y.dtype}; number the classes first"
        )
    if y.ndim != 1:
        raise InputError(f"{where}: y must have shape (samples,), got {y.shape}; use y.ravel() or the class index")
    if y.dtype.kind == "f":
        with np.errstate(over="ignore"):
            y = y.astype(np.float64, copy=False)
        _refuse_holes(y, f"{where}: y")
        return y
    if y.size and (odd := max(int(y.max()), int(y.min()), key=abs)) and abs(odd) >= LARGEST_LABEL:
        raise InputError(
            f"{where}: label {odd} is too large for a class, {LARGEST_LABEL - 1} is the largest: pass floats for a "
            "regression, or number the classes"
        )
    return y.astype(np.int64, copy=False)


def _labels(train: Shard, test: Shard | None) -> tuple[int, ...]:
    """Return the sorted labels that occur, if they are not 0 to C-1; nothing for a regression."""
    if train.y.is_floating_point():
        return ()
    present = np.unique(train.y.numpy() if test is None else np.concatenate([train.y.numpy(), test.y.numpy()]))
    return () if np.array_equal(present, np.arange(len(present))) else tuple(present.tolist())


def _warn_of_classes(train: Shard) -> None:
    """Warn of targets of a regression that hold two whole numbers only, as classes do that were read as floats."""
    if not train.y.is_floating_point() or len(train.y) < FEW_SAMPLES:
        return
    values = np.unique(train.y[:CHECKED_AT_ONCE].numpy())
    if len(values) == 2 and (values == np.round(values)).all():
        warnings.warn(
            f"the targets are {values[0]:g} and {values[1]:g} only, but floats are the targets of a regression: pass "
            "whole numbers, y.astype(int), if they are classes",
            ColumnWarning,
            stacklevel=3,
        )


def _text(value: object, what: str) -> str:
    """Return the value as text that can be written to a file."""
    try:
        text = str(value)
        text.encode()
    except UnicodeEncodeError:
        raise InputError(f"{what} {value!a} is no valid text: it cannot be written as UTF-8") from None
    return text


def _listed(values: object, what: str) -> list[object]:
    """Return the values of a list, tuple, array or series."""
    if isinstance(values, str | bytes | Set) or not hasattr(values, "__iter__") or not hasattr(values, "__len__"):
        raise InputError(f"{what} must be a list with one value for each client, got {type(values).__name__}")
    try:
        return list(values)
    except TypeError:  # an array without dimensions
        raise InputError(f"{what} must be a list with one value for each client, got a single value") from None


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
        by_id = {str(key): value for key, value in truth.items()}
        _same_clients("truth", by_id, dict.fromkeys(ids))
        groups: list[object] = [by_id[i] for i in ids]
    else:
        groups = _listed(truth, "truth")
        if len(groups) != len(ids):
            raise InputError(f"truth has {len(groups)} groups for {len(ids)} clients: give one for each")
    odd = next((group for group in groups if isinstance(group, np.ndarray | list | dict | Set)), None)
    if odd is not None:
        raise InputError(f"truth must name one group for each client, got {type(odd).__name__} for one")
    labels = [_text(group, "group") for group in groups]
    names = sorted(set(labels))
    return np.array([names.index(label) for label in labels], dtype=np.int64), tuple(names)
