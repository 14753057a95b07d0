"""One round of a method that is a composition of tiers: ask, aggregate, regroup."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Note, Replies, positions_of
from coterie.core.messages import ALL, Broadcast, Reply
from coterie.core.sampling import choose
from coterie.core.shard import ClientId, Positions
from coterie.core.state import OBJECTIVE, UNKNOWN, ServerState
from coterie.core.state_array import StateArray
from coterie.core.threads import one_thread
from coterie.methods.exchanges import Cost
from coterie.methods.onboarding import Onboarded, onboard
from coterie.methods.run import Run
from coterie.methods.trials import RoundTrials
from coterie.privacy.server import with_noise
from coterie.server.aggregate import RoundReplies
from coterie.server.optimizers import move_models
from coterie.server.robust import too_few
from coterie.server.solved_heads import solve_heads
from coterie.tiers.composition import Tiers
from coterie.tiers.regrouping import regroup
from coterie.tiers.view import View


@dataclass(frozen=True)
class Step:
    """The result of one round."""

    state: ServerState
    """The state after the round."""
    moved: Tensor
    """Number of clients that changed their cluster, (R,)."""
    answered: int = 0
    """Number of clients that answered."""
    positions: Positions = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Positions of the clients that answered."""
    missing: tuple[ClientId, ...] = ()
    """Clients that took part but sent nothing."""
    rejected: tuple[ClientId, ...] = ()
    """Clients whose replies were not finite."""
    bytes_up: int = 0
    """Bytes that the clients sent."""
    bytes_down: int = 0
    """Bytes that the clients received."""
    path: str = ""
    """Implementations of local training that were used, joined by `+`."""
    likelihood: Tensor | None = None
    """Mean log-likelihood of the training samples under their clients' mixtures, before training, (R,)."""
    objective: Tensor | None = None
    """Likelihood minus the penalty on samples whose weights differ from their client's (eq. 2 of HCFL+), (R,)."""
    shares: Tensor | None = None
    """Share of each cluster in the clients' weights, if clients belong to several clusters, (R, K)."""
    events: tuple[Mapping[str, object], ...] = ()
    """Changes of the number of clusters, with their reasons."""
    tests: tuple[Mapping[str, object], ...] = ()
    """Figures that the steps of the procedure measured, each with its threshold."""
    notes: tuple[Note, ...] = ()
    """Problems with clients, or with requests that could not be met."""
    diverged: bool = False
    """Whether no client had a finite update, which ends the training."""

    def with_cost(self, cost: Cost) -> Step:
        """Return the step with the bytes of further exchanges added."""
        return replace(self, bytes_up=self.bytes_up + cost.bytes_up, bytes_down=self.bytes_down + cost.bytes_down)


@dataclass(frozen=True)
class _Exchange:
    """One request to the clients, with their replies."""

    state: ServerState
    """State that the clients received."""
    chosen: Positions
    """Positions of the clients that take part in the round."""
    onboarded: Onboarded
    replies: Replies

    @property
    def reply(self) -> Reply:
        return self.replies.reply

    @property
    def rejected(self) -> tuple[ClientId, ...]:
        """Clients whose replies were not finite."""
        return (*self.onboarded.rejected, *self.reply.rejected)

    @property
    def notes(self) -> tuple[Note, ...]:
        return (*self.onboarded.notes, *self.replies.notes)

    @property
    def diverged(self) -> bool:
        """Whether clients replied, but none with a finite update."""
        return not self.reply.clients and bool(self.rejected) and not self.notes


def tiered_round(run: Run, state: ServerState) -> Step:
    """Run one round and return its result; a round without replies changes only the number of the round."""
    exchange = _ask(run, state)
    if not exchange.reply.clients:
        return _not_updated(run, exchange)
    return _updated(run, exchange)


def participants(run: Run, state: ServerState) -> Positions:
    """Return the positions of the clients that take part in the next round: a random share of all clients."""
    return choose(run.federation.hashes, run.settings.participation, run.seed, state.round)


