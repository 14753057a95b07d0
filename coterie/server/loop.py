"""The one loop: ask, aggregate, regroup."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, Note, Replies, positions_of
from coterie.core.messages import ALL, Broadcast, Reply, Slotted
from coterie.core.shard import ClientId, Positions
from coterie.core.threads import one_thread
from coterie.errors import TrainingError
from coterie.privacy.noise import SECRET, Noise
from coterie.privacy.server import with_noise
from coterie.server.aggregate import RoundReplies, aggregate
from coterie.server.greeting import Greeted, greet
from coterie.server.regrouping import regroup, unmoved
from coterie.server.robust import too_few
from coterie.server.sampling import choose
from coterie.tiers.method import Method
from coterie.tiers.view import View

MOST_SILENT = 3
"""So many rounds in a row without an answer end a run: nobody is there."""

UNKNOWN = -1
"""In `ServerState.choice`: this client has not been heard of yet."""


@dataclass(frozen=True)
class ServerState:
    """Everything the server needs to go on. All of it is in a checkpoint."""

    round: int
    """Rounds done."""
    clusters: Clusters
    choice: Tensor
    """(m, R) the last known cluster of each client in each restart."""
    steady: Tensor
    """(m,) visits in a row without a change of cluster in any restart."""
    loss: Tensor
    """(R,) training loss of each restart in the last round, as `LocalRound` defines it; infinite before the first."""
    accepted: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """(m,) the last round of each client's that counted, or `NEVER`: its own state goes on from there."""
    tables: Params = field(default_factory=dict)
    """What the objective keeps of the clients' counts."""
    flows: Tensor = field(default_factory=lambda: torch.zeros(0, 0, 0, dtype=torch.float64))
    """(m, K then, K now) how a client's own weights go from when it was last accepted to now; empty while K stays."""
    portraits: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    """(K, P) what the members of each cluster introduced themselves with, added up; empty where nobody does."""
    tree: Params = field(default_factory=dict)
    """All splits so far, where the method keeps them (`core/tree.py`)."""
    clients: Params = field(default_factory=dict)
    """What clients keep for themselves, only in checkpoints of a simulation: elsewhere it stays with them."""

    @classmethod
    def fresh(cls, clusters: Clusters, clients: int, adapts: bool = False) -> ServerState:
        choice = torch.full((clients, clusters.restarts), UNKNOWN, dtype=torch.int64)
        loss = torch.full((clusters.restarts,), torch.inf, dtype=torch.float64)
        accepted = torch.full((clients,), NEVER, dtype=torch.int64)
        state = cls(0, clusters, choice, torch.zeros(clients, dtype=torch.int64), loss, accepted)
        return replace(state, flows=unmoved(clients, clusters.K)) if adapts else state


@dataclass(frozen=True)
class Round:
    """What one round brought."""

    state: ServerState
    moved: Tensor
    """(R,) clients that changed their cluster."""
    answered: int
    missing: tuple[ClientId, ...]
    rejected: tuple[ClientId, ...]
    bytes_up: int
    bytes_down: int
    path: str
    """By which of the learner's ways the local work was done; several are joined by `+`."""
    likelihood: Tensor | None = None
    """(R,) the mean log-likelihood of the training samples under their clients' mixtures, before they trained."""
    shares: Tensor | None = None
    """(R, K) what part of the clients' weight each cluster has, where clients belong to several."""
    events: tuple[Mapping[str, object], ...] = ()
    """How K changed and why."""
    notes: tuple[Note, ...] = ()
    """What went wrong on the way to the clients, or could not be done as was asked."""
    diverged: bool = False
    """Whether no client had a finite update, which ends the training: the state is that before the round."""


