"""Assignment by the server."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from coterie.client.assigned import train_assigned
from coterie.client.round import ClientRound
from coterie.core.blocks import Block
from coterie.core.registry import register
from coterie.core.shard import Positions
from coterie.tiers.assignment.base import AssignmentRule


@register("assigned")
@dataclass(frozen=True)
class Assigned(AssignmentRule):
    """The server assigns each client to a cluster and sends it no other model.

    Example:
        >>> from coterie.tiers import Assigned
        >>> Assigned().assigned
        True
    """

    assigned: ClassVar[bool] = True
    cluster_row: ClassVar[str] = "the cluster that the server assigned it to"

    @property
    def takes_best(self) -> bool:
        return type(self) is Assigned  # a subclass may do something else

    def client_round(self, work: ClientRound, places: Positions, scored: Block, block: Block) -> None:
        train_assigned(work, places, block)
