"""IFCA: every client joins the cluster whose model fits it best, then improves it. (Ghosh et al. 2020)

paper         here
theta_j^(t)   clusters.params, one row for each of K clusters       k    clusters
F_i           the client's mean loss                                 M_t  participation
gamma         local.lr                                               tau  local.steps
option I      exchange=gradient, averaging=all, divide_by=federation: theta_j - (gamma/m) sum of members' gradients
option II     exchange=model, averaging=members, client_weight=uniform: the plain mean of the members' models
section 4.3   shared: a common body; stable_after: a client with a stable cluster receives only its own model
section 5     resample: each round uses fresh samples, some to choose the cluster, others to train
section 6     restarts: several random initialisations, the lowest training loss wins; race (ours): decided early
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.core.state import ServerState
from coterie.methods.base import RefitSettings, TieredMethod, TrialSettings
from coterie.methods.race import Raced
from coterie.methods.round import Step, tiered_round
from coterie.methods.run import Run
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss
from coterie.tiers.composition import Tiers


@register("ifca")
@dataclass(frozen=True, kw_only=True)
class IFCA(Raced, TrialSettings, RefitSettings, TieredMethod):
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
        "number of clusters (K); auto: as many as the initializer finds (odcl, moment-descent), or, with random "
        "initial models, the number with the lowest held-out loss in trial runs (possibly one)",
        low=1,
    )
    stable_after: int | None = option(
        None,
        "number of rounds after which a client that kept its cluster receives only its own model; it receives all "
        "models again once every that many rounds (off by default, because freezing clusters early hurts)",
        low=2,
    )
    resample: bool = option(
        False,
        "whether each client's samples are cut into 2 x rounds subsets; every round uses two fresh ones, one to choose "
        "the cluster and one to train, as the paper's analysis assumes",
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
        return self.compose(
            assignment=LowestLoss(), stable_after=self.stable_after, resample=self.resample, refit=self.refit
        )

    def step(self, run: Run, state: ServerState) -> Step:
        """Run one round: clients choose a cluster and train its model; the server averages the members' models."""
        return tiered_round(*self.raced(run, state))
