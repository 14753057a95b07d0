"""Questions to fixed shards of clients, and their answers, as bytes: the same here and in another process.

A question consists of one part that all shards share (the task and the models) and one part for each shard (its
clients, their rows of the broadcast, and the states that they keep). Answers are merged in pairs, along a binary tree
that depends only on the number of asked shards. So the result does not depend on which process serves a shard.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.core.client_state import ClientStates, ClientStateStore, joined_rows
from coterie.core.clusters import Params, plain_layout
from coterie.core.federation import Replies
from coterie.core.messages import (
    Broadcast,
    Reply,
    broadcast_of,
    broadcast_parts,
    merge_answers,
    pack,
    reply_of,
    reply_parts,
    unpack,
)
from coterie.core.plain import from_plain, to_plain
from coterie.core.shard import ClientId, Positions
from coterie.core.task import Task
from coterie.core.threads import one_thread
from coterie.engines.simulation import Simulation
from coterie.errors import CoterieError, error_name, named_error

Item = TypeVar("Item")


def reduce_pairwise(items: Sequence[Item], join: Callable[[Item, Item], Item]) -> Item:
    """Return one item for a sequence: the halves are reduced first, then joined."""
    if len(items) == 1:
        return items[0]
    half = middle(0, len(items))
    return join(reduce_pairwise(items[:half], join), reduce_pairwise(items[half:], join))


def middle(first: int, stop: int) -> int:
    """Return where the second half of a range of shards starts."""
    return first + (stop - first + 1) // 2


# ---- the cut ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cut:
    """Division of m clients into shards of adjacent clients."""

    borders: Positions
    """First client of each shard, followed by m, (S + 1,)."""

    @classmethod
    def of(cls, sizes: Positions, shards: int) -> Cut:
        """Return a cut into shards with about the same numbers of samples and at least one client each.

        Args:
            sizes: Number of samples of each client, (m,).
            shards: Number of shards, at most m.
        """
        total = np.concatenate([[0], np.cumsum(sizes)])
        borders = np.searchsorted(total, np.arange(shards + 1) * total[-1] / shards)
        borders[0], borders[-1] = 0, len(sizes)
        for s in range(1, shards):
            borders[s] = min(max(borders[s], borders[s - 1] + 1), len(sizes) - (shards - s))
        return cls(borders.astype(np.int64))

    def __len__(self) -> int:
        return len(self.borders) - 1

    def positions(self, shard: int) -> Positions:
        """Return the positions of the clients of a shard."""
        return np.arange(self.borders[shard], self.borders[shard + 1])

    def parts(self, asked: Positions, places: Positions) -> list[tuple[int, Positions]]:
        """Return the asked shards, each with the places of its clients in `asked`.

        Args:
            asked: Positions of the asked clients.
            places: Places in `asked` of the clients that reply.
        """
        shards = np.searchsorted(self.borders, asked[places], side="right") - 1
        if bool((np.diff(shards) < 0).any()):
            order = np.argsort(shards, kind="stable")
            places, shards = places[order], shards[order]
        first = np.searchsorted(shards, np.arange(len(self) + 1))
        return [(s, places[first[s] : first[s + 1]]) for s in range(len(self)) if first[s] < first[s + 1]]


# ---- questions -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CommonPart:
    """Part of a question that all shards share."""

    task: Task
    broadcast: Broadcast
    """The broadcast without rows for single clients."""
    gradients: bool
    """Whether torch records gradients where the question is asked."""

    def encode(self) -> bytes:
        """Serialise the part."""
        header, arrays = broadcast_parts(self.broadcast)
        return pack(({**header, "task": to_plain(self.task), "gradients": self.gradients}, arrays))

    @classmethod
    def decode(cls, data: bytes) -> CommonPart:
        """Return the part that `encode` serialised."""
        header, arrays = _aligned(data)
        return cls(from_plain(Task, header["task"]), broadcast_of(header, arrays), header["gradients"])


@dataclass(frozen=True)
class ShardPart:
    """Part of a question for one shard."""

    positions: Positions | None
    """Positions of the asked clients in the shard, (a,); None: all its clients in their order."""
    first: int
    """Position of the shard's first client among all clients."""
    only: Tensor | None
    """As in `Broadcast`, (a, L)."""
    each: Params
    """As in `Broadcast`, {name: (a, ...)}."""
    states: Params | None
    """Rows of the states that the asked clients keep; None if they keep none."""

    def encode(self) -> bytes:
        """Serialise the part."""
        arrays = {f"each/{name}": rows for name, rows in self.each.items()}
        if self.positions is not None:
            arrays["positions"] = torch.from_numpy(self.positions)
        arrays |= {f"states/{name}": rows for name, rows in (self.states or {}).items()}
        if self.only is not None:
            arrays["only"] = self.only
        return pack(({"first": self.first, "keeps": self.states is not None}, arrays))

    @classmethod
    def decode(cls, data: bytes) -> ShardPart:
        """Return the part that `encode` serialised."""
        header, arrays = _aligned(data)
        states = _under("states/", arrays) if header["keeps"] else None
        positions = arrays["positions"].numpy() if "positions" in arrays else None
        return cls(positions, header["first"], arrays.get("only"), _under("each/", arrays), states)


