"""HCFL and HCFL': a backbone whose clusters are cut as CFL cuts them. (Guo, Tang, Lin 2025)

paper                 here
tiers 1, 2            the backbone's (`methods/backbones.py`): of fedem, fedrc, fesem or fedsoft
tiers 3, 4            CFL's: norms of the updates of a cluster's model decide, their cosines part; the parts are written
                      into the clients' weights; a cluster that nobody ranks first is removed
HCFL                  a whole model for each cluster
HCFL' (hcfl-split)    one body for all, a head for each cluster; updates are those of the heads

A client counts in the cluster that weighs most for it, with its update of that cluster's model: by how much it moved it
(fedem, fedrc), how far what it trained is from the model of the cluster it is in then (fesem), or how far its own model
is from it (fedsoft). The mean of the last becomes short once the cluster has settled, while clients that differ stay
away from it, which is what CFL looks for; what fedsoft's clients changed in the round becomes short for everybody.

fedsoft counts its shares anew in every round, so that parts written into them last until the next count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.backbones import NO_TWIN, Backbone, BackboneMethod
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
    """Base of both: a backbone whose clusters are cut by the norms and cosines of updates."""

    merge: bool = option(
        True,
        "whether clusters that need no models of their own unite, by tests on held-out halves; with eps1 and eps2 they "
        "never do",
    )

    @property
    def placing(self) -> Placing:
        return "mixture" if self.backbone in ("fedem", "fedrc") else "least-loss"

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
    """The backbone with whole models, split by update cosines."""

    summary: ClassVar[str] = "a method whose number of clusters grows as in CFL, a whole model for each cluster"
    learners: ClassVar[tuple[str, ...] | None] = ("logistic", "mlp", "cnn", "module")
    no_twin: ClassVar[str] = "but not with backbone fedsoft, whose clients go on from models of their own"

    def tiers(self) -> Tiers:
        return self.split(())


@register("hcfl-split")
@dataclass(frozen=True, kw_only=True)
class HCFLSplit(NormSplitBackbone):
    """The backbone with one body, its heads split by update cosines."""

    order: Order = option("heads-first", ORDER_HELP)

    summary: ClassVar[str] = "the same with one body for all and a head for each cluster"
    learners: ClassVar[tuple[str, ...] | None] = ("mlp", "cnn", "module")
    no_twin: ClassVar[str] = NO_TWIN

    def tiers(self) -> Tiers:
        return self.split(("body",), self.order)
