"""ICFL as in HCFL: all clients train one model; clusters are split where updates disagree. (Yan et al. 2023)

paper                      here
Delta theta_i              row `change`: client i's update of its cluster's model
A_ij, alpha_G              cosine of two updates of a cluster; largest eigenvalue of A / n
alpha*(t)                  1 - (e/eps_1)^(t/eps_2), eps_2 = ln(1 - alpha_0) / (1 - ln eps_1); t = rounds done before
alpha_0, eps_1             alpha0, eps1

After a split, the model of each part is the mean of its members' updated models. Clusters are never merged or removed.
This follows the implementation by HCFL's authors in all but two points: all clients start in one cluster instead of a
pool from which they are assigned by their models, and the split uses the rows of the eigenvectors (theirs the columns).

alpha*(t) rises to 1, so the number of clusters grows towards the number of clients unless `max_clusters` limits it; in
Table 1 of HCFL (Guo, Tang, Lin 2025) it ends at 98 to 100 with 100 clients. alpha*(t) therefore decides only if alpha0
is given. By default a cluster is split if this lowers the loss on held-out halves of its members' samples
(`tiers/split_test.py`), by the eigenvectors or by complete linkage, whichever gains more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.methods.base import TieredMethod
from coterie.methods.cfl import HeldOutSplit
from coterie.options import option
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.procedure import Procedure, ProcedureStep, SplitBySpectrum


@register("icfl")
@dataclass(frozen=True, kw_only=True)
class ICFL(HeldOutSplit, TieredMethod):
    """All clients train one model; a cluster is split in two when its members' updates point in different directions.

    theta_c <- mean over members; split c if alpha_G < alpha*(t).
    """

    alpha0: float | None = option(
        None,
        "how slowly the paper's threshold on alpha rises, between 0 and 1 (alpha_0), such as 0.85; by default tests on "
        "held-out halves decide",
        above=0,
    )
    eps1: float = option(4.0, "with alpha0: base of the threshold, above e (eps_1)", above=math.e)
    warmup: int = option(0, "number of rounds before the first split", low=0)
    least: int = option(2, "with alpha0: smallest number of members of a cluster that may be split", low=2)

    summary: ClassVar[str] = (
        "one model for all, split in two by the directions of updates if this lowers the held-out loss"
    )
    citation: ClassVar[str] = (
        "Yan, Tong, Wang: Clustered Federated Learning in Heterogeneous Environment, 2023, as in Guo, Tang, Lin: "
        "Enhancing Clustered Federated Learning, 2025"
    )
    twin: ClassVar[str | None] = "fedavg"
    private_options: ClassVar[Mapping[str, Any]] = {"alpha0": 0.85}
    refuses: ClassVar[frozenset[str]] = frozenset({"combine", "exchange", "shared", "restarts", "clusters"})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.alpha0 is not None and not self.alpha0 < 1:
            raise ConfigError(f"icfl: alpha0 must be below 1, got {self.alpha0:g}: at 1 the threshold would never rise")

    def tiers(self) -> Tiers:
        step: ProcedureStep = self.held_out_split(warmup=self.warmup)
        if self.alpha0 is not None:
            step = SplitBySpectrum(self.alpha0, self.eps1, self.warmup, self.least, self.max_clusters)
        return self.compose(assignment=Assigned(), procedure=Procedure((step,)), distance=UpdateCosine(), K=1)