def _aligned(data: bytes) -> tuple[dict[str, Any], Params]:
    """Return the parts of a message with arrays in plain layout, on which rounding depends."""
    header, arrays = unpack(data)
    return dict(header), {name: plain_layout(array) for name, array in arrays.items()}


NARROW = (torch.int8, torch.int16, torch.int32)
"""Types in which whole numbers travel if all of an array fit, since there is a row for each client."""


def _narrowed(header: dict[str, Any], arrays: Params) -> tuple[dict[str, Any], Params]:
    """Return a message in which whole numbers take few bytes: a range as two numbers, others in a narrow type."""
    ranges, narrow = {}, {}
    for name, array in arrays.items():
        if array.dtype != torch.int64 or not array.numel():
            continue
        low, high = (int(limit) for limit in array.aminmax())
        if array.dim() == 1 and high - low == len(array) - 1 and torch.equal(array, torch.arange(low, high + 1)):
            ranges[name] = [low, high + 1]
            continue
        fits = (kind for kind in NARROW if torch.iinfo(kind).min <= low and high <= torch.iinfo(kind).max)
        if (kind := next(fits, None)) is not None:
            narrow[name] = array.to(kind)
    rest = {name: array for name, array in arrays.items() if name not in ranges}
    return {**header, "ranges": ranges, "narrow": list(narrow)}, rest | narrow


def _widened(header: dict[str, Any], arrays: Params) -> Params:
    """Return the arrays of a message from `_narrowed`."""
    ranges = {name: torch.arange(*limits) for name, limits in header.get("ranges", {}).items()}
    return arrays | {name: arrays[name].to(torch.int64) for name in header.get("narrow", ())} | ranges


def _under(prefix: str, arrays: Params) -> Params:
    return {name.removeprefix(prefix): a for name, a in arrays.items() if name.startswith(prefix)}


# ---- answers ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """Merged answer of one or several shards."""

    reply: Reply
    """Sums and rows of the clients, whose ids are left out."""
    positions: Tensor
    """Positions of these clients among all clients, int64."""
    states: Params | None = None
    """New states of clients, one row for each; None if no client has changed its state."""
    stored: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    """Positions of the clients of `states`."""
    seconds: float = 0.0
    """Time that the computation took, added over shards."""
    error: CoterieError | None = None
    """Failure of the task, which counts instead of the reply."""

    @classmethod
    def failed(cls, error: CoterieError, seconds: float = 0.0) -> Answer:
        """Return the answer of shards that could not reply."""
        return cls(Reply(()), torch.zeros(0, dtype=torch.int64), seconds=seconds, error=error)

    def join(self, other: Answer) -> Answer:
        """Return the merged answer of two neighbours in the tree, of which this one has the first shards."""
        seconds = self.seconds + other.seconds
        if self.error or other.error:
            return replace(self if self.error else other, seconds=seconds)
        reply = merge_answers(
            [each.reply for each in (self, other) if len(each.positions)],
            (),
            (*self.reply.rejected, *other.reply.rejected),
            tuple(sorted({*self.reply.paths, *other.reply.paths})),
        )
        changed = [each for each in (self, other) if each.states is not None]
        return Answer(
            reply,
            torch.cat([self.positions, other.positions]),
            joined_rows([each.states for each in changed if each.states is not None]) if changed else None,
            torch.cat([self.stored, other.stored]),
            seconds,
        )

    def encode(self) -> bytes:
        """Serialise the answer."""
        if self.error is not None:
            return pack(({"error": [error_name(self.error), str(self.error)], "seconds": self.seconds}, {}))
        header, arrays = reply_parts(self.reply)
        arrays = {f"reply/{name}": array for name, array in arrays.items()}
        arrays |= {f"states/{name}": rows for name, rows in (self.states or {}).items()}
        arrays |= {"positions": self.positions, "stored": self.stored}
        header = {"reply": header, "changed": self.states is not None, "seconds": self.seconds}
        return pack(_narrowed(header, arrays))

    @classmethod
    def decode(cls, data: bytes) -> Answer:
        """Return the answer that `encode` serialised."""
        header, arrays = _aligned(data)
        arrays = _widened(header, arrays)
        if "error" in header:
            return cls.failed(named_error(*header["error"]), header["seconds"])
        return cls(
            reply_of(header["reply"], _under("reply/", arrays)),
            arrays["positions"],
            _under("states/", arrays) if header["changed"] else None,
            arrays["stored"],
            header["seconds"],
        )


