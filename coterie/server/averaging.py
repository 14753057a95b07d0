"""Settings for averaging the model changes of the members of a cluster."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from coterie.options import OptionGroup, check_fields, option
from coterie.server.combine import Combine, Mean

ClientWeight = Literal["uniform", "samples"]


@dataclass(frozen=True, kw_only=True)
class Averaging(OptionGroup):
    """Average of the model changes of a cluster's members; None: as in the paper of the method.

    Example:
        >>> from coterie.methods import IFCA, Averaging
        >>> method = IFCA(clusters=2, averaging=Averaging(client_weight="samples", combine="median"))
        >>> method.averaging.robust
        True
    """

    over: Literal["members", "all", "responsibility"] | None = option(
        None,
        "divide a cluster's summed changes by the weight of its members, or of all clients; responsibility: weight a "
        "client's change by its weight of the cluster (for hard clusters: members, weighted by samples)",
        name="averaging",
    )
    client_weight: ClientWeight | None = option(
        None, "weight of a client in an average: 1 (uniform) or its number of samples (samples)"
    )
    divide_by: Literal["answered", "federation"] | None = option(
        None,
        "with averaging=all: divide by the weight of the clients that replied, or of the whole federation",
        needs="averaging=all",
    )
    combine: Combine = option(
        Mean(),
        "average of the changes of a cluster's members: mean, or a robust alternative with equal weights of all "
        "clients: median, trimmed:share=0.1, krum:attackers=1,keep=1",
    )

    def __post_init__(self) -> None:
        check_fields(self)

    @property
    def robust(self) -> bool:
        """Whether a robust alternative replaces the mean."""
        return not isinstance(self.combine, Mean)

    def filled(self, default: Averaging) -> Averaging:
        """Return the settings with defaults instead of None.

        For a robust alternative to the mean, all clients have the same weight by default, since clients could report
        false numbers of samples.

        Args:
            default: Default settings of the method.
        """
        weight = "uniform" if self.robust else default.client_weight
        return replace(
            self,
            over=self.over or default.over or "members",
            client_weight=self.client_weight or weight or "uniform",
            divide_by=self.divide_by or default.divide_by or "answered",
        )

    def for_hard_clusters(self) -> Averaging:
        """Return the settings for hard clusters, where the weight of a client's cluster is 1."""
        if self.over != "responsibility":
            return self
        return replace(self, over="members", client_weight="samples")
