"""After a round: the procedure decides about the clusters, and the whole state follows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from coterie.core.regroup import Regroup
from coterie.tiers.procedure import Procedure
from coterie.tiers.view import View


@dataclass(frozen=True)
class Regrouped:
    """The result of all steps of the procedure."""

    view: View
    """The view after the last regroup; `view.state` is the new state."""
    events: tuple[Mapping[str, object], ...]
    """Every regroup with its reason, JSON-ready."""


def regroup(procedure: Procedure, view: View) -> Regrouped:
    """Run every step of the procedure in turn, each on the result of the steps before it."""
    events: list[Mapping[str, object]] = []
    for step in procedure.steps:
        decided = step.server_propose(view)
        if decided is not None:
            events.append(_event(view, decided))
            view = view.after(decided)
    return Regrouped(view, tuple(events))


def _event(view: View, decided: Regroup) -> dict[str, object]:
    """Return the record of a regroup: with the parents of each new cluster a family tree can be drawn."""
    return {
        "kind": decided.kind,
        "reason": decided.reason,
        "before": view.K,
        "parents": [list(new.parents) for new in decided.clusters],
    }