def finished_round(run: Run, asked: Positions, replies: Replies, before: ServerState, after: ServerState) -> Step:
    """Return the result of a round in which a method sent one request to the clients itself.

    The mean training loss is taken from the sums `loss`, (R,), and `samples`, if clients send them.

    Args:
        run: The run.
        asked: Positions of the clients that were asked.
        replies: Their replies.
        before: The state before the round.
        after: The state with everything that the method learned from the replies; ignored if there are none.
    """
    reply = replies.reply
    answered = positions_of(run.federation, reply.clients)
    done = after if reply.clients else before
    if reply.clients:
        accepted = before.accepted.index_fill(0, torch.from_numpy(answered), before.round)
        done = done.with_values(accepted=accepted, loss=_mean_loss(reply, before.clusters.restarts))
    moved = (before.choice != done.choice) & (before.choice != UNKNOWN)
    return Step(
        replace(done, round=before.round + 1),
        moved.sum(dim=0),
        answered=len(answered),
        positions=answered,
        missing=_missing(run.federation.clients, asked, reply.clients, reply.rejected),
        rejected=reply.rejected,
        bytes_up=replies.bytes_up,
        bytes_down=replies.bytes_down,
        path="+".join(reply.paths),
        notes=replies.notes,
        diverged=not reply.clients and bool(reply.rejected) and not replies.notes,
    )


def _ask(run: Run, state: ServerState) -> _Exchange:
    """Choose the clients of a round, onboard those that are new, and ask them to train."""
    tiers, federation = run.tiers, run.federation
    chosen = participants(run, state)
    onboarded = onboard(run, state, chosen) if tiers.onboards else Onboarded(state)
    state = onboarded.state
    groups = assigned_groups(tiers, state)
    # the server has no model for a client whose cluster is unknown: such a client counts as missing
    asked = chosen if groups is None else chosen[(groups[torch.from_numpy(chosen)] >= 0).numpy()]
    rate = tiers.local.rate(state.round, run.rounds)
    broadcast = Broadcast(
        state.round,
        state.clusters,
        only=_models_sent(tiers, state, asked, groups),
        scalars={"lr": 1.0 if tiers.exchange == "gradient" else rate},
        **_for_kept_states(tiers, state, asked),
    )
    replies = federation.ask(tiers.task(run.seed, run.rounds), broadcast, asked)
    return _Exchange(state, chosen, onboarded, replies)


def assigned_groups(tiers: Tiers, state: ServerState) -> Tensor | None:
    """Return the cluster of each client (m,) if the server assigns it, -1 where it is not known; else None."""
    if not tiers.assignment.assigned:
        return None
    return state.choice[:, 0] if state.groups is None else state.groups


def _not_updated(run: Run, exchange: _Exchange) -> Step:
    """Return the result of a round without a usable reply."""
    state = exchange.state
    no_moves = torch.zeros(state.clusters.restarts, dtype=torch.int64)
    done = _step(run, exchange, replace(state, round=state.round + 1), no_moves)
    return replace(done, diverged=exchange.diverged)


def _updated(run: Run, exchange: _Exchange) -> Step:
    """Return the result of a round with replies: average the models, update the state, regroup."""
    tiers, reply = run.tiers, exchange.reply
    answered = positions_of(run.federation, reply.clients)
    received = _received(run, exchange, answered)
    learned, moved = _remember(run, exchange, answered)
    averaged = _averaged(run, learned, received)
    trials = RoundTrials(run)
    after = regroup(tiers.procedure, _view(run, averaged, received, trials))
    done = _step(run, exchange, replace(after.view.state, round=exchange.state.round + 1), moved).with_cost(trials.cost)
    return replace(
        done,
        answered=len(answered),
        positions=answered,
        path="+".join(reply.paths),
        likelihood=reply.sums["likelihood"] / reply.sums["samples"] if "likelihood" in reply.sums else None,
        objective=_objective(reply),
        shares=_shares(tiers, exchange.state.clusters, reply),
        events=(*done.events, *after.events),
        tests=(*done.tests, *after.statistics),
        notes=(*done.notes, *too_few(tiers.averaging.combine, averaged.clusters, reply)),
    )


