"""Oracle: the true groups are known and each trains its own model; an upper baseline for any clustering."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.methods.groups import FoundGroups, TrueGroups
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers


@register("oracle")
@dataclass(frozen=True, kw_only=True)
class Oracle(TieredMethod):
    """The true groups are known; each trains its own model.

    theta_k <- mean over the members of true group k, as IFCA with the truth in place of the clients' choices.

    Example:
        >>> import coterie
        >>> from coterie.methods import Oracle
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, Oracle(), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """

    summary: ClassVar[str] = "the true groups are known: one model for each"
    citation: ClassVar[str] = "a baseline if the true groups are known"
    groups: ClassVar[FoundGroups] = TrueGroups()
    twin: ClassVar[str | None] = "fedavg"
    refuses: ClassVar[frozenset[str]] = frozenset({"clusters", "restarts", "init", "divide_by"})

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="all" if self.exchange == "gradient" else "members", client_weight="uniform")

    def tiers(self) -> Tiers:
        return self.compose(assignment=Assigned())
