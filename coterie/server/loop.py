"""The training loop: ask the clients, average their changes, regroup the clusters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from coterie.core.client_state import NEVER
from coterie.core.clusters import Clusters, Params
from coterie.core.federation import Federation, Note, Replies, positions_of
from coterie.core.messages import ALL, Broadcast, Reply
from coterie.core.sampling import choose
from coterie.core.shard import ClientId, Positions
from coterie.core.state import OBJECTIVE, UNKNOWN, ServerState
from coterie.core.state_array import StateArray
from coterie.core.threads import one_thread
from coterie.errors import TrainingError
from coterie.privacy.noise import SECRET, Noise
from coterie.server.aggregate import aggregate, changes_of
from coterie.server.onboarding import Onboarded, onboard
from coterie.server.regrouping import regroup
from coterie.server.robust import too_few
from coterie.tiers.method import Method
from coterie.tiers.view import View

MOST_SILENT = 3
"""Abort after this many consecutive rounds without a reply."""


@dataclass(frozen=True)
class Round:
    """Outcome of one round."""

    state: ServerState
    """State after the round."""
    moved: Tensor
    """Number of clients that changed their cluster in each restart, (R,)."""
    answered: int
    """Number of clients whose replies were accepted."""
    missing: tuple[ClientId, ...]
    """Clients that were to take part and sent nothing."""
    rejected: tuple[ClientId, ...]
    """Clients whose replies were not finite."""
    bytes_up: int
    """Bytes from the clients to the server."""
    bytes_down: int
    """Bytes from the server to the clients."""
    path: str
    """Computation path of the learner that did the local work; several are joined by `+`."""
    likelihood: Tensor | None = None
    """Mean log-likelihood of the training samples under their clients' mixtures before training, (R,)."""
    shares: Tensor | None = None
    """Part of the clients' weight that each cluster has, (R, K), if clients belong to several clusters."""
    events: tuple[Mapping[str, object], ...] = ()
    """Every regroup with its reason, JSON-ready."""
    notes: tuple[Note, ...] = ()
    """Problems on the way to the clients, and settings that could not be followed."""
    diverged: bool = False
    """Whether no client had a finite update, which ends training; the models are those before the round."""


@dataclass(frozen=True)
class _Setting:
    """Everything that is the same in all rounds."""

    method: Method
    federation: Federation
    seed: int
    groups: Tensor | None
    """Given clusters of the clients, (m,), for an assigned method."""
    noise: Noise


@dataclass(frozen=True)
class _Exchange:
    """One question to the clients, with their replies."""

    state: ServerState
    """The state that the clients were asked with."""
    chosen: Positions
    """Clients that take part in the round."""
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


def rounds(
    method: Method,
    federation: Federation,
    state: ServerState,
    total: int,
    seed: int,
    groups: Tensor | None,
    noise: Noise = SECRET,
) -> Iterator[Round]:
    """Train from a state to round `total`, one `Round` after the other.

    A round without a reply changes nothing, and the next round starts. A round in which no client has a finite update
    is the last one: the models stay, and further rounds could only repeat it.

    Args:
        method: The method.
        federation: The clients.
        state: The state to start from.
        total: Number of rounds after which training ends.
        seed: Seed of the run.
        groups: Given clusters of the clients, (m,), for an assigned method.
        noise: Noise that hides single clients, if the method asks the server to add it.

    Raises:
        TrainingError: if no client replies in the first round, or in `MOST_SILENT` consecutive rounds.
    """
    setting = _Setting(method, federation, seed, groups, noise)
    silent = 0
    while state.round < total:
        exchange = _ask(setting, state)
        if exchange.reply.clients:
            silent, done = 0, _updated(setting, exchange)
        else:
            silent += 1
            done = _not_updated(setting, exchange, silent)
        yield done
        if done.diverged:
            return
        state = done.state


