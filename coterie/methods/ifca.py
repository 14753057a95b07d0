"""IFCA: every client joins the cluster whose model fits it best, then improves it. (Ghosh et al. 2020)

paper         here
theta_j^(t)   clusters.params, one row for each of K clusters       k    clusters
F_i           the client's mean loss                                 M_t  participation
gamma         local.lr                                               tau  local.steps
option I      exchange=gradient, averaging=all, divide_by=federation: theta_j - (gamma/m) sum of members' gradients
option II     exchange=model, averaging=members, client_weight=uniform: the plain mean of the members' models
section 4.3   shared: a common body; stable_after: once identities are stable only the own model is sent
section 5     resample: each round uses fresh samples, some for the cluster, others for the gradient
section 6     restarts: several random starts, the least training loss wins; race (ours): decided after a few rounds
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod, TrialSettings
from coterie.methods.race import Raced
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.composition import Tiers


@register("ifca")
@dataclass(frozen=True, kw_only=True)
class IFCA(Raced, TrialSettings, TieredMethod):
    """Every client joins the cluster whose model fits it best, then improves that model.

    j_i = argmin_j F_i(theta_j); local steps on theta_{j_i}; average over the clients that chose the same j.

    Example:
        >>> import coterie
        >>> from coterie.methods import IFCA
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, IFCA(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    clusters: int | Auto = option(
        2,
        "number of clusters (K); auto: as many as the initializer finds (odcl, moment-descent), or with random models "
        "as many as held-out samples call for in trial runs, maybe one",
        low=1,
    )
    stable_after: int | None = option(
        None,
        "send only its own model to a client that kept its cluster for this many rounds, and all models again every "
        "so many rounds (off by default: freezing early hurts)",
        low=2,
    )
    resample: bool = option(
        False,
        "cut each client's samples into 2 x rounds subsets; every round takes two fresh ones, one to choose the "
        "cluster by and one to train on, as the paper's analysis assumes",
    )

    summary: ClassVar[str] = "clients join the cluster whose model fits them best"
    citation: ClassVar[str] = (
        "Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020"
    )
    tries_counts: ClassVar[bool] = True
    twin: ClassVar[str | None] = "fedavg"

    @property
    def default_averaging(self) -> Averaging:
        if self.exchange == "gradient":
            return Averaging(over="all", client_weight="uniform", divide_by="federation")
        return Averaging(over="members", client_weight="uniform")

    def tiers(self) -> Tiers:
        return self.compose(assignment=LowestLoss(), stable_after=self.stable_after, resample=self.resample)
