"""The messages of an exchange: Broadcast to the clients, Reply from them, and the number of bytes of both.

Payloads are named arrays and plain scalars. Bytes are counted from the message: array bytes plus 8 for a
scalar or a slot index, the same in every engine. A task's settings, K and the number of restarts are agreed once,
before the first round, and are not counted; nor is what a rejected client sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_save
from torch import Tensor

from coterie.core.clusters import Clusters, Params, row_bytes
from coterie.core.shard import ClientId, Positions

ALL = -1
"""In `Broadcast.only`: this client gets every model."""

Parts = tuple[dict[str, Any], Params]
"""A message in two parts: a header, which is JSON, and named arrays."""


@dataclass(frozen=True)
class Broadcast:
    """Everything that the server sends in one exchange."""

    round: int
    clusters: Clusters
    only: Tensor | None = None
    """(m, L) the slots that a client is sent, in a round one for each restart, or `ALL`; None: all get every model."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    each: Params = field(default_factory=dict)
    """Arrays with one row per client, of which each client gets its own: {name: (m, ...)}."""
    common: Params = field(default_factory=dict)
    """Arrays that all clients get in addition to the models."""

    def to(self, positions: Positions) -> Broadcast:
        """Return the part for these of the m asked clients, without models that none of them is sent."""
        chosen = torch.from_numpy(positions)
        part = replace(self, each={name: rows[chosen] for name, rows in self.each.items()})
        if self.only is None:
            return part
        only = self.only[chosen]
        if bool((only == ALL).any()):
            return replace(part, only=only)
        return replace(part, only=only, clusters=self.clusters.keep(torch.unique(only)))

    def bytes_for(self, count: int) -> int:
        """Return the number of bytes sent if each of `count` clients gets its own message."""
        clusters = self.clusters
        fixed = 8 * (1 + len(self.scalars)) + clusters.restarts * clusters.common_bytes + row_bytes(self.each)
        fixed += sum(array.numel() * array.element_size() for array in self.common.values())
        every = clusters.restarts * clusters.K * clusters.slot_bytes
        if self.only is None:
            return count * (fixed + every)
        alone = self.only.shape[1] * (clusters.slot_bytes + 8)
        sent_all = int((self.only == ALL).any(dim=1).sum())
        return count * fixed + sent_all * every + (count - sent_all) * alone


@dataclass(frozen=True)
class Slotted:
    """A sum with a slot axis of which each client fills only its own slots.

    Only those slots travel and are counted; the index is visible to the server.
    """

    slots: Tensor
    """(S,) ascending."""
    arrays: Params
    """{name: (S, ...)}, added over clients."""
    counts: Tensor
    """(S,) how many contributions went into each slot."""

    @property
    def nbytes(self) -> int:
        return int(self.counts.sum()) * (row_bytes(self.arrays) + 8)


@dataclass(frozen=True)
class Reply:
    """Everything that one or many clients send in one exchange. Nothing in it has a sample axis."""

    clients: tuple[ClientId, ...]
    """Clients that answered and were accepted, in the order of the rows."""
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    """Added over clients."""
    slotted: Mapping[str, Slotted] = field(default_factory=dict)
    """Added over clients, slot by slot."""
    rows: Params = field(default_factory=dict)
    """Arrays with one row per client: {name: (m, ...)}. A method declares every name it uses here."""
    rejected: tuple[ClientId, ...] = ()
    """Clients whose contribution was not finite, and so left out."""
    paths: tuple[str, ...] = ()
    """Names of the computation paths that the learner took, sorted; for the record only, and not counted."""

    @property
    def nbytes(self) -> int:
        """Number of bytes, as if each client had sent its own message."""
        sums = sum(s.numel() * s.element_size() for s in self.sums.values())
        rows = sum(r.numel() * r.element_size() for r in self.rows.values())
        return len(self.clients) * sums + rows + sum(s.nbytes for s in self.slotted.values())

    def only(self, sound: Tensor) -> Reply:
        """Return a reply of rows with the clients that are `sound` (m,) only; the others are rejected."""
        if bool(sound.all()):
            return self
        flags = sound.tolist()
        accepted = tuple(client for client, good in zip(self.clients, flags, strict=True) if good)
        rejected = tuple(client for client, good in zip(self.clients, flags, strict=True) if not good)
        rows = {name: value[sound] for name, value in self.rows.items()} if accepted else {}
        return replace(self, clients=accepted, rows=rows, rejected=(*self.rejected, *rejected))


def merge_slotted(parts: Sequence[Slotted]) -> Slotted:
    """Return the sum of slotted sums that may hold different slots."""
    if len(parts) == 1:
        return parts[0]
    slots, where = torch.unique(torch.cat([p.slots for p in parts]), return_inverse=True)
    counts = torch.zeros(len(slots), dtype=torch.int64).index_add_(0, where, torch.cat([p.counts for p in parts]))
    arrays = {}
    for name, first in parts[0].arrays.items():
        total = torch.zeros((len(slots), *first.shape[1:]), dtype=first.dtype, device=first.device)
        for part, rows in zip(parts, where.split([len(p.slots) for p in parts]), strict=True):
            total.index_add_(0, rows.to(first.device), part.arrays[name])
        arrays[name] = total
    return Slotted(slots, arrays, counts)


