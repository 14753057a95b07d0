"""Tier 1: what a cluster models, and so how well it explains a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


class Objective(Protocol):
    """How badly a cluster explains a sample."""

    name: ClassVar[str]

    def client_cost(self, losses: Tensor) -> Tensor:
        """From -log p_k(y|x), shape (B, n, S), to -log L_k of the same shape; the very same tensor where they agree."""
        ...


@dataclass(frozen=True)
class Conditional:
    """L_k = p_k(y|x): a cluster is as good as its predictions."""

    name: ClassVar[str] = "conditional"

    def client_cost(self, losses: Tensor) -> Tensor:
        return losses


OBJECTIVES: dict[str, type[Objective]] = {m.name: m for m in (Conditional,)}
