"""Tier 1: what a cluster models, and so how well it explains a sample."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor


class Objective(Protocol):
    """How a cluster is scored on a sample."""

    name: ClassVar[str]

    def client_score(self, log_likelihood: Tensor) -> Tensor:
        """From log p_k(y|x), shape (B, n, S), to log L_k of the same shape."""
        ...


@dataclass(frozen=True)
class Conditional:
    """L_k = p_k(y|x): a cluster is as good as its predictions."""

    name: ClassVar[str] = "conditional"

    def client_score(self, log_likelihood: Tensor) -> Tensor:
        return log_likelihood


OBJECTIVES: dict[str, type[Objective]] = {m.name: m for m in (Conditional,)}
