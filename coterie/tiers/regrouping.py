"""Regrouping after a round: the procedure decides about the clusters, and the whole state follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from coterie.core.regroup import NewCluster, Regroup
from coterie.core.state import AGE, ServerState
from coterie.core.state_array import Age, StateArray
from coterie.tiers.procedure import Procedure
from coterie.tiers.view import View

OLD = 1_000_000
"""Age in rounds of the clusters that exist when a run starts."""


@dataclass(frozen=True)
class Regrouped:
    """The result of all steps of the procedure."""

    view: View
    """The view after the last regroup; `view.state` is the new state."""
    events: tuple[Mapping[str, object], ...]
    """Every regroup with its reason, ready for JSON."""

    @property
    def statistics(self) -> tuple[Mapping[str, object], ...]:
        """The figures by which the steps decided, ready for JSON."""
        return tuple(statistic.plain() for statistic in self.view.statistics)


def regroup(procedure: Procedure, view: View) -> Regrouped:
    """Run every step of the procedure in turn, each on the result of the steps before it; removals come last.

    Removals are decided before the other steps, with the clients' weights as they sent them.
    """
    if not procedure.steps:
        return Regrouped(view, ())
    if any(step.needs_ages for step in procedure.steps):
        view = replace(view, state=_older(view.state))
    K = view.K
    removals = [found for step in procedure.steps if step.removes and (found := step.server_propose(view))]
    events: list[Mapping[str, object]] = []
    origins: list[set[int]] = [{k} for k in range(K)]
    for step in procedure.steps:
        decided = None if step.removes else step.server_propose(view)
        if decided is not None:
            events.append(_event(view, decided))
            view = view.after(decided)
            origins = [set().union(*(origins[parent] for parent in new.parents)) for new in decided.clusters]
    for decided in removals:
        kept = _surviving(origins, set(range(K)) - {new.parents[0] for new in decided.clusters})
        if kept and len(kept) < view.K:
            applied = replace(decided, clusters=tuple(NewCluster((k,)) for k in kept))
            events.append(_event(view, applied))
            view = view.after(applied)
            origins = [origins[k] for k in kept]
    return Regrouped(view, tuple(events))


def _surviving(origins: list[set[int]], removed: set[int]) -> list[int]:
    """Return the clusters that are new or come at least in part from an old cluster that is not removed."""
    return [k for k, before in enumerate(origins) if not before or before - removed]


def _older(state: ServerState) -> ServerState:
    """Return the state with the age of every cluster one round higher; initial clusters count as old."""
    known = state.arrays.get(AGE)
    ages = torch.full((state.clusters.K,), OLD) if known is None else known.value + 1
    return state.with_arrays({AGE: StateArray(ages, ("cluster",), Age())})


def _event(view: View, decided: Regroup) -> dict[str, object]:
    """Return the record of a regroup, with the parents of each new cluster so that a family tree can be drawn."""
    return {
        "kind": decided.kind,
        "reason": decided.reason,
        "before": view.K,
        "parents": [list(new.parents) for new in decided.clusters],
    }