def _ask(setting: _Setting, state: ServerState) -> _Exchange:
    """Choose the clients of a round, onboard those that are new, and ask them to train."""
    method, federation = setting.method, setting.federation
    chosen = choose(federation.hashes, method.participation, setting.seed, state.round)
    onboarded = Onboarded(state)
    if method.introduces:
        onboarded = onboard(method, federation, state, chosen, setting.seed)
    state = onboarded.state
    groups = state.choice[:, 0] if method.adapts and method.weights.assigned else setting.groups
    # the server has no model for a client whose cluster it does not know: such a client is missing
    asked = chosen if groups is None else chosen[(groups[torch.from_numpy(chosen)] >= 0).numpy()]
    broadcast = Broadcast(
        state.round,
        state.clusters,
        only=_who_gets_what(method, state, asked, groups),
        scalars={"lr": 1.0 if method.exchange == "gradient" else method.rate(state.round)},
        **_for_those_who_keep(method, state, asked),
    )
    return _Exchange(state, chosen, onboarded, federation.ask(method.task(setting.seed), broadcast, asked))


def _not_updated(setting: _Setting, exchange: _Exchange, silent: int) -> Round:
    """Return a round without a usable reply; `silent` is the number of consecutive rounds like this one.

    Raises:
        TrainingError: if waiting for another round is of no use.
    """
    state = exchange.state
    if not exchange.diverged:
        _refuse_silence(state, exchange.rejected, exchange.notes, len(exchange.chosen), silent)
    nobody_moved = torch.zeros(state.clusters.restarts, dtype=torch.int64)
    done = _round(setting, exchange, replace(state, round=state.round + 1), nobody_moved)
    return replace(done, diverged=exchange.diverged)


def _updated(setting: _Setting, exchange: _Exchange) -> Round:
    """Return a round with replies: average, remember, regroup."""
    method, reply = setting.method, exchange.reply
    answered = positions_of(setting.federation, reply.clients)
    averaged = _average(setting, exchange, answered)
    learned, moved = _remember(setting, exchange, answered)
    after = regroup(method, _view(setting, exchange, replace(learned, clusters=averaged), answered))
    state = replace(after.view.state, round=exchange.state.round + 1)
    done = _round(setting, exchange, state, moved)
    return replace(
        done,
        answered=len(answered),
        path="+".join(reply.paths),
        likelihood=reply.sums["likelihood"] / reply.sums["samples"] if "likelihood" in reply.sums else None,
        shares=_shares(method, averaged, reply),
        events=(*done.events, *after.events),
        notes=(*done.notes, *too_few(method.averaging.combine, averaged, reply)),
    )


def _round(setting: _Setting, exchange: _Exchange, state: ServerState, moved: Tensor) -> Round:
    """Return what every round reports, with or without replies; `state` is the one after it."""
    travels, onboarded, replies = setting.method.travels, exchange.onboarded, exchange.replies
    return Round(
        state,
        moved=moved,
        answered=0,
        missing=_missing(setting.federation.clients, exchange.chosen, exchange.reply.clients, exchange.rejected),
        rejected=exchange.rejected,
        bytes_up=onboarded.bytes_up + replies.bytes_up if travels else 0,
        bytes_down=onboarded.bytes_down + replies.bytes_down if travels else 0,
        path="",
        events=onboarded.events,
        notes=exchange.notes,
    )


def _average(setting: _Setting, exchange: _Exchange, answered: Positions) -> Clusters:
    """Return the models after averaging."""
    method, state, sizes = setting.method, exchange.state, setting.federation.sizes
    rate = method.rate(state.round)
    with one_thread():
        return aggregate(method, state.clusters, exchange.reply, sizes, answered, rate, state.round, setting.noise)


def _remember(setting: _Setting, exchange: _Exchange, answered: Positions) -> tuple[ServerState, Tensor]:
    """Return the state with everything learned from the replies but the models, and the clients moved by restart."""
    method, state, reply = setting.method, exchange.state, exchange.reply
    choice, steady, moved = _choices(state, reply, answered)
    learned = state.with_values(
        choice=choice,
        steady=steady,
        loss=_mean_loss(reply, state.clusters.restarts),
        accepted=state.accepted.index_fill(0, torch.from_numpy(answered), state.round),
    )
    if method.adapts and method.weights.keeps:
        learned = learned.with_values(flows=_restarted_flows(state.flows, answered, state.clusters.K))
    tables = _kept(method, state.tables, reply, answered, len(setting.federation.clients))
    return learned.with_arrays(tables, OBJECTIVE), moved


def _view(setting: _Setting, exchange: _Exchange, state: ServerState, answered: Positions) -> View:
    """Return the server's knowledge after averaging; replies are in it only if the procedure may use them."""
    method, federation, reply = setting.method, setting.federation, exchange.reply
    view = View(state, federation.clients, answered, federation.hashes)
    if not method.adapts:
        return view
    before = exchange.state.clusters
    return replace(
        view,
        rows=reply.rows,
        weights=reply.rows["weights"][:, 0] if "weights" in reply.rows else None,
        changes=changes_of(method, before, reply, federation.sizes, answered) if method.tells_changes else None,
        distance=method.distance,
        records_splits=method.tree,
    )


