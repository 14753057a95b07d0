"""FEMNIST in the format of LEAF: JSON files with `users` and `user_data`, pixels from 0 (ink) to 1 (paper)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.data.loaders.images import Bytes, Images, Writers
from coterie.errors import InputError

SHAPE = (28, 28)
HELD_OUT = 10
"""Every tenth image of a writer is held out if the files are not split."""

Pairs = dict[str, tuple[Bytes, Bytes]]
"""Images (n_i, 28, 28) and classes (n_i,) of each writer."""


def read_leaf(name: str, path: Path) -> Images:
    """Return the data in a file or folder (which are split here), or in a folder with train and test."""
    if (path / "train").is_dir() and (path / "test").is_dir():
        train, test = _read_all(path / "train"), _read_all(path / "test")
        if train.keys() != test.keys():
            odd = sorted(train.keys() ^ test.keys())[0]
            raise InputError(f"{path}: writer {odd!r} is only in one of train and test; split by sample, not by user")
        return _together(name, train, test)
    whole = {writer: _without_double(*pair) for writer, pair in _read_all(path).items()}
    small = [writer for writer, (_, y) in whole.items() if len(y) < 2]
    if small:
        raise InputError(f"{path}: writer {small[0]!r} has fewer than 2 images, one cannot be held out: leave it out")
    return _together(
        name,
        {writer: (x[_kept(len(y))], y[_kept(len(y))]) for writer, (x, y) in whole.items()},
        {writer: (x[~_kept(len(y))], y[~_kept(len(y))]) for writer, (x, y) in whole.items()},
    )


def _kept(count: int) -> np.ndarray:
    """Return False for every tenth image, at least for the last one, (count,)."""
    kept: np.ndarray = np.arange(count) % HELD_OUT != HELD_OUT - 1
    kept[-1] &= count >= HELD_OUT
    return kept


def _without_double(x: Bytes, y: Bytes) -> tuple[Bytes, Bytes]:
    """Return the images without the copy of a writer's first image, which LEAF's script stores twice."""
    double = len(y) > 1 and y[0] == y[1] and np.array_equal(x[0], x[1])
    return (x[1:], y[1:]) if double else (x, y)


def _read_all(path: Path) -> Pairs:
    files = sorted(path.glob("*.json")) if path.is_dir() else [path]
    if not files:
        raise InputError(f"{path} holds no .json files: give LEAF's data folder (with train and test) or one file")
    found: Pairs = {}
    for file in files:
        for writer, pair in _read_file(file).items():
            if writer in found:
                raise InputError(f"{file}: writer {writer!r} was in a file before; give every file once")
            found[writer] = pair
    return found


def _read_file(file: Path) -> Pairs:
    try:
        content = json.loads(file.read_bytes())
        users, data = content["users"], content["user_data"]
        return {str(user): _pair(data[user], f"{file}: writer {user!r}") for user in users}
    except InputError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(
            f"{file} is no LEAF file ({type(error).__name__}: {error}): it must hold users and user_data"
        ) from None


def _pair(entry: Mapping[str, Any], where: str) -> tuple[Bytes, Bytes]:
    x, y = np.array(entry["x"], dtype=np.float64), np.array(entry["y"])
    if x.ndim != 2 or x.shape[1] != SHAPE[0] * SHAPE[1] or y.shape != (len(x),) or not len(x):
        raise InputError(f"{where}: x must be rows of 784 numbers with one y each, got {x.shape} and {y.shape}")
    if y.dtype.kind not in "iu" or y.min() < 0 or y.max() > 61:
        raise InputError(f"{where}: y must be whole numbers 0 to 61, got {y.min()} to {y.max()}")
    if not (x.min() >= 0 and x.max() <= 1):
        raise InputError(f"{where}: x must be numbers from 0 to 1, got {x.min():g} to {x.max():g}")
    return np.rint(255 * x).astype(np.uint8).reshape(-1, *SHAPE), y.astype(np.uint8)


def _together(name: str, train: Pairs, test: Pairs) -> Images:
    ids = sorted(train)
    return Images(
        name,
        np.concatenate([train[i][0] for i in ids]),
        np.concatenate([train[i][1] for i in ids]),
        np.concatenate([test[i][0] for i in ids]),
        np.concatenate([test[i][1] for i in ids]),
        Writers(_owner(train, ids), _owner(test, ids), tuple(ids)),
    )


def _owner(part: Pairs, ids: Sequence[str]) -> np.ndarray:
    return np.repeat(np.arange(len(ids)), [len(part[i][1]) for i in ids])
