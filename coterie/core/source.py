"""Sources of data: descriptions from which any process can load the same clients again."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from coterie.core.registry import Registered
from coterie.core.shard import Positions

if TYPE_CHECKING:
    from coterie.core.dataset import FederatedDataset


@dataclass(frozen=True)
class StoredRows:
    """Array in a file, in C order and native byte order."""

    path: str
    """Absolute path of the file."""
    offset: int
    """Position of the first byte."""
    dtype: str
    shape: tuple[int, ...]

    def part(self, first: int, stop: int) -> StoredRows:
        """Return a range of the rows."""
        row = math.prod(self.shape[1:]) * np.dtype(self.dtype).itemsize
        return replace(self, offset=self.offset + first * row, shape=(stop - first, *self.shape[1:]))


class DataSource(Registered, ABC, family="data source"):
    """Base class of sources. A member is a frozen dataclass with plain fields, which travel to the workers."""

    @abstractmethod
    def load(self) -> FederatedDataset:
        """Return all clients with their samples; two calls return equal data."""

    def load_some(self, positions: Positions) -> FederatedDataset | None:
        """Return some of the clients without loading the others; None (the default) if that is impossible.

        Args:
            positions: Positions of the clients.
        """
        return None
