"""How the changes of a cluster's members become the change of its model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from coterie.options import OptionGroup, check_fields, option
from coterie.server.combine import Combine, Mean

ClientWeight = Literal["uniform", "samples"]


@dataclass(frozen=True, kw_only=True)
class Averaging(OptionGroup):
    """How the changes of a cluster's members become the change of its model. None: as the method's paper does."""

    over: Literal["members", "all", "responsibility"] | None = option(
        None,
        "divide a cluster's summed changes by the weight of its members, or of all clients; responsibility: weigh a "
        "client's change by what the cluster counts for it (with hard clusters: members, by samples)",
        name="averaging",
    )
    client_weight: ClientWeight | None = option(None, "whether a client counts once (uniform) or n_i times (samples)")
    divide_by: Literal["answered", "federation"] | None = option(
        None,
        "with averaging=all: divide by the weight of the clients that answered, or of the whole federation",
        needs="averaging=all",
    )
    combine: Combine = option(
        Mean(),
        "how the changes of a cluster's members are combined: their mean, or a robust alternative, for which every "
        "client counts once: median, trimmed:share=0.1, krum:attackers=1,keep=1",
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def robust(self) -> bool:
        """Whether a cluster's change is something else than its members' mean."""
        return not isinstance(self.combine, Mean)

    def filled(self, default: Averaging) -> Averaging:
        """Return the same with what is None taken from `default`.

        With a robust combination every client counts once by default, since n_i is only what a client claims.
        """
        weight = "uniform" if self.robust else default.client_weight
        return replace(
            self,
            over=self.over or default.over or "members",
            client_weight=self.client_weight or weight or "uniform",
            divide_by=self.divide_by or default.divide_by or "answered",
        )

    def for_hard_clusters(self) -> Averaging:
        """Return the same where a client has one cluster: its responsibility there is 1."""
        if self.over != "responsibility":
            return self
        return replace(self, over="members", client_weight="samples")
