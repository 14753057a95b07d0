"""Onboarding: before a round, clients that take part for the first time send a row, from which they are assigned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from coterie.core.clusters import Clusters
from coterie.core.federation import Note, positions_of
from coterie.core.messages import Broadcast
from coterie.core.shard import ClientId, Positions
from coterie.core.state import ServerState
from coterie.core.state_array import Share, StateArray
from coterie.methods.run import Run
from coterie.tiers.halves_groups import HALF_ROWS
from coterie.tiers.regrouping import regroup
from coterie.tiers.view import View


@dataclass(frozen=True)
class Onboarded:
    """The state after onboarding, and its cost."""

    state: ServerState
    rejected: tuple[ClientId, ...] = ()
    """Clients whose onboarding row was not finite."""
    events: tuple[Mapping[str, object], ...] = ()
    """Every regroup with its reason, ready for JSON."""
    tests: tuple[Mapping[str, object], ...] = ()
    """Figures that the procedure measured, ready for JSON."""
    bytes_up: int = 0
    bytes_down: int = 0
    notes: tuple[Note, ...] = ()
    """Problems in reaching clients."""


def onboard(run: Run, state: ServerState, chosen: Positions) -> Onboarded:
    """Ask the chosen clients that have no cluster for their onboarding rows, and let the procedure assign them.

    The procedure decides in every round, even without new clients, because merged clusters may have become similar.

    Args:
        run: The run.
        state: The state before the round; it has one restart.
        chosen: Positions of the clients that take part in the round.
    """
    tiers, federation = run.tiers, run.federation
    view = View(
        state,
        federation.clients,
        np.zeros(0, dtype=np.int64),
        federation.hashes,
        rows={"anchor": state.portraits[:0]},
        distance=tiers.distance,
    )
    compares_participants = run.settings.participation < 1 and any(
        step.keeps_onboarding_rows for step in tiers.procedure.steps
    )
    if compares_participants:  # with full participation, the sums over all members are the same
        view = replace(view, rows={"anchor": state.onboarding_rows[:0]}, taking_part=chosen)
    new = chosen[(view.choice[torch.from_numpy(chosen)] < 0).numpy()]
    if not len(new):
        after = regroup(tiers.procedure, view)
        return Onboarded(after.view.state, events=after.events, tests=after.statistics)
    broadcast = Broadcast(state.round, Clusters({}, K=1), scalars={"lr": tiers.local.rate(0, run.rounds)})
    replies = federation.ask(tiers.onboarding_task(run.seed), broadcast, new)
    if replies.reply.clients:
        rows = replies.reply.rows["anchor"].cpu()
        view = _with_new_clients(run, view, positions_of(federation, replies.reply.clients), rows)
    after = regroup(tiers.procedure, view)
    return Onboarded(
        after.view.state,
        replies.reply.rejected,
        after.events,
        after.statistics,
        replies.bytes_up,
        replies.bytes_down,
        replies.notes,
    )


def _with_new_clients(run: Run, view: View, answered: Positions, rows: torch.Tensor) -> View:
    """Return the view with the rows (a, P) of the clients that answered, in the order of their hashes."""
    order = np.argsort(view.hashes[answered], kind="stable")
    state = view.state
    if view.taking_part is not None:
        if "onboarding_rows" not in state.arrays:
            zeros = rows.new_zeros(len(view.clients), rows.shape[1])
            state = state.with_arrays({"onboarding_rows": StateArray(zeros, ("client", None))})
        state = state.with_values(onboarding_rows=state.onboarding_rows.index_copy(0, torch.from_numpy(answered), rows))
    elif run.tiers.onboards_by_halves:
        sizes = torch.from_numpy(run.federation.sizes[answered]).to(rows)
        sent = torch.cat([sizes[:, None], rows], dim=1)
        before = state.arrays.get(HALF_ROWS)
        array_before = rows.new_zeros(len(view.clients), sent.shape[1]) if before is None else before.value
        array = StateArray(array_before.index_copy(0, torch.from_numpy(answered), sent), ("client", None))
        state = state.with_arrays({HALF_ROWS: array})
    elif "portraits" not in state.arrays:
        empty = StateArray(rows.new_zeros(view.K, rows.shape[1]), ("cluster", None), Share())
        state = state.with_arrays({"portraits": empty})
    return replace(view, state=state, answered=answered[order], rows={"anchor": rows[torch.from_numpy(order)]})