def rounds(
    method: Method,
    federation: Federation,
    state: ServerState,
    total: int,
    seed: int,
    groups: Tensor | None,
    noise: Noise = SECRET,
) -> Iterator[Round]:
    """Train from `state` to round `total`; `groups` (m,) are the given clusters of an assigned method.

    noise: what the server hides single clients with, where the method wants it to.

    A round without an answer is no update: the models stay, and the next round is begun. A round in which no client has
    a finite update is the last one: the models stay, and further rounds could only repeat it.
    """
    silent = 0
    while state.round < total:
        chosen = choose(federation.hashes, method.participation, seed, state.round)
        greeted = Greeted(_before(state, federation))
        if method.introduces:
            greeted = greet(method, federation, greeted.view, chosen, seed)
            state = _placed(state, greeted)
        told = state.choice[:, 0] if method.adapts and method.weights.assigned else groups
        # the server has no model for a client that it knows no cluster of: such a client is missing
        asked = chosen if told is None else chosen[(told[torch.from_numpy(chosen)] >= 0).numpy()]
        rate = method.rate(state.round)
        broadcast = Broadcast(
            state.round,
            state.clusters,
            only=_who_gets_what(method, state, asked, told),
            scalars={"lr": 1.0 if method.exchange == "gradient" else rate},
            **_for_those_who_keep(method, state, asked),
        )
        replies = federation.ask(method.task(seed), broadcast, asked)
        reply = replies.reply
        rejected = (*greeted.rejected, *reply.rejected)
        notes = (*greeted.notes, *replies.notes)
        silent = 0 if reply.clients else silent + 1
        if not reply.clients:
            diverged = bool(rejected) and not notes
            if not diverged:
                _refuse_silence(state, rejected, notes, len(chosen), silent)
            state = replace(state, round=state.round + 1)
            missing = _missing(federation.clients, chosen, (), rejected)
            yield replace(_without_answer(method, state, missing, rejected, greeted, replies), diverged=diverged)
            if diverged:
                return
            continue
        answered = positions_of(federation, reply.clients)
        received = RoundReplies(
            state.clusters, reply, federation.sizes, answered, method.averaging, _noise_on_sums(method, state, noise)
        )
        with one_thread():
            averaged = aggregate(method.weights, received, method.server_lr, rate, method.exchange)
        choice, steady, moved = _remember(state, reply, answered)
        tables = _kept(method, state.tables, reply, answered, len(federation.clients))
        view = View(state.round, averaged, federation.clients, choice[:, 0], answered, federation.hashes)
        if method.adapts:
            view = _seen(method, view, state, received)
        flows = (
            _accepted(state.flows, answered, state.clusters.K)
            if method.adapts and method.weights.keeps
            else state.flows
        )
        after = regroup(method, view, tables, flows)
        if after.events:
            choice, steady = after.view.choice[:, None], torch.zeros_like(steady)
        loss = _mean_loss(reply, state.clusters.restarts)
        accepted = state.accepted.index_fill(0, torch.from_numpy(answered), state.round)
        state = ServerState(
            state.round + 1,
            after.view.clusters,
            choice,
            steady,
            loss,
            accepted,
            after.tables,
            after.flows,
            after.view.portraits,
            after.view.tree or {},
        )
        yield Round(
            state,
            moved=moved,
            answered=len(answered),
            missing=_missing(federation.clients, chosen, reply.clients, rejected),
            rejected=rejected,
            bytes_up=greeted.bytes_up + replies.bytes_up if method.travels else 0,
            bytes_down=greeted.bytes_down + replies.bytes_down if method.travels else 0,
            path="+".join(reply.paths),
            likelihood=reply.sums["likelihood"] / reply.sums["samples"] if "likelihood" in reply.sums else None,
            shares=_shares(method, averaged, reply),
            events=(*greeted.events, *after.events),
            notes=(*notes, *too_few(method.averaging.combine, averaged, reply)),
        )


def _mean_loss(reply: Reply, restarts: int) -> Tensor:
    """(R,) of the training samples; infinite where clients do not tell it."""
    if "loss" not in reply.sums:
        return torch.full((restarts,), torch.inf, dtype=torch.float64)
    return reply.sums["loss"] / reply.sums["samples"]


def _without_answer(
    method: Method,
    state: ServerState,
    missing: tuple[ClientId, ...],
    rejected: tuple[ClientId, ...],
    greeted: Greeted,
    replies: Replies,
) -> Round:
    """A round that nobody answered; the state is that after it."""
    return Round(
        state,
        moved=torch.zeros(state.clusters.restarts, dtype=torch.int64),
        answered=0,
        missing=missing,
        rejected=rejected,
        bytes_up=greeted.bytes_up + replies.bytes_up if method.travels else 0,
        bytes_down=greeted.bytes_down + replies.bytes_down if method.travels else 0,
        path="",
        events=greeted.events,
        notes=(*greeted.notes, *replies.notes),
    )


def _before(state: ServerState, federation: Federation) -> View:
    """What the server knows before a round."""
    nobody = np.zeros(0, dtype=np.int64)
    return View(
        state.round,
        state.clusters,
        federation.clients,
        state.choice[:, 0],
        nobody,
        federation.hashes,
        portraits=state.portraits,
    )


def _placed(state: ServerState, greeted: Greeted) -> ServerState:
    """The state with the clients that have introduced themselves."""
    view = greeted.view
    return replace(state, clusters=view.clusters, choice=view.choice[:, None], portraits=view.portraits)


def _noise_on_sums(method: Method, state: ServerState, noise: Noise) -> Callable[[Slotted], Slotted] | None:
    """Return what hides single clients in the clusters' sums, where the server does that."""
    privacy = method.privacy
    if privacy is None or privacy.local:
        return None
    return lambda sums: with_noise(sums, state.clusters, privacy, noise, state.round, method.tells_choice)


def _seen(method: Method, view: View, state: ServerState, received: RoundReplies) -> View:
    """Return the view with what the procedure may look at, besides who is where."""
    reply = received.reply
    weights = reply.rows["weights"][:, 0] if "weights" in reply.rows else None
    changes = method.weights.server_changes(received) if method.tells_changes else None
    return replace(
        view,
        rows=reply.rows,
        weights=weights,
        changes=changes,
        distance=method.distance,
        portraits=state.portraits,
        tree=state.tree if method.tree else None,
    )


