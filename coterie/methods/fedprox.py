"""FedProx: FedAvg with a proximal term that keeps clients near the model they received. (Li et al. 2020)

paper   here
w^t     clusters.params, K = 1      mu  mu      h_k(w; w^t) = F_k(w) + (mu/2) ||w - w^t||^2
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.methods.groups import FoundGroups, SingleGroup
from coterie.options import option
from coterie.tiers.assignment import SingleCluster
from coterie.tiers.composition import Tiers


@register("fedprox")
@dataclass(frozen=True, kw_only=True)
class FedProx(TieredMethod):
    """All clients train one global model, with a proximal term in every local step.

    w_i <- local steps on F_i(w) + (mu/2) ||w - w^t||^2; w <- sum_i (n_i / n) w_i.

    Example:
        >>> import coterie
        >>> from coterie.methods import FedProx
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, FedProx(mu=0.1), learner="logistic", rounds=2)
        >>> len(result.models)
        1
    """

    mu: float = option(0.1, "strength of the pull towards the received model (mu)", low=0)

    summary: ClassVar[str] = "one global model, with a proximal term in the local steps"
    citation: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith: Federated Optimization in Heterogeneous Networks, 2020"
    )
    groups: ClassVar[FoundGroups] = SingleGroup()
    no_twin: ClassVar[str] = (
        "its proximal term has no counterpart in FedAvg; with mu=0 they are equal, which a test checks"
    )
    refuses: ClassVar[frozenset[str]] = frozenset(
        {"clusters", "averaging", "divide_by", "shared", "restarts", "exchange"}
    )

    def tiers(self) -> Tiers:
        return self.compose(assignment=SingleCluster(), K=1, local=replace(self.local, prox=self.mu))
