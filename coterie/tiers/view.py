"""What the server knows after a round, and members of tier 3 decide by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Words, fold
from coterie.core.regroup import Changes, Regroup, renormalised
from coterie.core.shard import ClientId, Positions
from coterie.core.tree import with_splits
from coterie.tiers.distance import Distance
from coterie.tiers.landmarks import MOST, Floats, drawn, with_the_rest


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
    portraits: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """(K, P) what the members of each cluster introduced themselves with, added up; empty where nobody has. Before a
    round, those who answered with the row `anchor` have no cluster yet."""
    tree: Params | None = None
    """All splits so far (`core/tree.py`); None where nobody keeps them."""

    @property
    def K(self) -> int:
        return self.clusters.K

    def sizes(self) -> Tensor:
        """(K,) the clients of each cluster."""
        return torch.bincount(self.choice[self.choice >= 0], minlength=self.K)

    def shares_first_rank(self, k: int) -> bool:
        """Whether somebody who answered gives k as much weight as any other: so do both parts of a soft split at first,
        though `choice` names one."""
        return self.weights is not None and bool((self.weights[:, k] == self.weights.amax(dim=1)).any())

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
        choice = regroup.place(self.clients, self.choice)
        clusters, tree = regroup.apply(self.clusters, self.sizes(), self.changes), self.tree
        if tree is not None and self.changes is not None:
            tree = with_splits(tree, regroup, self.changes.before, clusters)
        return replace(
            self,
            clusters=clusters,
            choice=choice,
            weights=weights,
            portraits=self._portraits_after(regroup, choice) if len(self.portraits) else self.portraits,
            changes=None if self.changes is None else self.changes.after(regroup),
            tree=tree,
        )

    def _portraits_after(self, regroup: Regroup, choice: Tensor) -> Tensor:
        """Clusters that unite add theirs up, and so do clients placed only now; choice (m,) is the new one."""
        after = regroup.flows([""], self.K)[0].to(self.portraits).T @ self.portraits
        at = torch.from_numpy(self.answered)
        placed = (self.choice[at] < 0) & (choice[at] >= 0)
        return after.index_add(0, choice[at][placed], self.rows["anchor"][placed]) if bool(placed.any()) else after

    def ids(self, places: Sequence[int] | Positions) -> tuple[ClientId, ...]:
        """Of some who answered."""
        return tuple(self.clients[self.answered[place]] for place in places)

    def pairwise(self, k: int, most: int = MOST) -> tuple[Positions, Floats]:
        """The members of cluster k who answered, or `most` of them, others in every round; and their distances."""
        members = self.members(k)
        if len(members) > most:
            members = members[drawn(fold(self.hashes[self.answered[members]], self.round), most)]
        return members, self.apart(k, members)

    def apart(self, k: int, places: Positions) -> Floats:
        """Distances (n, n) between some of cluster k who answered, weighed by what k counts for both."""
        assert self.distance is not None, "checked when the method is built"
        at = torch.from_numpy(places)
        rows = {name: self.rows[name][at] for name in self.distance.reveals if name in self.rows}
        if self.changes is not None and self.distance.needs == "updates":
            rows["own_change"] = own_updates(self.changes, places, k)
        apart = self.distance.server_pairwise(rows)
        if self.weights is not None and self.distance.weighted:
            own = self.weights[at, k].double().numpy()
            apart = apart * own[:, None] * own[None]
        return apart

    def with_the_rest(self, k: int, parts: Sequence[Positions]) -> list[Positions]:
        """Parts of those members of cluster k that were compared, with the others who answered."""
        return with_the_rest(parts, self.members(k), lambda places: self.apart(k, places))


def own_updates(changes: Changes, members: Positions, k: int) -> Tensor:
    """What these clients changed of model k, (members, P)."""
    rows = torch.from_numpy(members)
    column = (changes.slots[rows] == k).int().argmax(dim=1)
    return changes.vectors[rows, column]