def _accepted(flows: Tensor, answered: Positions, K: int) -> Tensor:
    """The flows once these clients have been heard with K clusters: nothing has happened to their weights since."""
    if not len(flows):
        raise AssertionError("flows begin with the run")
    wide = max(flows.shape[1], K)
    grown = torch.nn.functional.pad(flows, (0, 0, 0, wide - flows.shape[1]))
    grown[torch.from_numpy(answered)] = torch.eye(wide, K, dtype=flows.dtype)
    return grown


def _missing(
    clients: tuple[ClientId, ...], chosen: Positions, accepted: tuple[ClientId, ...], rejected: tuple[ClientId, ...]
) -> tuple[ClientId, ...]:
    """Who was to take part and sent nothing at all."""
    if len(accepted) + len(rejected) == len(chosen):
        return ()
    heard = {*accepted, *rejected}
    return tuple(clients[i] for i in chosen if clients[i] not in heard)


def told_of(method: Method, state: ServerState) -> Params:
    """What clients are told besides the models: of the objective, and the loss of the round before, of each restart."""
    return {"loss": state.loss, **method.objective.server_combine(state.tables)}


def _for_those_who_keep(method: Method, state: ServerState, asked: Positions) -> dict[str, Params]:
    """What clients with a state need besides the models: which of their states counts, and what mixtures share."""
    if not method.weights.keeps:
        return {}
    rows = torch.from_numpy(asked)
    each = {"accepted": state.accepted[rows]} | ({"flow": state.flows[rows]} if method.adapts else {})
    told = {"each": each}
    return told | {"common": told_of(method, state)} if method.weights.mixture else told


def _kept(method: Method, tables: Params, reply: Reply, answered: Positions, clients: int) -> Params:
    """What the objective keeps after a round."""
    found = reply.sums if method.objective.summed else reply.rows
    counts = {name: found[name] for name in method.objective.counts if name in found}
    return method.objective.server_keep(tables, counts, torch.from_numpy(answered), clients) if counts else tables


def _shares(method: Method, clusters: Clusters, reply: Reply) -> Tensor | None:
    """(R, K), the clients' weights in their mean, sums to one; None where a client has one cluster."""
    if "weights" in reply.rows:
        return reply.rows["weights"].mean(dim=0)
    if not method.weights.mixture:
        return None
    sums = reply.slotted["clusters"]
    mass = torch.zeros(clusters.restarts * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_restart = mass.reshape(clusters.restarts, clusters.K)
    return by_restart / by_restart.sum(dim=1, keepdim=True)


def _who_gets_what(method: Method, state: ServerState, asked: Positions, groups: Tensor | None) -> Tensor | None:
    """The slots sent to each asked client (len(asked), R), or None when all get every model."""
    rows = torch.from_numpy(asked)
    if groups is not None:
        return groups[rows, None]
    every = method.stable_after
    if every is None or state.round % every == 0:
        return None
    slots = state.choice[rows] + torch.arange(state.clusters.restarts) * state.clusters.K
    return torch.where((state.steady[rows] >= every)[:, None], slots, ALL)


def _refuse_silence(
    state: ServerState, rejected: tuple[ClientId, ...], notes: tuple[Note, ...], asked: int, silent: int
) -> None:
    """Raise where a round without an answer that counts is no passing trouble; `silent` such rounds came in a row."""
    round_ = state.round
    why = f" ({notes[0].reason})" if notes else ""
    if bool((state.accepted == NEVER).all()):
        what = (
            f"the answers of all {len(rejected)} clients were refused"
            if rejected
            else f"none of the {asked} clients asked has answered"
        )
        raise TrainingError(f"round {round_}: {what}{why}; nothing was changed")
    if silent >= MOST_SILENT:
        raise TrainingError(
            f"round {round_}: for {silent} rounds no answer has come that counts{why}; the models are those of round "
            f"{int(state.accepted.max())}: see to the clients and resume"
        )


def _remember(state: ServerState, reply: Reply, answered: Positions) -> tuple[Tensor, Tensor, Tensor]:
    """The new `choice` and `steady`, and how many clients moved in each restart."""
    rows = torch.from_numpy(answered)
    before, after = state.choice[rows], reply.rows["cluster"].cpu()
    changed = (before != after) & (before != UNKNOWN)
    same = (before == after).all(dim=1)
    choice, steady = state.choice.clone(), state.steady.clone()
    choice[rows] = after
    steady[rows] = torch.where(same, steady[rows] + 1, torch.zeros_like(steady[rows]))
    return choice, steady, changed.sum(dim=0)


def settle(state: ServerState, restart: int) -> ServerState:
    """Keep one restart and forget the others."""
    return replace(
        state,
        clusters=state.clusters.restart(restart),
        choice=state.choice[:, restart : restart + 1],
        loss=state.loss[restart : restart + 1],
    )


def best_restart(loss: Tensor) -> int:
    """The restart with the least training loss, ties to the lowest; one that diverged never wins."""
    return int(loss.nan_to_num(nan=torch.inf).argmin())