def merge(replies: Sequence[Reply]) -> Reply:
    """Return one reply for many: sums added in the given order, rows concatenated."""
    if len(replies) == 1:
        return replies[0]
    answered = [r for r in replies if r.clients]
    rejected = tuple(c for r in replies for c in r.rejected)
    paths = tuple(sorted({path for r in replies for path in r.paths}))
    if not answered:
        return Reply(clients=(), rejected=rejected, paths=paths)
    first = answered[0]
    return Reply(
        clients=tuple(c for r in answered for c in r.clients),
        sums={name: torch.stack([r.sums[name] for r in answered]).sum(dim=0) for name in first.sums},
        slotted={name: merge_slotted([r.slotted[name] for r in answered]) for name in first.slotted},
        rows={name: torch.cat([r.rows[name] for r in answered]) for name in first.rows},
        rejected=rejected,
        paths=paths,
    )


# ---- in two parts: named arrays, and a header for the rest ---------------------------------------------------


def _named(prefix: str, arrays: Mapping[str, Tensor]) -> Params:
    return {f"{prefix}/{name}": a for name, a in arrays.items()}


def _under(prefix: str, arrays: Params) -> Params:
    return {name.removeprefix(f"{prefix}/"): a for name, a in arrays.items() if name.startswith(f"{prefix}/")}


def broadcast_parts(broadcast: Broadcast) -> Parts:
    """Return a broadcast as a header and named arrays."""
    c = broadcast.clusters
    header = {"round": broadcast.round, "K": c.K, "restarts": c.restarts, "scalars": dict(broadcast.scalars)}
    arrays = _named("params", c.params) | _named("body", c.shared) | _named("each", broadcast.each)
    arrays |= _named("common", broadcast.common) | _named("overall", c.overall or {})
    if broadcast.only is not None and not bool((broadcast.only == ALL).all()):
        arrays["only"] = broadcast.only  # it also tells which slots are in the message
    return header, arrays


def broadcast_of(header: Mapping[str, Any], arrays: Params) -> Broadcast:
    """Return the broadcast of these parts; the inverse of `broadcast_parts`."""
    only = arrays.get("only")
    clusters = Clusters(
        params=_under("params", arrays),
        body=_under("body", arrays) or None,
        K=header["K"],
        restarts=header["restarts"],
        overall=_under("overall", arrays) or None,
        slots=None if only is None or bool((only == ALL).any()) else torch.unique(only),
    )
    each, common = _under("each", arrays), _under("common", arrays)
    return Broadcast(header["round"], clusters, only, header["scalars"], each, common)


def reply_parts(reply: Reply) -> Parts:
    """Return a reply as a header and named arrays."""
    header: dict[str, Any] = {
        "clients": reply.clients,
        "rejected": reply.rejected,
        "slotted": list(reply.slotted),
        "paths": reply.paths,
    }
    arrays = _named("sums", reply.sums) | _named("rows", reply.rows)
    for name, s in reply.slotted.items():
        arrays |= _named(f"slotted/{name}", s.arrays)
        arrays[f"slots/{name}"] = s.slots
        if not bool((s.counts == 1).all()):  # a single client counts once in each of its slots
            arrays[f"counts/{name}"] = s.counts
    return header, arrays


def reply_of(header: Mapping[str, Any], arrays: Params) -> Reply:
    """Return the reply of these parts; raise ValueError for an array that has no place in a reply."""
    names = header["slotted"]
    places = ("sums/", "rows/", *(f"slotted/{name}/" for name in names))
    single = {f"{kind}/{name}" for kind in ("slots", "counts") for name in names}
    odd = [name for name in arrays if name not in single and not name.startswith(places)]
    if odd:
        raise ValueError(f"array {odd[0]!r} has no place in a reply")
    slotted = {}
    for name in names:
        slots = arrays[f"slots/{name}"]
        counts = arrays.get(f"counts/{name}", torch.ones_like(slots))
        slotted[name] = Slotted(slots, _under(f"slotted/{name}", arrays), counts)
    return Reply(
        tuple(header["clients"]),
        _under("sums", arrays),
        slotted,
        _under("rows", arrays),
        tuple(header["rejected"]),
        tuple(header["paths"]),
    )


# ---- through bytes: safetensors for arrays, JSON for the header; nothing is ever pickled --------------------

_JSON = "coterie"


def _pack(parts: Parts) -> bytes:
    header, arrays = parts
    contiguous = {name: a.detach().cpu().contiguous().clone() for name, a in arrays.items()}  # none may share memory
    return safetensors_save(contiguous, metadata={_JSON: json.dumps(header)})


def _unpack(data: bytes) -> Parts:
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    return json.loads(metadata[_JSON]), safetensors_load(data)


def encode_broadcast(broadcast: Broadcast) -> bytes:
    """Return a broadcast as bytes."""
    return _pack(broadcast_parts(broadcast))


def decode_broadcast(data: bytes) -> Broadcast:
    """Return the broadcast that `encode_broadcast` encoded."""
    return broadcast_of(*_unpack(data))


def encode_reply(reply: Reply) -> bytes:
    """Return a reply as bytes."""
    return _pack(reply_parts(reply))


def decode_reply(data: bytes) -> Reply:
    """Return the reply that `encode_reply` encoded."""
    return reply_of(*_unpack(data))
