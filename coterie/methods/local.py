"""Local training: every client trains alone, nothing is exchanged. The floor that any federation has to beat.

Each client is a cluster of one. A simulation keeps all models side by side; since nothing needs to travel, no bytes are
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
    """theta_i <- theta_i - lr * gradient of F_i, alone."""

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
