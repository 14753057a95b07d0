"""The initialisation that most methods share: what was left to the data is decided, then the first models are made."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from coterie.client.tasks.curvature import Curvature
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.core.state import ServerState
from coterie.errors import SilenceError, TrainingError
from coterie.learners.linear import as_linear
from coterie.methods.groups import FoundGroups
from coterie.methods.initializers import as_clusters
from coterie.methods.run import Initial, Initializer, Run
from coterie.options import AUTO

STABLE = 0.9
"""gamma: the automatic learning rate times the largest curvature of a client; below 1 every local step is stable."""


def initialize(run: Run, initializer: Initializer, groups: FoundGroups) -> Initial:
    """Return the state before the first round.

    Args:
        run: The run; its number of clusters and its learning rate may still be left to the data.
        initializer: Makes the first models.
        groups: Where the clusters of an assigned method come from.
    """
    found: dict[str, Any] = {}
    lr: float | None = None
    clock = time.perf_counter()
    if run.tiers.local.lr == AUTO:
        found["curvature"] = largest_curvature(run)
        lr = STABLE / found["curvature"]
        run = run.decided(lr=lr)
    first = initializer.first_models(run)
    found |= first.found
    clusters = first.K if run.tiers.K is None else None
    if found:
        found["beginning_seconds"] = round(time.perf_counter() - clock, 6)
    run = run.decided(K=first.K)
    tiers, m = run.tiers, len(run.federation.clients)
    state = ServerState.fresh(as_clusters(first.params, tiers), m, tiers.adapts and tiers.assignment.keeps)
    if tiers.assignment.assigned and not tiers.onboards:
        state = _assigned(state, run, groups, first.labels)
    return Initial(state, clusters, lr, found, first.notes)


def _assigned(state: ServerState, run: Run, groups: FoundGroups, labels: torch.Tensor | None) -> ServerState:
    """The state in which clients know their clusters: those known in advance, those found, or the first one."""
    known = groups.labels(run.data)
    if known is not None:
        return state.with_groups(known)
    found = torch.zeros(len(run.federation.clients), dtype=torch.int64) if labels is None else labels
    return state.with_choice(found)


def largest_curvature(run: Run) -> float:
    """Return max_i of the largest eigenvalue of X_i^T X_i / n_i, scaled as the learner's loss is."""
    everybody = np.arange(len(run.federation.clients))
    reply = run.federation.ask(Curvature(), Broadcast(0, Clusters({}, K=1)), everybody).reply
    if not reply.clients:
        raise SilenceError("lr=auto: no client has answered")
    largest = float(reply.rows["curvature"].max()) * (1 if as_linear(run.learner).half else 2)
    if not np.isfinite(largest):
        raise TrainingError("lr=auto: the squares of the features are not finite: standardise the columns or give lr")
    return max(largest, float(np.finfo(np.float32).tiny))
