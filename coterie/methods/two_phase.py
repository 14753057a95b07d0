"""Two phases: moment descent for coarse models, then FedX-clustering. (Su, Xu, Yang 2022)

paper          here
phase 1        init=moment-descent and its options (see methods/moment_descent.py); init=random leaves it out
theta_t        clusters.params                      eta  lr (auto: 0.9 / max_i |X_i|^2 / n_i)     s  local_steps
z_it, eq. (8)  the cluster of least squared error   w_i = n_i / N  averaging=all, client_weight=samples
lambda_it      one cluster, eq. (8); with soft the lambda that also pays for its entropy
FedAvg-based   phase2=fedavg: s gradient steps      FedProx-based  phase2=fedprox: one proximal step of length eta

With averaging=all a cluster moves at the pace of its share of the data, as in the paper; averaging=members is IFCA's
option II, which is faster and is less often stuck from a random start.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.learners.local_training import FIXED_RATE, FullBatch, LocalTraining, MiniBatch, ProximalStep
from coterie.methods.base import Method, TieredMethod
from coterie.methods.moment_descent import MomentDescent
from coterie.methods.run import Initializer
from coterie.options import AUTO, Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss, SoftmaxLoss
from coterie.tiers.composition import Tiers


@register("two-phase")
@dataclass(frozen=True, kw_only=True)
class TwoPhase(TieredMethod):
    """Moment descent, then each client joins the model of least loss and refines it; theta <- sum (n_i / N) theta_i."""

    clusters: int | Auto = option(2, "number of clusters (K); auto: as many as moment descent finds", low=1)
    local: LocalTraining = FullBatch(steps=5, lr=AUTO)
    init: Initializer = MomentDescent()
    phase2: Literal["fedavg", "fedprox"] = option("fedavg", "local work: gradient steps, or one proximal step")
    soft: float | None = option(
        None,
        "temperature: a client trains every model, weighted by exp(-mean loss / temperature); by default only its best",
        above=0,
    )

    summary: ClassVar[str] = "coarse models by moment descent, then clients join and refine them"
    citation: ClassVar[str] = "Su, Xu, Yang: Global Convergence of Federated Learning for Mixed Regression, 2022"
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"exchange", "shared"})
    keeps: ClassVar[frozenset[str]] = frozenset({"init", "lr", "restarts"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="all", client_weight="samples")

    def for_learner(self, learner: Learner) -> Method:
        """With phase2=fedprox: argmin of L_i(theta) + |theta - theta_t|^2 / (2 eta), solved for linear models."""
        if self.phase2 == "fedavg":
            return super().for_learner(learner)
        if isinstance(learner, Linear):
            return replace(self, local=ProximalStep(lr=self.local.lr, schedule=self.local.schedule))
        # s steps of length lr go about as far as one proximal step of s times the length
        steps = self.local.steps if isinstance(self.local, FullBatch | MiniBatch) else None
        lr = FIXED_RATE if self.local.lr == AUTO else self.local.lr
        return replace(self, local=replace(self.local, lr=lr, prox=1 / (lr * (steps or 1))))

    def tiers(self) -> Tiers:
        return self.compose(assignment=LowestLoss() if self.soft is None else SoftmaxLoss(self.soft))
