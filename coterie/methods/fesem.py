"""FeSEM: clients are clustered by the distance of their models' parameters. (Xie, Long, Shen, Zhou, Wang, Jiang 2021)

paper             here
W^(k)             clusters.params                 W_i  a client's model after its local steps from its cluster's model
r_i^(k)           the cluster nearest to W_i, before this round's averaging; kept by the client;
                  in the first round that of the initial grouping; with init=random, as in the paper, the one with the
                  lowest loss
W^(k) <- mean     averaging over members; client_weight=samples, or uniform as in the paper

After a few local steps, a model is usually nearest to the one it started from, so clusters rarely change after the
first round. The first grouping therefore decides: by default the clients' own solutions are clustered (`AutoInit`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.auto_init import StartsFromSolutions
from coterie.options import AUTO, Auto, option
from coterie.tiers.assignment import NearestParameters
from coterie.tiers.composition import Tiers


@register("fesem")
@dataclass(frozen=True, kw_only=True)
class FeSEM(StartsFromSolutions):
    """Clients join the cluster whose model is nearest to their trained model.

    W_i <- local steps from W^(k_i); k_i <- argmin_k |W_i - W^(k)|; W^(k) <- mean of W_i with k_i = k.
    """

    clusters: int | Auto = option(
        AUTO, "number of clusters (K); auto: as many as init=odcl finds; to be given where models are random", low=1
    )

    summary: ClassVar[str] = "clients join the cluster whose parameters are nearest to their own model's"
    citation: ClassVar[str] = "Xie, Long, Shen, Zhou, Wang, Jiang: Multi-Center Federated Learning, 2021"
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"exchange", "shared"})

    def tiers(self) -> Tiers:
        return self.compose(assignment=NearestParameters())
