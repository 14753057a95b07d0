"""Clients that do not live in this process: the server knows who they are and how to reach them, and has no sample."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path

from coterie.core.dataset import ClientDirectory
from coterie.core.federation import Federation
from coterie.methods.settings import RunSettings
from coterie.tiers.composition import Tiers

PLACES = frozenset({"engine", "device", "poison"})
"""Options about where clients compute and which of them attack: remote clients decide that themselves."""


@dataclass(frozen=True)
class RemoteClients(ClientDirectory):
    """What a run is given instead of data, see `coterie.fit`."""

    @abstractmethod
    def reach(self, settings: RunSettings, tiers: Tiers) -> Federation:
        """Return the clients as a run with these settings and this composition asks them."""

    @abstractmethod
    def write_down(self, folder: Path) -> None:
        """Put what a resumed run has to know of the clients into the run's folder."""
