"""Tiers 1 and 2 of the published methods whose number of clusters HCFL adapts.

backbone    likelihood of a cluster    clients                                      averaging
fedem       p(y|x)                     mixtures by EM                               by responsibility (the paper: all)
fedrc       p(y|x) / P_k(y)            mixtures by EM                               by responsibility (the paper: all)
fesem       p(y|x)                     one cluster, that of the nearest parameters  members
fedsoft     p(y|x)                     a personal model (head), pulled towards      by weight
                                       their mixture of the clusters' models
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.methods.base import Method, TieredMethod
from coterie.methods.fedem import Order
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import AssignmentRule
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Conditional, Ratio
from coterie.tiers.procedure import Procedure

Backbone = Literal["fedem", "fedrc", "fesem", "fedsoft"]
PULL = 0.1
"""Default strength of the pull of backbone fedsoft (lambda)."""
NO_TWIN = "but not with order=heads-first, nor with backbone fedsoft, whose clients keep personal heads"
WEIGHT_AFTER_SPLIT = 0.9
"""Share of a client's weight that its part of a split receives; with the rest, training can correct the split."""
AVERAGING: Mapping[Backbone, Literal["members", "all", "responsibility"]] = {
    "fedem": "responsibility",
    "fedrc": "responsibility",
    "fesem": "members",
    "fedsoft": "responsibility",
}


@dataclass(frozen=True, kw_only=True)
class BackboneMethod(TieredMethod):
    """Base class of methods that adapt the number of clusters of a published method."""

    clusters: int | Auto = option(1, "initial number of clusters; one by default, since the method finds more", low=1)
    backbone: Backbone = option(
        "fedem", "method that decides how a cluster explains a sample and how clients are assigned to clusters"
    )
    lam: float | None = option(
        None, f"with backbone fedsoft: strength of the pull towards the mixture (lambda); default {PULL:g}", low=0
    )

    citation: ClassVar[str] = (
        "Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved "
        "Methodologies, 2025"
    )
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared", "restarts"})
    keeps: ClassVar[frozenset[str]] = frozenset({"clusters"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over=AVERAGING[self.backbone], client_weight="samples")

    def for_learner(self, learner: Learner) -> Method:
        if self.backbone == "fedrc" and learner.classes is None:
            raise ConfigError(
                f"{self.name}: backbone fedrc counts classes, but this is a regression: use backbone=fedem"
            )
        return super().for_learner(learner)

    def grown(
        self,
        assignment: AssignmentRule,
        procedure: Procedure,
        distance: Distance,
        shared: tuple[str, ...],
        order: Order,
    ) -> Tiers:
        """Return the backbone with a procedure that adapts the number of clusters.

        Raises:
            ConfigError: if a setting does not fit the backbone.
        """
        personal = self.backbone == "fedsoft"
        averaging = self.soft_averaging
        if self.lam is not None and not personal:
            raise ConfigError(
                f"{self.name}: lam pulls personal models towards a mixture, but backbone {self.backbone} has none: "
                "leave lam out, or use backbone=fedsoft"
            )
        if personal and averaging.over != "responsibility":
            raise ConfigError(
                f"{self.name}: backbone fedsoft averages personal models by their weights, but "
                f"averaging={averaging.over}: leave averaging out"
            )
        pull = PULL if self.lam is None else self.lam
        return self.compose(
            objective=Ratio() if self.backbone == "fedrc" else Conditional(),
            assignment=assignment,
            procedure=procedure,
            distance=distance,
            # with fesem every client has one cluster, so its responsibility is 1
            averaging=averaging.for_hard_clusters() if self.backbone == "fesem" else averaging,
            local=replace(self.local, order=order, prox=pull if personal else 0.0),
            shared=shared,
        )
