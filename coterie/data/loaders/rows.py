"""Rows of numbers that belong to clients: a data set for regression, and the requirements on it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import first_line
from coterie.errors import InputError

Floats = npt.NDArray[np.float64]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Rows as published, in the original order."""

    name: str
    x: Floats = field(repr=False)
    """Features, (n, d)."""
    y: Floats = field(repr=False)
    """Targets, (n,)."""
    task: Numbers = field(repr=False)
    """Client of each row, from 0 to m-1, (n,)."""

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All arrays by their names in npz files."""
        return {"x": self.x, "y": self.y, "task": self.task}

    @property
    def counts(self) -> dict[str, int]:
        """Counts of images, clients and classes."""
        return {"rows": len(self.y), "clients": int(self.task.max()) + 1}

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the content, for users."""
        return {"data": f"{len(self.y)} rows of {self.x.shape[1]} numbers", "clients": str(self.counts["clients"])}

    def digest(self) -> str:
        """SHA-256 of all numbers, which does not depend on the format of the file."""
        total = hashlib.sha256()
        for array in (self.x, self.y, self.task):
            total.update(str(array.shape).encode())
            total.update(np.ascontiguousarray(array).data)
        return total.hexdigest()


@dataclass(frozen=True)
class RowKind:
    """Requirements on the rows of one data set."""

    width: int
    """Number of features (d)."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the arrays in an npz file."""
        return ("x", "y", "task")

    def read_npz(self, name: str, arrays: dict[str, npt.NDArray[Any]], where: str) -> Rows:
        """Return the rows in the arrays of an npz file."""
        return Rows(name, arrays["x"], arrays["y"], arrays["task"])

    def checked(self, content: object, where: str) -> Rows:
        """Return the same rows in their own types, if there are numbers in all of them and every client has some."""
        assert isinstance(content, Rows)
        x, y, task = content.x, content.y, content.task
        if x.ndim != 2 or x.shape[1] != self.width or not len(x):
            raise InputError(f"{where}: x must have shape (n, {self.width}), got {x.shape}: is this another data set?")
        if y.shape != (len(x),) or task.shape != (len(x),):
            raise InputError(f"{where}: {len(x)} rows of x, but y has shape {y.shape} and task {task.shape}")
        for key, values, kinds in (("x", x, "fiu"), ("y", y, "fiu"), ("task", task, "iu")):
            if values.dtype.kind not in kinds or not np.isfinite(values).all():
                raise InputError(f"{where}: {key} must hold numbers, none missing, got type {values.dtype}")
        found = np.unique(task)
        if not np.array_equal(found, np.arange(len(found))):
            raise InputError(f"{where}: task must be 0 to m-1, every one of them present, got {found[:5].tolist()}...")
        return replace(content, x=x.astype(np.float64), y=y.astype(np.float64), task=task.astype(np.int64))


def read_cells(name: str, path: Path) -> Rows:
    """Return a MATLAB file with cells X and Y, one for each client, as MALSAR stores its data."""
    from scipy.io import loadmat  # slow to import

    try:
        found = loadmat(path, variable_names=["X", "Y"])
        xs, ys = (list(found[key].ravel()) for key in ("X", "Y"))
        x, y = np.concatenate(xs), np.concatenate([each.ravel() for each in ys])
    except Exception as error:  # a damaged file may break the reader in any way
        raise InputError(
            f"{path} is no MATLAB file with cells X and Y ({first_line(error)}): give MALSAR's {name}.mat, or an npz"
        ) from None
    return Rows(name, x, y, np.repeat(np.arange(len(xs)), [len(each) for each in xs]))
