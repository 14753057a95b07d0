"""HCFL and HCFL': a backbone whose clusters are split as in CFL. (Guo, Tang, Lin 2025)

paper                 here
tiers 1, 2            those of the backbone fedem, fedrc, fesem or fedsoft (`methods/backbones.py`)
tiers 3, 4            those of CFL: the norms of the updates of a cluster's model decide about a split, their cosines
                      about its parts; the parts are written into the clients' weights; a cluster to which no client
                      gives its largest weight is removed
HCFL                  a whole model for each cluster
HCFL' (hcfl-split)    one body for all, a head for each cluster; updates are those of the heads

A client counts in the cluster with its largest weight, with its update of that cluster's model: its change in the round
(fedem, fedrc), the difference of its trained model and the model of the cluster that it then joins (fesem), or the
difference of its personal model and the cluster's (fedsoft). The mean of these differences becomes small once the
cluster has settled, while clients that differ stay away from it, which is what CFL tests; the changes of fedsoft's
clients within a round become small for all of them.

fedsoft counts its shares in every round, so that the parts of a split last only until the next count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.backbones import NO_TWIN, WEIGHT_AFTER_SPLIT, Backbone, BackboneMethod
from coterie.methods.cfl import NormSplit
from coterie.methods.fedem import ORDER_HELP, Order
from coterie.options import option
from coterie.tiers.assignment import AssignmentRule, CountShares, EMMixture, NearestParameters
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.procedure import Procedure, RemoveUnclaimed

ASSIGNMENTS: Mapping[Backbone, AssignmentRule] = {
    "fedem": EMMixture(),
    "fedrc": EMMixture(),
    "fesem": NearestParameters(),
    "fedsoft": CountShares(),
}


@dataclass(frozen=True, kw_only=True)
class NormSplitBackbone(NormSplit, BackboneMethod):
    """Base class of HCFL and HCFL': a backbone whose clusters are split by the norms and cosines of updates."""

    merge: bool = option(
        True,
        "whether clusters that do not need separate models merge, by tests on held-out halves; with eps1 and eps2 they "
        "never do",
    )

    @property
    def placing(self) -> Placing:
        return "mixture" if self.backbone in ("fedem", "fedrc") else "least-loss"

    @property
    def weight_after_split(self) -> float:
        return 1.0 if self.backbone == "fesem" else WEIGHT_AFTER_SPLIT

    def split(self, shared: tuple[str, ...], order: Order = "together") -> Tiers:
        """Return the backbone, split by update cosines."""
        by_norms = self.eps1 is not None or self.eps2 is not None
        merge = () if by_norms or not self.merge else (self.held_out_merge(),)
        return self.grown(
            ASSIGNMENTS[self.backbone],
            Procedure((RemoveUnclaimed(), *merge, self.norm_split())),
            UpdateCosine(),
            shared,
            order,
        )


@register("hcfl")
@dataclass(frozen=True, kw_only=True)
class HCFL(NormSplitBackbone):
    """A backbone with a whole model for each cluster, whose clusters are split as in CFL.

    Example:
        >>> import coterie
        >>> from coterie.methods import HCFL
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, HCFL(max_clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        1
    """

    summary: ClassVar[str] = "a backbone whose number of clusters grows as in CFL, with a whole model for each cluster"
    learners: ClassVar[tuple[str, ...] | None] = ("linear", "logistic", "mlp", "cnn", "module")
    no_twin: ClassVar[str] = "but not with backbone fedsoft, whose clients keep personal models"

    def tiers(self) -> Tiers:
        return self.split(())


@register("hcfl-split")
@dataclass(frozen=True, kw_only=True)
class HCFLSplit(NormSplitBackbone):
    """A backbone with one shared body and a head for each cluster, split by the cosines of the heads' updates.

    Example:
        >>> import coterie
        >>> from coterie.methods import HCFLSplit
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, HCFLSplit(), learner="mlp:hidden=8", rounds=1)
        >>> len(result.models)
        1
    """

    order: Order = option("heads-first", ORDER_HELP)

    summary: ClassVar[str] = "HCFL with one body for all clusters and a head for each cluster"
    learners: ClassVar[tuple[str, ...] | None] = ("mlp", "cnn", "module")
    no_twin: ClassVar[str] = NO_TWIN

    def tiers(self) -> Tiers:
        return self.split(("body",), self.order)
