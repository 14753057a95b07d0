"""FedRC: mixtures that p(y|x) alone separates, not features or labels. (Guo, Tang, Lin 2024)

paper              here
L_k = p / (p p)    tier 1, ratio: p_k(y|x) / P_k(y)        omega_i  the client's weights, kept by the client
P_k(y)             class shares of cluster k, which the server computes from the last counts of every client
gamma_ijk          responsibilities, once a round, in log space

Everything else is as in FedEM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.methods.base import Method
from coterie.methods.fedem import ORDER_HELP, MixtureMethod, Order
from coterie.options import option
from coterie.tiers.composition import Tiers
from coterie.tiers.objective import Ratio


@register("fedrc")
@dataclass(frozen=True, kw_only=True)
class FedRC(MixtureMethod):
    """Every client is its own mixture of K models; only differences in p(y|x) separate the clusters.

    gamma_jk ~ w_k p_k(y_j|x_j) / P_k(y_j); w_k = mean of gamma_jk; theta_k <- sum_i (n_i / n) theta_ik.
    """

    order: Order = option("together", ORDER_HELP, needs="shared")

    summary: ClassVar[str] = "mixtures separated by the concept p(y|x), not by the features or labels that occur"
    citation: ClassVar[str] = (
        "Guo, Tang, Lin: FedRC: Tackling Diverse Distribution Shifts Challenge in Federated Learning by Robust "
        "Clustering, 2024"
    )
    learners: ClassVar[tuple[str, ...] | None] = ("logistic", "mlp", "cnn", "module")

    def for_learner(self, learner: Learner) -> Method:
        if learner.classes is None:
            raise ConfigError("fedrc counts classes, but this is a regression: use fedem")
        return super().for_learner(learner)

    def tiers(self) -> Tiers:
        return self.mixture(Ratio(), self.order)