def _mean_loss(reply: Reply, restarts: int) -> Tensor:
    """Return the mean loss of the training samples, (R,); infinite if clients do not send it."""
    if "loss" not in reply.sums:
        return torch.full((restarts,), torch.inf, dtype=torch.float64)
    return reply.sums["loss"] / reply.sums["samples"]


def _restarted_flows(flows: Tensor, answered: Positions, K: int) -> Tensor:
    """Return the flows after these clients have replied with K clusters: their weights are those of the present."""
    wide = max(flows.shape[1], K)
    grown = torch.nn.functional.pad(flows, (0, 0, 0, wide - flows.shape[1]))
    grown[torch.from_numpy(answered)] = torch.eye(wide, K, dtype=flows.dtype)
    return grown


def _missing(
    clients: tuple[ClientId, ...], chosen: Positions, accepted: tuple[ClientId, ...], rejected: tuple[ClientId, ...]
) -> tuple[ClientId, ...]:
    """Return the clients that were to take part and sent nothing."""
    if len(accepted) + len(rejected) == len(chosen):
        return ()
    heard = {*accepted, *rejected}
    return tuple(clients[i] for i in chosen if clients[i] not in heard)


def told_of(method: Method, state: ServerState) -> Params:
    """Return what is sent to all clients besides the models: the last loss, and the objective's arrays, by restart."""
    return {"loss": state.loss, **method.objective.server_combine(state.tables)}


def _for_those_who_keep(method: Method, state: ServerState, asked: Positions) -> dict[str, Params]:
    """Return what clients with a state of their own need besides the models.

    These are the last accepted round and the flows of each client, and for mixtures what all clients share.
    """
    if not method.weights.keeps:
        return {}
    rows = torch.from_numpy(asked)
    each = {"accepted": state.accepted[rows]} | ({"flow": state.flows[rows]} if method.adapts else {})
    told = {"each": each}
    return told if method.weights.way != "respond" else told | {"common": told_of(method, state)}


def _kept(method: Method, tables: Params, reply: Reply, answered: Positions, clients: int) -> Mapping[str, StateArray]:
    """Return the arrays of the objective that a round changes."""
    found = reply.sums if method.objective.summed else reply.rows
    counts = {name: found[name] for name in method.objective.counts if name in found}
    return method.objective.server_keep(tables, counts, torch.from_numpy(answered), clients) if counts else {}


def _shares(method: Method, clusters: Clusters, reply: Reply) -> Tensor | None:
    """Return the mean weights of the clients over the clusters, (R, K); None if a client has one cluster only."""
    if "weights" in reply.rows:
        return reply.rows["weights"].mean(dim=0)
    if method.weights.way != "respond":
        return None
    sums = reply.slotted["clusters"]
    mass = torch.zeros(clusters.restarts * clusters.K, dtype=torch.float64)
    mass[sums.slots] = sums.arrays["mass"]
    by_restart = mass.reshape(clusters.restarts, clusters.K)
    return by_restart / by_restart.sum(dim=1, keepdim=True)


def _who_gets_what(method: Method, state: ServerState, asked: Positions, groups: Tensor | None) -> Tensor | None:
    """Return the slots that are sent to each asked client, (asked, R); None if all clients get every model."""
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
    """Raise a TrainingError if a round without a usable reply is more than a passing problem.

    `silent` is the number of consecutive rounds without a usable reply, this one included.
    """
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


def _choices(state: ServerState, reply: Reply, answered: Positions) -> tuple[Tensor, Tensor, Tensor]:
    """Return the new `choice` and `steady`, and the number of clients that moved in each restart."""
    rows = torch.from_numpy(answered)
    before, after = state.choice[rows], reply.rows["cluster"].cpu()
    changed = (before != after) & (before != UNKNOWN)
    same = (before == after).all(dim=1)
    choice, steady = state.choice.clone(), state.steady.clone()
    choice[rows] = after
    steady[rows] = torch.where(same, steady[rows] + 1, torch.zeros_like(steady[rows]))
    return choice, steady, changed.sum(dim=0)
