"""What the server knows after a round; the members of tier 3 decide from it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Words, fold
from coterie.core.regroup import Changes, Regroup, renormalised
from coterie.core.shard import ClientId, Positions
from coterie.core.state import AGE, TREE, ServerState
from coterie.core.state_array import RegroupEvent
from coterie.core.tree import with_splits
from coterie.tiers.distance import Distance
from coterie.tiers.landmarks import MAX_COMPARED, Floats, assign_to_nearest_part, lowest_keys

if TYPE_CHECKING:
    from coterie.tiers.split_test import Trials


@dataclass(frozen=True)
class Statistic:
    """A figure with its threshold, by which a step of the procedure decides about a cluster."""

    cluster: int
    name: str
    """Name of the figure, such as `gap`."""
    value: float
    threshold: float
    fires: Literal["above", "below"]
    """Side of the threshold on which the step acts."""
    text: str
    """The figures in words."""
    more: Mapping[str, object] = field(default_factory=dict)
    """Further figures, ready for JSON."""

    def plain(self) -> dict[str, object]:
        """Return the statistic for JSON."""
        figures = {"statistic": self.name, "value": self.value, "threshold": self.threshold, "fires": self.fires}
        return {"cluster": self.cluster, **figures, "text": self.text, **self.more}


@dataclass(frozen=True)
class View:
    """What the server knows after a round; the members of tier 3 decide about the clusters from it."""

    state: ServerState
    """The state with the models after averaging; it has one restart."""
    clients: tuple[ClientId, ...]
    """Ids of all clients."""
    answered: Positions
    """Positions in `clients` of the clients that answered, (a,); `rows`, `weights` and `changes` are in this order."""
    hashes: Words
    """Hashes of the clients' ids, (m,): clients are considered in this order, so that no other order matters."""
    rows: Params = field(default_factory=dict)
    """Rows of the clients' replies."""
    weights: Tensor | None = None
    """Weights of the clients over the clusters, (a, K), if clients belong to several clusters."""
    changes: Changes | None = None
    """Updates of single clients, if clients send them."""
    distance: Distance | None = None
    """Distance between clients, tier 4."""
    taking_part: Positions | None = None
    """Positions of the clients that take part in the coming round, if a step compares only these; else None."""
    trials: Trials | None = None
    """Runs tests with the clients; None if clients cannot be asked."""
    statistics: list[Statistic] = field(default_factory=list)
    """Figures that the steps of the procedure measured in this round; views after a regroup share the list."""
    records_splits: bool = False
    """Whether splits are recorded in the tree of the state (`core/tree.py`)."""

    @property
    def round(self) -> int:
        """Index of the round."""
        return self.state.round

    @property
    def clusters(self) -> Clusters:
        """The models after averaging."""
        return self.state.clusters

    @property
    def K(self) -> int:
        """Number of clusters."""
        return self.state.clusters.K

    @property
    def choice(self) -> Tensor:
        """Cluster of each client, (m,); of several, the one with the largest weight; -1 if not known yet."""
        return self.state.choice[:, 0]

    @property
    def portraits(self) -> Tensor:
        """Sum of the onboarding rows of each cluster's members, (K, P); empty without onboarding.

        Before a round, the clients that answered with the row `anchor` have no cluster yet.
        """
        return self.state.portraits

    def sizes(self) -> Tensor:
        """Return the number of clients in each cluster, (K,)."""
        return torch.bincount(self.choice[self.choice >= 0], minlength=self.K)

    def ages(self) -> Tensor:
        """Return the number of rounds for which each cluster has existed, (K,); very large if no step needs it."""
        return self.state.arrays[AGE].value if AGE in self.state.arrays else torch.full((self.K,), sys.maxsize)

    def shares_first_rank(self, k: int) -> bool:
        """Return whether a client that answered gives cluster k at least as much weight as any other cluster.

        After a soft split this holds for both parts, although `choice` names only one of them.
        """
        return self.weights is not None and bool((self.weights[:, k] == self.weights.amax(dim=1)).any())

    def members(self, k: int) -> Positions:
        """Return the members of cluster k that answered, as places in `answered`, in the order of their hashes."""
        found = np.flatnonzero((self.choice[torch.from_numpy(self.answered)] == k).numpy())
        return found[np.argsort(self.hashes[self.answered[found]])]

    def after(self, regroup: Regroup) -> View:
        """Return the view after a regroup."""
        state = self.state.regrouped(RegroupEvent(regroup, self.clients, self.sizes()), self.changes)
        state = self._with_placed(state)
        if self.records_splits and self.changes is not None:
            tree = with_splits(self.state.tree, regroup, self.changes.before, state.clusters)
            state = state.with_arrays(tree, TREE)
        return replace(
            self,
            state=state,
            weights=None if self.weights is None else self._weights_after(regroup, self.weights),
            changes=None if self.changes is None else self.changes.after(regroup),
        )

    def _weights_after(self, regroup: Regroup, weights: Tensor) -> Tensor:
        """Return the weights (a, K new) of the clients that answered."""
        flows = regroup.flows([self.clients[i] for i in self.answered], self.K)
        return renormalised(torch.einsum("ak,akj->aj", weights.double(), flows))

    def _with_placed(self, state: ServerState) -> ServerState:
        """Return the state in which the rows of newly assigned clients are added to the portraits of their clusters."""
        if not len(self.portraits):
            return state
        at = torch.from_numpy(self.answered)
        choice = state.choice[at, 0]
        placed = (self.choice[at] < 0) & (choice >= 0)
        if not bool(placed.any()):
            return state
        return state.with_values(portraits=state.portraits.index_add(0, choice[placed], self.rows["anchor"][placed]))

    def ids(self, places: Sequence[int] | Positions) -> tuple[ClientId, ...]:
        """Return the ids of clients that answered, given as places in `answered`."""
        return tuple(self.clients[self.answered[place]] for place in places)

    def pairwise(self, k: int, most: int = MAX_COMPARED) -> tuple[Positions, Floats]:
        """Return at most `most` members of cluster k that answered, and the distances between them, (n, n).

        If there are more, they are drawn anew in every round.
        """
        members = self.members(k)
        if len(members) > most:
            members = members[lowest_keys(fold(self.hashes[self.answered[members]], self.round), most)]
        return members, self.distances(k, members)

    def distances(self, k: int, places: Positions) -> Floats:
        """Return the distances (n, n) between members of cluster k, given as places in `answered`.

        A weighted distance is multiplied by the weights of cluster k for both clients.
        """
        assert self.distance is not None, "checked when the method is built"
        at = torch.from_numpy(places)
        rows = {name: self.rows[name][at] for name in self.distance.reveals if name in self.rows}
        if self.changes is not None and self.distance.needs == "updates":
            rows["own_change"] = own_updates(self.changes, places, k)
        distances = self.distance.server_pairwise(rows)
        if self.weights is not None and self.distance.weighted:
            own = self.weights[at, k].double().numpy()
            distances = distances * own[:, None] * own[None]
        return distances

    def assign_to_nearest_part(self, k: int, parts: Sequence[Positions]) -> list[Positions]:
        """Return the parts of cluster k, to which its members that were not compared are added."""
        return assign_to_nearest_part(parts, self.members(k), lambda places: self.distances(k, places))


def own_updates(changes: Changes, members: Positions, k: int) -> Tensor:
    """Return the updates that these clients made to model k, (members, P)."""
    rows = torch.from_numpy(members)
    column = (changes.slots[rows] == k).int().argmax(dim=1)
    return changes.vectors[rows, column]
