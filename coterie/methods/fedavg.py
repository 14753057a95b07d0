"""FedAvg: one model, averaged over all clients in proportion to their numbers of samples. (McMahan et al. 2017)

paper   here
w_t     clusters.params, K = 1      eta  lr      E  local_epochs      B  batch_size      C  participation
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.methods.groups import FoundGroups, SingleGroup
from coterie.tiers.assignment import SingleCluster
from coterie.tiers.composition import Tiers


@register("fedavg")
@dataclass(frozen=True, kw_only=True)
class FedAvg(TieredMethod):
    """All clients train one global model.

    w <- sum_i (n_i / n) w_i, where w_i is client i's model after its local steps.

    Example:
        >>> import coterie
        >>> from coterie.methods import FedAvg
        >>> result = coterie.fit(coterie.scenario("rotated-digits", clients=8), FedAvg(), rounds=2)
    """

    summary: ClassVar[str] = "one global model for all clients"
    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Aguera y Arcas: Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data, 2017"
    )
    groups: ClassVar[FoundGroups] = SingleGroup()
    no_twin: ClassVar[str] = "it is the method that others are compared with"
    refuses: ClassVar[frozenset[str]] = frozenset({"clusters", "averaging", "divide_by", "shared", "restarts"})

    def tiers(self) -> Tiers:
        return self.compose(assignment=SingleCluster(), K=1)