def _step(run: Run, exchange: _Exchange, state: ServerState, moved: Tensor) -> Step:
    """Return the figures that every round reports, with or without replies; `state` is the one after the round."""
    onboarded, replies = exchange.onboarded, exchange.replies
    return Step(
        state,
        moved,
        missing=_missing(run.federation.clients, exchange.chosen, exchange.reply.clients, exchange.rejected),
        rejected=exchange.rejected,
        bytes_up=onboarded.bytes_up + replies.bytes_up,
        bytes_down=onboarded.bytes_down + replies.bytes_down,
        events=onboarded.events,
        tests=onboarded.tests,
        notes=exchange.notes,
    )


# ---- aggregation -----------------------------------------------------------------------------------------------------


def _received(run: Run, exchange: _Exchange, answered: Positions) -> RoundReplies:
    """Return the replies together with what the server needs to aggregate them."""
    tiers, state = run.tiers, exchange.state
    privacy, noise = tiers.privacy, None
    if privacy is not None and not privacy.local:
        noise = partial(
            with_noise,
            clusters=state.clusters,
            privacy=privacy,
            noise=run.noise,
            round_=state.round,
            chosen=tiers.sends_choice,
        )
    return RoundReplies(state.clusters, exchange.reply, run.federation.sizes, answered, tiers.averaging, noise)


def _averaged(run: Run, state: ServerState, received: RoundReplies) -> ServerState:
    """Return the state with the models after averaging and the step of the server optimizer."""
    tiers = run.tiers
    rate = tiers.local.rate(state.round, run.rounds)
    with one_thread():
        if tiers.local.pools_heads:
            pooled = received.reply.slotted["pooled"]
            return replace(state, clusters=solve_heads(state.clusters, pooled, tiers.server.lr * rate))
        update = tiers.assignment.server_aggregate(received)
        scale = rate if tiers.exchange == "gradient" else 1.0
        return move_models(tiers.server, state, update, scale)


# ---- updates of the state --------------------------------------------------------------------------------------------


def _remember(run: Run, exchange: _Exchange, answered: Positions) -> tuple[ServerState, Tensor]:
    """Return the state with everything from the replies except the models, and the clients moved in each restart."""
    tiers, state, reply = run.tiers, exchange.state, exchange.reply
    choice, steady, moved = _choices(state, reply, answered)
    learned = state.with_values(
        choice=choice,
        steady=steady,
        loss=_mean_loss(reply, state.clusters.restarts),
        accepted=state.accepted.index_fill(0, torch.from_numpy(answered), state.round),
    )
    if tiers.adapts and tiers.assignment.keeps:
        learned = learned.with_values(flows=_restarted_flows(state.flows, answered, state.clusters.K))
    tables = _kept(tiers, state.tables, reply, answered, len(run.federation.clients))
    return learned.with_arrays(tables, OBJECTIVE), moved


