"""Local training: every client trains alone and nothing is exchanged; a lower baseline for any federation.

Each client is its own cluster. A simulation keeps all models side by side; since nothing needs to be sent, no bytes are
counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.core.registry import register
from coterie.methods.base import TieredMethod
from coterie.methods.groups import FoundGroups, OneModelEach
from coterie.methods.settings import PRIVACY_OPTIONS
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import Assigned
from coterie.tiers.composition import Tiers


@register("local")
@dataclass(frozen=True, kw_only=True)
class Local(TieredMethod):
    """Every client trains its own model on its own data.

    theta_i <- theta_i - lr * gradient of F_i.

    Example:
        >>> import coterie
        >>> from coterie.methods import Local
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, Local(), learner="logistic", rounds=2)
        >>> len(result.models)
        8
    """

    summary: ClassVar[str] = "every client trains alone"
    citation: ClassVar[str] = "a baseline of every paper on personalisation"
    groups: ClassVar[FoundGroups] = OneModelEach()
    exchanges: ClassVar[bool] = False
    no_twin: ClassVar[str] = "K is the number of clients by definition"
    refuses: ClassVar[frozenset[str]] = (
        frozenset({"clusters", "averaging", "client_weight", "divide_by", "combine", "restarts", "shared"})
        | {"server_lr", "server_optimizer", "exchange", "init", "finetune"}
        | PRIVACY_OPTIONS  # nothing leaves a client
    )

    @property
    def default_averaging(self) -> Averaging:
        return Averaging(over="members", client_weight="uniform")

    def tiers(self) -> Tiers:
        return self.compose(assignment=Assigned())
