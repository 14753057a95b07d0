"""Tiers 1 and 2 of published methods, whose number of clusters HCFL lets grow.

backbone    a cluster explains by    clients                                   averaging of the clusters' models
fedem       p(y|x)                   mixtures by EM                            by responsibility (the paper: all)
fedrc       p(y|x) / P_k(y)          mixtures by EM                            by responsibility (the paper: all)
fesem       p(y|x)                   one cluster, of the nearest parameters    members
fedsoft     p(y|x)                   a model (head) of their own, held near    by weight
                                     their mixture of the clusters'
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
NO_TWIN = "but not with order=heads-first, nor with backbone fedsoft, whose clients go on from heads of their own"
AVERAGING: Mapping[Backbone, Literal["members", "all", "responsibility"]] = {
    "fedem": "responsibility",
    "fedrc": "responsibility",
    "fesem": "members",
    "fedsoft": "responsibility",
}


@dataclass(frozen=True, kw_only=True)
class BackboneMethod(TieredMethod):
    """Base of methods that let the number of clusters of a published method grow."""

    clusters: int | Auto = option(1, "number of clusters at first; they are to be found, so one by default", low=1)
    backbone: Backbone = option("fedem", "how a cluster explains a sample and how clients are given to clusters")
    lam: float | None = option(
        None, f"with backbone fedsoft: strength of the pull to the mixture (lambda), {PULL:g} by default", low=0
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
                f"{self.name}: backbone fedrc counts classes, but the targets are numbers: use backbone=fedem"
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
        """Return the backbone with a procedure that changes the number of clusters.

        Raises:
            ConfigError: if a setting does not fit the backbone.
        """
        personal = self.backbone == "fedsoft"
        averaging = self.soft_averaging
        if self.lam is not None and not personal:
            raise ConfigError(
                f"{self.name}: lam pulls a client's own model to its mixture, but with backbone {self.backbone} it has "
                "none: leave lam out, or use backbone=fedsoft"
            )
        if personal and averaging.over != "responsibility":
            raise ConfigError(
                f"{self.name}: backbone fedsoft averages the clients' own models by their weights, but "
                f"averaging={averaging.over}: leave it out"
            )
        pull = PULL if self.lam is None else self.lam
        return self.compose(
            objective=Ratio() if self.backbone == "fedrc" else Conditional(),
            assignment=assignment,
            procedure=procedure,
            distance=distance,
            # with fesem a client has one cluster, so that its responsibility is 1
            averaging=averaging.for_hard_clusters() if self.backbone == "fesem" else averaging,
            local=replace(self.local, order=order, prox=pull if personal else 0.0),
            shared=shared,
        )
