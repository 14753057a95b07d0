"""One-shot clustering, then training inside the clusters. (Ghosh, Hong, Yin, Ramchandran 2019, algorithm 1)

paper                     here
w-hat_i, local ERM        a client's own solution (solver)
clustering of the w-hat   clustering, as for odcl
federated optimisation    then: the rounds of a method for one model, separately in every cluster
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.methods.odcl import ODCL
from coterie.methods.run import Initializer
from coterie.options import AUTO, Auto, option
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers


@dataclass(frozen=True, kw_only=True)
class InsideClusters(TieredMethod):
    """Base class of methods that group clients once and then train one model separately in every group."""

    clusters: int | Auto = option(2, "number of clusters (K); auto: the number that the clustering finds", low=1)
    then: Literal["fedavg", "fedprox"] = option("fedavg", "method that trains inside the clusters")
    mu: float = option(
        0.1, "then=fedprox: strength of the pull towards the received model (mu)", low=0, needs="then=fedprox"
    )

    refuses: ClassVar[frozenset[str]] = frozenset({"init", "restarts"})

    def tiers(self) -> Tiers:
        local = replace(self.local, prox=self.mu) if self.then == "fedprox" else self.local
        return self.compose(assignment=Assigned(), local=local)


@register("one-shot")
@dataclass(frozen=True, kw_only=True)
class OneShot(InsideClusters):
    """Clients' own solutions are clustered once, then FedAvg or FedProx trains one model in each cluster.

    w-hat_i = argmin F_i; groups <- clustering of the w-hat_i; w_k <- mean of w-hat_i in group k; then FedAvg in each.
    """

    clusters: int | Auto = option(AUTO, "number of clusters (K); auto: as many as the clustering finds", low=1)
    init: Initializer = ODCL()

    summary: ClassVar[str] = "clients' own solutions are clustered once, then each cluster trains its model"
    citation: ClassVar[str] = (
        "Ghosh, Hong, Yin, Ramchandran: Robust Federated Learning in a Heterogeneous Environment, 2019"
    )
    no_twin: ClassVar[str] = (
        "its single cluster starts from the mean of the clients' own solutions, unlike any other method"
    )

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return clusters=auto for convex clustering, which finds the number of clusters itself."""
        return {"clusters": AUTO} if given.get("clustering") == "convex" else {}
