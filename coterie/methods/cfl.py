"""CFL: everybody trains one model until it stops helping all; then the clients are cut in two. (Sattler et al. 2020)

paper                      here
Delta theta_i              row `change`: what client i changed of its cluster's model
eps_1, eps_2               eps1, eps2: |mean of Delta theta_i| < eps_1 and max |Delta theta_i| > eps_2, L2 norms
alpha_ij                   cosine of two updates; the cut by complete linkage makes the largest one across least
gamma_max                  gate: a cut counts only if gamma_max < sqrt((1 - alpha_cross) / 2)

After a cut the model of a part is the mean of what its members made of the cluster's. Nothing is merged or removed.

A new client takes the cluster whose model has the least loss on its samples (newcomers=loss). The paper keeps the tree
of cuts (newcomers=tree): with the model that was cut, and what each part made of it in the mean. A newcomer trains that
model on its own samples, goes to the part whose mean update has the larger cosine with its own, and on from there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.options import option
from coterie.tiers.assignment import Assigned
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.procedure import Procedure, SplitByNorm


@dataclass(frozen=True, kw_only=True)
class NormSplit:
    """Settings of the cut by norms."""

    eps1: float = option(0.4, "a cluster may be cut once the norm of its mean update is below this (eps_1)", above=0)
    eps2: float = option(1.6, "and the norm of some member's update is above this (eps_2)", low=0)
    thresholds: Literal["absolute", "relative"] = option(
        "absolute", "whether eps1 is a norm, or a share of the longest member's update"
    )
    warmup: int = option(20, "number of rounds before the first cut", low=0)
    least: int = option(3, "least number of members of a cluster that is cut", low=2)
    gate: float | None = option(
        None, "gamma_max: cut only if updates across the cut differ by that much; by default always", low=0
    )
    max_clusters: int | None = option(None, "largest number of clusters", low=1)

    def norm_split(self) -> SplitByNorm:
        """Return the step of the procedure."""
        return SplitByNorm(
            self.eps1,
            self.eps2,
            self.thresholds == "relative",
            self.warmup,
            self.least,
            self.gate,
            self.max_clusters,
        )


@register("cfl")
@dataclass(frozen=True, kw_only=True)
class CFL(NormSplit, TieredMethod):
    """theta_c <- mean over members; cut c in two where its mean update is small and a member's is not."""

    newcomers: Literal["loss", "tree"] = option(
        "loss", "how a new client finds its cluster: by least loss, or down the tree of splits by its own updates"
    )

    summary: ClassVar[str] = "one model for all, cut in two where it no longer helps everybody, and again"
    citation: ClassVar[str] = (
        "Sattler, Mueller, Samek: Clustered Federated Learning: Model-Agnostic Distributed Multi-Task Optimization "
        "under Privacy Constraints, 2020"
    )
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared", "restarts", "clusters"})

    @property
    def placing(self) -> Placing:
        return "tree" if self.newcomers == "tree" else "least-loss"

    def tiers(self) -> Tiers:
        return self.compose(
            assignment=Assigned(),
            procedure=Procedure((self.norm_split(),)),
            distance=UpdateCosine(),
            K=1,
            tree=self.newcomers == "tree",
        )
