"""After a round: what the procedure decides about K, applied to everything that has a cluster axis."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.regroup import Regroup
from coterie.tiers.method import Method
from coterie.tiers.view import View


@dataclass(frozen=True)
class Regrouped:
    """Where everything stands afterwards."""

    view: View
    tables: Params
    """What the objective keeps."""
    flows: Tensor
    """(m, K then, K now) how each client's weights go from when it was last accepted to now."""
    events: tuple[Mapping[str, object], ...]
    """What happened and why, JSON-ready."""


def regroup(method: Method, view: View, tables: Params, flows: Tensor) -> Regrouped:
    """Every step of the procedure in turn, each on what the ones before it left."""
    events: list[Mapping[str, object]] = []
    for step in method.procedure.steps:
        decided = step.server_propose(view)
        if decided is None:
            continue
        common = Regroup(decided.clusters).flows([""], view.K)[0]
        tables = method.objective.server_regroup(tables, common) if tables else tables
        flows = flows @ decided.flows(view.clients, view.K) if len(flows) else flows
        events.append(_event(view, decided))
        view = view.after(decided)
    return Regrouped(view, tables, flows, tuple(events))


def _event(view: View, decided: Regroup) -> dict[str, object]:
    """For each new cluster the old ones it comes from, so that a family tree can be drawn."""
    return {
        "kind": decided.kind,
        "reason": decided.reason,
        "before": view.K,
        "parents": [list(new.parents) for new in decided.clusters],
    }


def unmoved(clients: int, K: int) -> Tensor:
    """Flows of clients for whom nothing has changed."""
    return torch.eye(K, dtype=torch.float64).repeat(clients, 1, 1)
