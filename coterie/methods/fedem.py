"""FedEM: every client is its own mixture of K models. (Marfoq, Neglia, Bellet, Kameni, Vidal 2021)

paper             here
theta_m           clusters.params, K = M          pi_t  the client's weights, kept by the client
q_t^k(z = m)      gamma, the responsibilities of a client's samples, once a round, in log space
eta, J            lr, local_steps or local_epochs  n_t / n  averaging=all, client_weight=samples

A client trains every model, with each sample's loss weighted by gamma, so a model that explains little of its data
changes little. averaging=responsibility weights the clients' models by pi, so that the progress of a cluster does not
depend on its size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.methods.auto_init import StartsFromSolutions
from coterie.methods.base import TrialSettings
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import EMMixture
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.objective import Conditional, Objective

Order = Literal["heads-first", "together"]
ORDER_HELP = (
    "with shared=body: train all heads with fixed features first and then the body (heads-first), or both together"
)


@dataclass(frozen=True, kw_only=True)
class MixtureMethod(TrialSettings, StartsFromSolutions):
    """Base class of methods whose clients are mixtures, fitted by EM under some objective."""

    clusters: int | Auto = option(
        3,
        "number of clusters (K); auto: as many as init=odcl finds, or, with random initial models, the number with the "
        "lowest held-out loss in trial runs (possibly one)",
        low=1,
    )

    tries_counts: ClassVar[bool] = True
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="responsibility", client_weight="samples")

    @property
    def placing(self) -> Placing:
        return "mixture"

    def mixture(self, objective: Objective, order: Order = "together") -> Tiers:
        """Return the composition of mixtures, fitted by EM under an objective.

        Raises:
            ConfigError: if the shared parameters are not supported.
        """
        if self.shared not in (None, "body"):
            raise ConfigError(
                f"{self.name} can share only a network's whole body: use shared=body instead of shared={self.shared}"
            )
        if self.shared and self.init.restart_count > 1:
            raise ConfigError(
                f"{self.name}: a shared body has one initialisation, but restarts={self.init.restarts}: leave it at 1"
            )
        return self.compose(
            objective=objective,
            assignment=EMMixture(),
            averaging=self.soft_averaging,
            local=replace(self.local, order=order),
        )


@register("fedem")
@dataclass(frozen=True, kw_only=True)
class FedEM(MixtureMethod):
    """Every client is its own mixture of K models, fitted by EM.

    gamma_jk ~ pi_k p_k(y_j|x_j); pi_k = mean of gamma_jk; theta_k <- sum_i (n_i / n) theta_ik.

    Example:
        >>> import coterie
        >>> from coterie.methods import FedEM
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, FedEM(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    order: Order = option("together", ORDER_HELP, needs="shared")

    summary: ClassVar[str] = "every client is its own mixture of the clusters' models"
    citation: ClassVar[str] = (
        "Marfoq, Neglia, Bellet, Kameni, Vidal: Federated Multi-Task Learning under a Mixture of Distributions, 2021"
    )

    def tiers(self) -> Tiers:
        return self.mixture(Conditional(), self.order)
