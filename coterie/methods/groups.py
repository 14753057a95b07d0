"""Sources of the clusters of a method: found by it, known in advance, one per client, or a single one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.dataset import ClientDirectory
from coterie.errors import ConfigError


@dataclass(frozen=True)
class FoundGroups:
    """The method finds the clusters; their number is given, or found too."""

    found = True
    """Whether the method finds the clusters, so that they may differ from the true groups."""
    personal = False
    """Whether every client has its own model."""
    kind = "found"
    """Name of this source of clusters in reports: found, one, truth, self."""

    def count(self, data: ClientDirectory, asked: int | None) -> int | None:
        """Return the number of clusters; None if the initialisation finds it.

        Raises:
            ConfigError: if there are fewer clients than clusters, or the true groups are needed but unknown.
        """
        clients = len(data.clients)
        if asked is not None and clients < asked:
            raise ConfigError(f"clusters={asked} but there are only {clients} clients: choose at most {clients}")
        return asked

    def labels(self, data: ClientDirectory) -> Tensor | None:
        """Return the cluster of each client (m,) if it is known before the run; else None."""
        return None


@dataclass(frozen=True)
class SingleGroup(FoundGroups):
    """All clients are in a single cluster."""

    found = False
    kind = "one"

    def count(self, data: ClientDirectory, asked: int | None) -> int | None:
        return 1

    def labels(self, data: ClientDirectory) -> Tensor | None:
        return torch.zeros(len(data.clients), dtype=torch.int64)


@dataclass(frozen=True)
class TrueGroups(FoundGroups):
    """The true groups are known."""

    found = False
    kind = "truth"

    def count(self, data: ClientDirectory, asked: int | None) -> int | None:
        if data.truth is None:
            raise ConfigError(
                "oracle needs the true groups: pass truth= to from_arrays, or use a method that finds groups"
            )
        return int(data.truth.max()) + 1

    def labels(self, data: ClientDirectory) -> Tensor | None:
        return None if data.truth is None else torch.from_numpy(data.truth)


@dataclass(frozen=True)
class OneModelEach(FoundGroups):
    """Every client is its own cluster."""

    found = False
    personal = True
    kind = "self"

    def count(self, data: ClientDirectory, asked: int | None) -> int | None:
        return len(data.clients)

    def labels(self, data: ClientDirectory) -> Tensor | None:
        return torch.arange(len(data.clients))