def serve(group: ClientGroup, common: CommonPart, part: ShardPart) -> Answer:
    """Answer a question for the clients of one shard, in one thread.

    Args:
        group: All clients of the shard.
        common: The part of the question that all shards share.
        part: The part for this shard.
    """
    clock = time.perf_counter()
    clients = group if part.positions is None else group.take(part.positions, remember=False)
    asked = np.arange(len(group.train)) if part.positions is None else part.positions
    if part.states is not None:
        store = ClientStateStore(len(asked))
        store.restore(part.states)
        clients = replace(clients, states=ClientStates(store, np.arange(len(asked))))
    broadcast = replace(common.broadcast, only=part.only, each=part.each).to(np.arange(len(asked)))
    positions = torch.from_numpy(asked) + part.first
    try:
        with one_thread(), torch.set_grad_enabled(common.gradients):
            reply = clients.carries_out(common.task).run(clients, broadcast)
    except CoterieError as error:
        return Answer.failed(error, time.perf_counter() - clock)
    answered = _positions_of(reply.clients, clients.train.ids, positions)
    states = None if part.states is None or clients.states is None else clients.states.store.copy()
    changed = states is not None and not _equal(states, part.states or {})
    return Answer(
        replace(reply, clients=()),
        answered,
        states if changed else None,
        positions if changed else positions[:0],
        time.perf_counter() - clock,
    )


def _positions_of(answered: tuple[ClientId, ...], asked: tuple[ClientId, ...], positions: Tensor) -> Tensor:
    """Return the positions of the clients that answered, in their order."""
    if answered is asked or answered == asked:
        return positions
    place = {client: i for i, client in enumerate(asked)}
    return positions[torch.tensor([place[client] for client in answered], dtype=torch.int64)]


def _equal(one: Params, other: Params) -> bool:
    return one.keys() == other.keys() and all(torch.equal(value, other[name]) for name, value in one.items())


# ---- the engine's side -----------------------------------------------------------------------------------------

AnswerShards = Callable[[bytes, Sequence[tuple[int, bytes]]], Answer]
"""Function that asks shards: it takes the common part, and the number of each asked shard with its part."""


def ask_shards(
    simulation: Simulation,
    cut: Cut,
    task: Task,
    broadcast: Broadcast,
    asked: Positions,
    places: Positions,
    answer: AnswerShards,
) -> tuple[Replies, float]:
    """Ask clients shard by shard, store their states, and return the merged reply and the seconds of computation.

    Args:
        simulation: The clients.
        cut: Division of the clients into shards.
        task: Work for the clients.
        broadcast: Message to the clients.
        asked: Positions of the asked clients.
        places: Places in `asked` of the clients that reply.
        answer: Asks the shards.
    """
    down = broadcast.bytes_for(len(asked))
    parts = cut.parts(asked, places)
    if not parts:
        return Replies(Reply(clients=()), 0, down), 0.0
    assert broadcast.clusters.slots is None, "the server sends all models, and a shard takes those of its clients"
    common = CommonPart(task, replace(broadcast, only=None, each={}), torch.is_grad_enabled()).encode()
    store = simulation.store
    questions = [(s, _part(broadcast, asked, s, part, cut, store).encode()) for s, part in parts]
    found = answer(common, questions)
    if found.error is not None:
        raise found.error
    if store is not None and found.states is not None:
        store.replace_rows(found.stored, found.states)
    reply = _in_order(found, simulation.clients, asked)
    return Replies(reply, reply.nbytes, down), found.seconds


def _part(
    broadcast: Broadcast, asked: Positions, shard: int, places: Positions, cut: Cut, store: ClientStateStore | None
) -> ShardPart:
    at, clients = torch.from_numpy(places), cut.positions(shard)
    some = asked[places]
    return ShardPart(
        None if np.array_equal(some, clients) else some - clients[0],
        int(clients[0]),
        None if broadcast.only is None else broadcast.only[at],
        {name: rows[at] for name, rows in broadcast.each.items()},
        None if store is None else store.rows(torch.from_numpy(some)),
    )


def _in_order(found: Answer, clients: tuple[ClientId, ...], asked: Positions) -> Reply:
    """Return the reply with the ids of its clients, in the order in which they were asked."""
    positions, reply = found.positions, found.reply
    if not bool((np.diff(asked) > 0).all()):
        place = torch.empty(len(clients), dtype=torch.int64)
        place[torch.from_numpy(asked)] = torch.arange(len(asked))
        order = torch.argsort(place[positions], stable=True)
        positions = positions[order]
        reply = replace(reply, rows={name: rows[order] for name, rows in reply.rows.items()})
    everyone = len(positions) == len(clients) and bool((positions == torch.arange(len(clients))).all())
    return replace(reply, clients=clients if everyone else tuple(clients[i] for i in positions.tolist()))
