"""Sources of the real data of the scoreboard lies, and how to get what is absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.data.loaders import DATASETS, data_folder
from coterie.data.loaders.store import read_npz

Array = npt.NDArray[np.generic]

KEYS: Mapping[str, tuple[str, ...]] = {
    "usps": ("x_train", "y_train"),
    "mnist": ("x_train", "y_train"),
    "fashion-mnist": ("x_train", "y_train"),
    "cifar10": ("x_train", "y_train"),
    "femnist": ("x_train", "y_train", "w_train"),
    "landmine": ("x", "y", "task"),
    "school": ("x", "y", "task"),
}
"""Arrays of each file, NAME.npz."""
PACKAGE = "statsmodels"
"""A source that is a package: it ships the table of investments of firms."""


@dataclass(frozen=True)
class Files:
    """The user's folder of npz files, and behind it the cache that `coterie data` keeps."""

    folder: Path | None = None

    def path(self, name: str) -> Path | None:
        """Return the file of a data set, NAME.npz or NAME_*.npz in the user's folder; None if it is absent."""
        own = [] if self.folder is None else [self.folder / f"{name}.npz", *sorted(self.folder.glob(f"{name}_*.npz"))]
        return next((path for path in (*own, data_folder() / f"{name}.npz") if path.is_file()), None)

    def has(self, name: str) -> bool:
        """Whether a source is here: a file, or the package."""
        return find_spec(PACKAGE) is not None if name == PACKAGE else self.path(name) is not None

    def read(self, name: str) -> Mapping[str, Array]:
        """Return the arrays of a data set that is here."""
        path = self.path(name)
        assert path is not None, name
        return _read(path, KEYS[name])


@cache
def _read(path: Path, keys: tuple[str, ...]) -> Mapping[str, Array]:
    return read_npz(path, keys)


def how_to_get(name: str) -> str:
    """Return one line that says how to get an absent source."""
    if name == PACKAGE:
        return "pip install 'coterie[stats]'"
    own = f"put {name}.npz ({', '.join(KEYS[name])}) into the folder of --data"
    return f"{DATASETS[name].command}; or {own}" if name in DATASETS else own
