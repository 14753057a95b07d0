"""The initialisation that most methods share: decide what depends on the data, then make the first models."""

from __future__ import annotations

import time
from typing import Any

import torch

from coterie.core.state import ServerState
from coterie.methods.groups import FoundGroups
from coterie.methods.initializers import as_clusters
from coterie.methods.run import Initial, Initializer, Run


def initialize(run: Run, initializer: Initializer, groups: FoundGroups) -> Initial:
    """Return the state before the first round.

    Args:
        run: The run; its number of clusters may still depend on the data.
        initializer: Initializer of the first models.
        groups: Where the clusters of an assigned method come from.
    """
    found: dict[str, Any] = {}
    clock = time.perf_counter()
    first = initializer.first_models(run)
    found |= first.found
    clusters = first.K if run.tiers.K is None else None
    if found:
        found["initialization_seconds"] = round(time.perf_counter() - clock, 6)
    run = run.decided(K=first.K)
    tiers, m = run.tiers, len(run.federation.clients)
    state = ServerState.fresh(as_clusters(first.params, tiers), m, tiers.adapts and tiers.assignment.keeps)
    if tiers.assignment.assigned and not tiers.onboards:
        state = _assigned(state, run, groups, first.labels)
    return Initial(state, clusters, found, first.notes)


def _assigned(state: ServerState, run: Run, groups: FoundGroups, labels: torch.Tensor | None) -> ServerState:
    """Return the state with the cluster of each client: known in advance, found by the initializer, or 0."""
    known = groups.labels(run.data)
    if known is not None:
        return state.with_groups(known)
    found = torch.zeros(len(run.federation.clients), dtype=torch.int64) if labels is None else labels
    return state.with_choice(found)
