"""What the server knows after a round, and members of tier 3 decide by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Words
from coterie.core.regroup import Changes, Regroup, renormalised
from coterie.core.shard import ClientId, Positions
from coterie.tiers.distance import Distance

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class View:
    """What the server knows after a round."""

    round: int
    clusters: Clusters
    """After the averaging."""
    clients: tuple[ClientId, ...]
    """Everybody."""
    choice: Tensor
    """(m,) each one's cluster, the one that weighs most where it has several; -1: not known yet."""
    answered: Positions
    """(a,) who answered, as places in `clients`; rows, weights and changes are theirs."""
    hashes: Words
    """(m,) of the clients' ids: the order in which they are looked at, so that no other order matters."""
    rows: Params = field(default_factory=dict)
    weights: Tensor | None = None
    """(a, K) where clients belong to several clusters."""
    changes: Changes | None = None
    distance: Distance | None = None

    @property
    def K(self) -> int:
        return self.clusters.K

    def sizes(self) -> Tensor:
        """(K,) the clients of each cluster."""
        return torch.bincount(self.choice[self.choice >= 0], minlength=self.K)

    def members(self, k: int) -> Positions:
        """Those of cluster k who answered, as places among them, in the order of their hashes."""
        found = np.flatnonzero((self.choice[torch.from_numpy(self.answered)] == k).numpy())
        return found[np.argsort(self.hashes[self.answered[found]])]

    def after(self, regroup: Regroup) -> View:
        """What is known once this is applied."""
        weights = self.weights
        if weights is not None:
            flows = regroup.flows([self.clients[i] for i in self.answered], self.K)
            weights = renormalised(torch.einsum("ak,akj->aj", weights.double(), flows))
        return replace(
            self,
            clusters=regroup.apply(self.clusters, self.sizes(), self.changes),
            choice=regroup.place(self.clients, self.choice),
            weights=weights,
            changes=None if self.changes is None else self.changes.after(regroup),
        )

    def ids(self, places: Sequence[int] | Positions) -> tuple[ClientId, ...]:
        """Of some who answered."""
        return tuple(self.clients[self.answered[place]] for place in places)

    def pairwise(self, k: int) -> tuple[Positions, Floats]:
        """The members of cluster k who answered, and the distances between them, weighed by what k counts for both."""
        assert self.distance is not None, "checked when the method is built"
        members = self.members(k)
        at = torch.from_numpy(members)
        rows = {name: value[at] for name, value in self.rows.items()}
        if self.changes is not None:
            rows["own_change"] = own_updates(self.changes, members, k)
        apart = self.distance.server_pairwise(rows)
        if self.weights is not None and self.distance.weighted:
            own = self.weights[at, k].double().numpy()
            apart = apart * own[:, None] * own[None]
        return members, apart


def own_updates(changes: Changes, members: Positions, k: int) -> Tensor:
    """What these clients changed of model k, (members, P)."""
    rows = torch.from_numpy(members)
    column = (changes.slots[rows] == k).int().argmax(dim=1)
    return changes.vectors[rows, column]