def _choices(state: ServerState, reply: Reply, answered: Positions) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new `choice` and `steady`, and the number of clients that moved in each restart."""
    rows = torch.from_numpy(answered)
    before, after = state.choice.index_select(0, rows), reply.rows["cluster"].cpu()
    changed = (before != after) & (before != UNKNOWN)
    same = (before == after).all(dim=1)
    rounds = (state.steady.index_select(0, rows) + 1) * same
    return state.choice.index_copy(0, rows, after), state.steady.index_copy(0, rows, rounds), changed.sum(dim=0)


def _mean_loss(reply: Reply, restarts: int) -> Tensor:
    """Return the mean loss of the training samples, (R,); infinite if clients do not send it."""
    if "loss" not in reply.sums:
        return torch.full((restarts,), torch.inf, dtype=torch.float64)
    return reply.sums["loss"] / reply.sums["samples"]


def _restarted_flows(flows: Tensor, answered: Positions, K: int) -> Tensor:
    """Return the flows after these clients have replied: their weights now refer to the present K clusters."""
    wide = max(flows.shape[1], K)
    grown = torch.nn.functional.pad(flows, (0, 0, 0, wide - flows.shape[1]))
    grown[torch.from_numpy(answered)] = torch.eye(wide, K, dtype=flows.dtype)
    return grown


def _kept(tiers: Tiers, tables: Params, reply: Reply, answered: Positions, clients: int) -> Mapping[str, StateArray]:
    """Return the arrays of the objective that a round changes."""
    objective = tiers.objective
    found = reply.sums if objective.summed else reply.rows
    counts = {name: found[name] for name in objective.counts if name in found}
    return objective.server_keep(tables, counts, torch.from_numpy(answered), clients) if counts else {}


def _view(run: Run, state: ServerState, received: RoundReplies, trials: RoundTrials) -> View:
    """Return the server's view after averaging; it contains the replies only if the procedure may use them."""
    tiers, federation, rows = run.tiers, run.federation, received.reply.rows
    view = View(state, federation.clients, received.answered, federation.hashes)
    if not tiers.adapts:
        return view
    return replace(
        view,
        rows=rows,
        weights=rows["weights"][:, 0] if "weights" in rows else None,
        changes=tiers.assignment.server_changes(received) if tiers.sends_each_change else None,
        distance=tiers.distance,
        trials=trials,
        records_splits=tiers.tree,
    )


def _objective(reply: Reply) -> Tensor | None:
    """Return eq. 2 of HCFL+ before the clients trained, (R,); None if clients are not mixtures."""
    if "likelihood" not in reply.sums:
        return None
    value = reply.sums["likelihood"]
    return (value - reply.sums["penalty"] if "penalty" in reply.sums else value) / reply.sums["samples"]


def _shares(tiers: Tiers, clusters: Clusters, reply: Reply) -> Tensor | None:
    """Return the mean of the clients' weights, (R, K), which sums to one; None if a client has a single cluster."""
    if "weights" in reply.rows:
        return reply.rows["weights"].mean(dim=0)
    if not tiers.assignment.mixture:
        return None
    sums = reply.slotted["clusters"]
    mass = torch.zeros(clusters.restarts * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_restart = mass.reshape(clusters.restarts, clusters.K)
    return by_restart / by_restart.sum(dim=1, keepdim=True)


# ---- what clients receive --------------------------------------------------------------------------------------------


def common_of(tiers: Tiers, state: ServerState) -> Params:
    """Return what all clients of a mixture receive besides the models: the last loss, and the objective's values."""
    return {"loss": state.loss, **tiers.objective.server_combine(state.tables)}


def _for_kept_states(tiers: Tiers, state: ServerState, asked: Positions) -> dict[str, Params]:
    """Return what clients with a state need besides the models: the round of the valid state, and common values."""
    if not tiers.assignment.keeps:
        return {}
    rows = torch.from_numpy(asked)
    each = {"accepted": state.accepted[rows]} | ({"flow": state.flows[rows]} if tiers.adapts else {})
    return {"each": each} | ({"common": common_of(tiers, state)} if tiers.assignment.mixture else {})


def _models_sent(tiers: Tiers, state: ServerState, asked: Positions, groups: Tensor | None) -> Tensor | None:
    """Return the slots sent to each asked client, (len(asked), R), or None if all receive every model."""
    rows = torch.from_numpy(asked)
    if groups is not None:
        return groups[rows, None]
    every = tiers.stable_after
    if every is None or state.round % every == 0:
        return None
    slots = state.choice[rows] + torch.arange(state.clusters.restarts) * state.clusters.K
    return torch.where((state.steady[rows] >= every)[:, None], slots, ALL)


def _missing(
    clients: tuple[ClientId, ...], chosen: Positions, accepted: tuple[ClientId, ...], rejected: tuple[ClientId, ...]
) -> tuple[ClientId, ...]:
    """Return the clients that took part and sent nothing."""
    if len(accepted) + len(rejected) == len(chosen):
        return ()
    answered = {*accepted, *rejected}
    return tuple(clients[i] for i in chosen if clients[i] not in answered)
