"""Tier 1: what a cluster models, and so how well it explains a sample.

A half on either side: the client turns losses into costs and may report counts, which the server keeps for each client
and combines into what everybody is told in the next round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from coterie.core.clusters import Params


class Objective(Protocol):
    """How badly a cluster explains a sample."""

    name: ClassVar[str]

    def client_cost(self, losses: Tensor, y: Tensor, common: Params) -> Tensor:
        """From -log p_k(y|x), shape (B, n, S), to -log L_k of the same shape; the very same tensor where they agree."""
        ...

    def client_counts(self, gamma: Tensor, y: Tensor, classes: int | None) -> Params:
        """Rows {name: (B, ...)} for the server, from what each model counts for each sample, (B, n, S), 0 if padded."""
        ...

    def server_combine(self, tables: Params) -> Params:
        """What everybody is told, from every client's last rows {name: (m, ...)}; zeros for those not heard yet."""
        ...


@dataclass(frozen=True)
class Conditional:
    """L_k = p_k(y|x): a cluster is as good as its predictions."""

    name: ClassVar[str] = "conditional"

    def client_cost(self, losses: Tensor, y: Tensor, common: Params) -> Tensor:
        return losses

    def client_counts(self, gamma: Tensor, y: Tensor, classes: int | None) -> Params:
        return {}

    def server_combine(self, tables: Params) -> Params:
        return {}


RAREST = 1e-8
"""The floor of a class in a cluster, before its shares are made to sum to one."""


@dataclass(frozen=True)
class Ratio:
    """L_k = p_k(y|x) / P_k(y), with P_k the shares of the classes in cluster k: a cluster rich in a class is no better
    at it for that alone, so that clients are told apart by p(y|x) and not by their labels. (FedRC)
    """

    name: ClassVar[str] = "ratio"

    def client_cost(self, losses: Tensor, y: Tensor, common: Params) -> Tensor:
        if "label_shares" not in common:  # before the first counts every class is as frequent as any other
            return losses
        shares = common["label_shares"].to(losses)  # (S, C)
        return losses + shares.log().T[y]

    def client_counts(self, gamma: Tensor, y: Tensor, classes: int | None) -> Params:
        one_hot = torch.nn.functional.one_hot(y, classes or 0).to(gamma)
        return {"labels": gamma.transpose(1, 2) @ one_hot}  # (B, S, C)

    def server_combine(self, tables: Params) -> Params:
        counts = tables["labels"].sum(dim=0).clamp_min(RAREST)
        return {"label_shares": counts / counts.sum(dim=1, keepdim=True)}


OBJECTIVES: dict[str, type[Objective]] = {m.name: m for m in (Conditional, Ratio)}
