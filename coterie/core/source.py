"""Sources of data: descriptions from which any process can load the same clients again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from coterie.core.registry import Registered
from coterie.core.shard import Positions

if TYPE_CHECKING:
    from coterie.core.dataset import FederatedDataset


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
