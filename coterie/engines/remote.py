"""Remote clients: the server knows their ids and sizes and how to contact them, but has none of their samples."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from coterie.core.dataset import ClientDirectory
from coterie.core.federation import Federation
from coterie.methods.settings import RunSettings
from coterie.tiers.composition import Tiers

SIMULATION_OPTIONS = frozenset({"engine", "shards", "workers", "device", "poison"})
"""Options that apply to simulated clients only: where they compute, and which of them attack."""


@dataclass(frozen=True)
class RemoteClients(ClientDirectory):
    """Directory of remote clients, which `coterie.fit` accepts instead of data."""

    @abstractmethod
    def connect(self, settings: RunSettings, tiers: Tiers) -> Federation:
        """Return the federation of these clients for a run.

        Args:
            settings: Settings of the run.
            tiers: Composition of the method.
        """

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write the facts about the clients that a resumed run needs to the folder of the run."""
