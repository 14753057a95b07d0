"""Tier 3: when and how the number of clusters changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

from coterie.core.clusters import Clusters
from coterie.core.messages import Reply
from coterie.core.regroup import Regroup


class Procedure(Protocol):
    """Decides about K; it never edits arrays itself."""

    name: ClassVar[str]

    @property
    def K(self) -> int:
        """The number of clusters to start with."""
        ...

    def server_propose(self, clusters: Clusters, replies: Reply) -> Regroup | None:
        """The regroup to apply after a round, or None to leave the clusters as they are."""
        ...


@dataclass(frozen=True)
class Fixed:
    """K is given and stays."""

    K: int
    name: ClassVar[str] = "fixed"

    def server_propose(self, clusters: Clusters, replies: Reply) -> Regroup | None:
        return None
