"""FL+HC: FedAvg, then one hierarchical clustering of the clients' updates, then training apart. (Briggs et al. 2020)

n  first_rounds    T  limit, the largest distance at which clusters of updates are still united
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch

import coterie
from coterie.extend import (
    Broadcast,
    Cost,
    LocalSolve,
    LocalSteps,
    NewCluster,
    Regroup,
    RegroupEvent,
    ServerState,
    agglomerate,
    ask_all,
    flat,
    option,
)
from coterie.methods import Run, Step, TieredMethod, Tiers
from coterie.tiers import Assigned


@coterie.register("fl-hc")
@dataclass(frozen=True, kw_only=True)
class FLHC(TieredMethod):
    """One model for all, until the clients' updates are clustered once; from then on one model for each cluster."""

    first_rounds: int = option(2, "number of rounds before the clustering (n)", low=1)
    limit: float = option(
        1.0, "largest distance of updates that are united, relative to their mean length (T)", above=0
    )

    summary: ClassVar[str] = "one model for all, then clients are clustered once by their updates"
    citation: ClassVar[str] = (
        "Briggs, Fan, Andras: Federated learning with hierarchical clustering of local updates, 2020"
    )
    no_twin: ClassVar[str] = "the number of clusters follows from the distance at which the tree is cut"
    refuses: ClassVar[frozenset[str]] = frozenset({"restarts", "shared", "exchange", "init"})

    def tiers(self) -> Tiers:
        return self.compose(assignment=Assigned(), K=1)

    def reveals(self) -> Mapping[str, str]:
        return {**super().reveals(), "model": "what it made of the common model"}

    def step(self, run: Run, state: ServerState) -> Step:
        cost, events = Cost(), ()
        if state.round == self.first_rounds:
            state, events = self._clustered(run, state, cost)
        step = super().step(run, state)
        up, down = step.bytes_up + cost.bytes_up, step.bytes_down + cost.bytes_down
        return replace(step, bytes_up=up, bytes_down=down, events=(*events, *step.events))

    def _clustered(
        self, run: Run, state: ServerState, cost: Cost
    ) -> tuple[ServerState, tuple[Mapping[str, object], ...]]:
        task = LocalSolve(LocalSteps(run.tiers.local), run.seed)
        rate = run.tiers.local.rate(state.round, run.rounds)
        broadcast = Broadcast(state.round, state.clusters, scalars={"lr": rate})
        answered, rows, _ = ask_all(run.federation, task, broadcast, cost)
        if len(answered) < 2:
            return state, ()
        updates = rows["model"].double() - flat(state.clusters.params).double().cpu()
        apart = torch.cdist(updates, updates, compute_mode="donot_use_mm_for_euclid_dist")
        limit = self.limit * float(updates.norm(dim=1).mean())
        labels = agglomerate(apart.numpy(), "complete", limit=limit).labels
        ids = run.federation.clients
        members = [tuple(ids[i] for i in answered[labels == k]) for k in range(labels.max() + 1)]
        regroup = Regroup(tuple(NewCluster((0,), members=m) for m in members), "split", "updates clustered", hard=True)
        event = {"kind": "split", "reason": regroup.reason, "before": 1, "parents": [[0] for _ in members]}
        return state.regrouped(RegroupEvent(regroup, ids, torch.tensor([len(ids)]))), (event,)
