"""Tier 2: how clients are given to clusters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Weights(Protocol):
    """Which cluster each client works on."""

    name: ClassVar[str]
    assigned: ClassVar[bool]
    """Whether the server says which cluster a client belongs to."""

    def client_choose(self, scores: Tensor) -> Tensor:
        """The cluster of each client in each lane, (B, R), from its mean scores (B, R, K); ties to the lowest."""
        ...


@dataclass(frozen=True)
class OneCluster:
    """Everybody is in the one cluster there is."""

    name: ClassVar[str] = "one-cluster"
    assigned: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        return torch.zeros(scores.shape[:2], dtype=torch.int64, device=scores.device)


@dataclass(frozen=True)
class HardByLoss:
    """A client joins the cluster whose model explains its own training data best (IFCA's j-hat)."""

    name: ClassVar[str] = "hard-by-loss"
    assigned: ClassVar[bool] = False

    def client_choose(self, scores: Tensor) -> Tensor:
        return scores.nan_to_num(nan=-torch.inf, neginf=-torch.inf).argmax(dim=2)


@dataclass(frozen=True)
class Assigned:
    """The server gives each client its cluster and sends it no other model."""

    name: ClassVar[str] = "assigned"
    assigned: ClassVar[bool] = True

    def client_choose(self, scores: Tensor) -> Tensor:
        raise AssertionError("an assigned client is told its cluster and never chooses")


WEIGHTS: dict[str, type[Weights]] = {m.name: m for m in (OneCluster, HardByLoss, Assigned)}
