"""A custom method: one member of each tier. The tiers are those of HCFL. (Guo, Tang, Lin 2025)

tier            field        examples
1, objective    objective    Conditional(), Ratio(), Joint(embedding="inputs")
2, assignment   assignment   EMMixture(mu=0.4), LowestLoss(), Assigned()
3, procedure    procedure    () for a fixed K, or steps such as (SplitByGap(rho=0.3), RemoveUnclaimed())
4, distance     distance     UpdateCosine(), Prototypes(principle="cscp")

`coterie tiers` lists all members. A composition that cannot work is refused (`tiers/compatibility.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.methods.base import TieredMethod
from coterie.methods.fedem import ORDER_HELP, Order
from coterie.methods.initializers import RandomInit
from coterie.options import Auto, option
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import AssignmentRule, EMMixture
from coterie.tiers.assignment.base import Placing
from coterie.tiers.composition import Tiers
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Conditional, Objective
from coterie.tiers.procedure import Procedure, ProcedureStep


@register("tiered")
@dataclass(frozen=True, kw_only=True)
class Tiered(TieredMethod):
    """A custom method that combines one member of each tier.

    Example:
        >>> from coterie.methods import Tiered
        >>> from coterie.tiers import EMMixture, Prototypes, Ratio, RemoveUnclaimed, SplitByGap
        >>> method = Tiered(
        ...     objective=Ratio(),
        ...     assignment=EMMixture(mu=0.4),
        ...     procedure=(SplitByGap(rho=0.3), RemoveUnclaimed()),
        ...     distance=Prototypes("cscp"),
        ...     shared="body",
        ... )
    """

    objective: Objective = option(
        Conditional(), "tier 1, likelihood of a sample in a cluster: conditional, ratio, joint"
    )
    assignment: AssignmentRule = option(
        EMMixture(), "tier 2, how clients are assigned to clusters, such as em-mixture:mu=0.4"
    )
    procedure: tuple[ProcedureStep, ...] = option(
        (), "tier 3, steps that change the number of clusters, such as 'split-by-gap:rho=0.3 + remove-unclaimed'"
    )
    distance: Distance | None = option(
        None, "tier 4, distance between clients: update-cosine, prototypes:principle=cscp"
    )
    clusters: int | Auto | None = option(
        None, "number of clusters (K); by default 3, or 1 if a procedure changes it", low=1
    )
    order: Order = option("together", ORDER_HELP, needs="shared")
    pull: float = option(
        0.1,
        "strength of the pull towards the mixture (assignment count-shares, personal-em) or towards the overall model "
        "(merge-above)",
        low=0,
    )
    max_clusters: int | None = option(None, "largest number of clusters; by default unlimited", low=1)

    summary: ClassVar[str] = "a custom method: one member of each tier (see `coterie tiers`)"
    citation: ClassVar[str] = (
        "The tiers are those of Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and "
        "Improved Methodologies, 2025"
    )
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"exchange"})

    @classmethod
    def preferred(cls, given: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return clusters=1 if the number of clusters changes, and restarts=1 if there can be only one.

        These take precedence over the number of groups that a scenario is known to have.
        """
        assignment: AssignmentRule = given.get("assignment", EMMixture())
        alone = bool(given.get("procedure")) or assignment.single
        one_start = alone or assignment.assigned or assignment.personal or given.get("shared") is not None
        return ({"clusters": 1} if alone else {}) | ({"restarts": 1} if one_start else {})

    @property
    def count(self) -> int | None:
        if self.clusters is None:
            return 1 if self.procedure or self.assignment.single else 3
        return super().count

    @property
    def default_averaging(self) -> Averaging:
        over: Any = "responsibility" if self.assignment.keeps_weights else "members"
        return Averaging(over=over, client_weight="samples")

    @property
    def placing(self) -> Placing:
        return self.assignment.server_placing(self.objective)

    @property
    def _onboards(self) -> bool:
        """Whether clients describe themselves, are merged with similar ones, and also train an overall model."""
        return any(step.onboards for step in self.procedure)

    def tiers(self) -> Tiers:
        self._check()
        pulled = self.assignment.personal or self._onboards
        local = replace(self.local, order=self.order, prox=self.pull if pulled else self.local.prox)
        averaging = self.soft_averaging
        return self.compose(
            objective=self.objective,
            assignment=self.assignment,
            procedure=Procedure(tuple(step.server_capped(self.max_clusters) for step in self.procedure)),
            distance=self.distance,
            local=local,
            averaging=averaging if self.assignment.keeps_weights else averaging.for_hard_clusters(),
            overall=self._onboards,
            onboards=self._onboards,
        )

    def _check(self) -> None:
        """Check that the number of clusters and the distance fit the assignment.

        Raises:
            ConfigError: if they do not; the message says what to change.
        """
        if self.assignment.single and self.count != 1:
            raise ConfigError(
                f"tiered: assignment single-cluster has one cluster, but clusters={self.count}: set clusters=1"
            )
        if self.distance is not None and self.distance.before_training:
            raise ConfigError(
                f"tiered: distance {self.distance.name} compares clients before training, which an initializer does: "
                "use init=pacfl with assignment=assigned and no procedure"
            )
        if not self.assignment.assigned or self._onboards or not isinstance(self.init, RandomInit):
            return
        if not self.procedure:
            raise ConfigError(
                "tiered: with assignment assigned no client ever leaves the first cluster: set a procedure that "
                "splits, or init=odcl, which finds groups"
            )
        if self.count != 1:
            raise ConfigError(
                f"tiered: with assignment assigned all clients start in one cluster, but clusters={self.count}: set "
                "clusters=1"
            )
