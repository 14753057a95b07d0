"""Two phases: moment descent gives coarse models, then FedX-clustering refines them. (Su, Xu, Yang 2022)

paper          here
phase 1        init=moment-descent and its options (see methods/moment_descent.py); init=random skips it
theta_t        clusters.params                      eta  lr (auto: 0.9 / max_i |X_i|^2 / n_i)     s  local_steps
z_it, eq. (8)  the cluster with the smallest squared error   w_i = n_i / N  averaging=all, client_weight=samples
lambda_it      one cluster, eq. (8); with soft, the weights that also minimise an entropy term
FedAvg-based   phase2=fedavg: s gradient steps      FedProx-based  phase2=fedprox: one proximal step of length eta

With averaging=all, as in the paper, the progress of a cluster depends on its share of the data; averaging=members is
IFCA's option II, which is faster and less often stuck after a random start. refit (ours) ends with the least-squares
solution of each cluster's samples, which averages of s > 1 steps only approach.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import FIXED_RATE, FullBatch, LocalTraining, MiniBatch, ProximalStep
from coterie.methods.base import Method, RefitSettings, TieredMethod
from coterie.methods.moment_descent import MomentDescent
from coterie.methods.run import Initializer
from coterie.options import AUTO, Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss, SoftmaxLoss
from coterie.tiers.composition import Tiers


@register("two-phase")
@dataclass(frozen=True, kw_only=True)
class TwoPhase(RefitSettings, TieredMethod):
    """Moment descent makes coarse models; then each client joins the model of lowest loss and refines it.

    z_i = argmin_j F_i(theta_j); local steps on theta_{z_i}; theta <- sum (n_i / N) theta_i.

    Example:
        >>> import coterie
        >>> from coterie.methods import TwoPhase
        >>> data = coterie.scenario("mixed-regression", clients=20, groups=2, dimension=3)
        >>> result = coterie.fit(data, TwoPhase(clusters=2), rounds=2)
        >>> len(result.models)
        2
    """

    clusters: int | Auto = option(2, "number of clusters (K); auto: the number that moment descent finds", low=1)
    local: LocalTraining = FullBatch(steps=5, lr=AUTO)
    init: Initializer = MomentDescent()
    phase2: Literal["fedavg", "fedprox"] = option(
        "fedavg", "local training: gradient steps (fedavg), or one proximal step (fedprox)"
    )
    soft: float | None = option(
        None,
        "temperature: a client trains every model, weighted by exp(-mean loss / temperature); by default it trains "
        "only its best model",
        above=0,
    )

    summary: ClassVar[str] = "coarse models by moment descent, which clients then join and refine"
    citation: ClassVar[str] = "Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression, 2022"
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"exchange", "shared"})
    keeps: ClassVar[frozenset[str]] = frozenset({"init", "lr", "restarts"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="all", client_weight="samples")

    def for_learner(self, learner: Learner) -> Method:
        """Return the method for this learner, with the proximal step of phase2=fedprox.

        The step is argmin of L_i(theta) + |theta - theta_t|^2 / (2 eta), which is solved exactly for linear models.
        """
        if self.phase2 == "fedavg":
            return super().for_learner(learner)
        if isinstance(learner, Linear):
            return replace(self, local=ProximalStep(lr=self.local.lr, schedule=self.local.schedule))
        # s steps of length lr move about as far as one proximal step of s times the length
        steps = self.local.steps if isinstance(self.local, FullBatch | MiniBatch) else None
        lr = FIXED_RATE if self.local.lr == AUTO else self.local.lr
        return replace(self, local=replace(self.local, lr=lr, prox=1 / (lr * (steps or 1))))

    def tiers(self) -> Tiers:
        assignment = LowestLoss() if self.soft is None else SoftmaxLoss(self.soft)
        return self.compose(assignment=assignment, refit=self.refit)
