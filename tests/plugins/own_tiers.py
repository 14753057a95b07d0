"""Members of tiers 2, 3 and 4: a choice with a preference for low numbers, a split by size, a distance of changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

import coterie
from coterie.extend import Choosing, NewCluster, Params, Regroup, View
from coterie.tiers import Distance, ProcedureStep


@coterie.register("reluctant-loss")
@dataclass(frozen=True)
class ReluctantLoss(Choosing):
    """A client prefers clusters of low number: cluster k must be better by a share `margin` for each number."""

    margin: float = 0.05

    def client_choose(self, scores: Tensor) -> Tensor:
        handicap = 1 + self.margin * torch.arange(scores.shape[2], device=scores.device)
        return (scores * handicap).nan_to_num(nan=-torch.inf).argmax(dim=2)


@coterie.register("manhattan")
@dataclass(frozen=True)
class Manhattan(Distance):
    """The sum of absolute differences of what two clients changed."""

    needs: ClassVar[str] = "updates"
    reveals: ClassVar[dict[str, str]] = {"change": "how it changed the models it trained"}

    def server_pairwise(self, rows: Params):
        changes = rows["own_change"].double()
        return torch.cdist(changes, changes, p=1).numpy()


@coterie.register("split-in-round")
@dataclass(frozen=True)
class SplitInRound(ProcedureStep):
    """In one round the first cluster is split: those nearer to one of the two members that are farthest apart."""

    at: int = 1
    max_clusters: int | None = None
    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        members = view.members(0)
        full = self.max_clusters is not None and self.max_clusters <= view.K
        if full or view.round != self.at or len(members) < 2:
            return None
        places, apart = view.pairwise(0)
        one, other = divmod(int(apart.argmax()), len(apart))
        near = apart[one] <= apart[other]
        parts = [view.ids(places[near]), view.ids(places[~near])]
        kept = [NewCluster((k,)) for k in range(1, view.K)]
        halves = [NewCluster((0,), "members", part) for part in parts]
        return Regroup((halves[0], *kept, halves[1]), "split", "it is time", hard=True)
