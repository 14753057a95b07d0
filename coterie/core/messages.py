"""Messages of an exchange: `Broadcast` to the clients and `Reply` from them, with their sizes in bytes.

Messages consist of named arrays and scalars. The number of bytes is computed from the message in the same way on every
engine: the bytes of the arrays plus 8 for each scalar or slot index. The settings of a task, K and the number of
restarts are agreed before the first round and are not counted; neither are rejected replies.
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
"""Entry of `Broadcast.only` for a client that receives all models."""

Parts = tuple[dict[str, Any], Params]
"""A message in two parts: a header with JSON values, and named arrays."""


@dataclass(frozen=True)
class Broadcast:
    """Message from the server to the m clients of one exchange."""

    round: int
    """Number of the round."""
    clusters: Clusters
    """Models of the clusters."""
    only: Tensor | None = None
    """Slots of the models that each client receives, (m, L), or `ALL`; in a round, one slot for each restart. None:
    every client receives all models."""
    scalars: Mapping[str, float] = field(default_factory=dict)
    """Scalars by name, such as the learning rate."""
    each: Params = field(default_factory=dict)
    """Arrays with one row for each client, {name: (m, ...)}; every client receives its row."""
    common: Params = field(default_factory=dict)
    """Arrays that every client receives in addition to the models."""

    def to(self, positions: Positions) -> Broadcast:
        """Return the message for some of the m clients, without models that none of them receives.

        Args:
            positions: Positions among the m clients.
        """
        chosen = torch.from_numpy(positions)
        part = replace(self, each={name: rows[chosen] for name, rows in self.each.items()})
        if self.only is None:
            return part
        only = self.only[chosen]
        if bool((only == ALL).any()):
            return replace(part, only=only)
        return replace(part, only=only, clusters=self.clusters.keep(torch.unique(only)))

    def bytes_for(self, count: int) -> int:
        """Return the number of bytes if each of `count` clients receives its own message."""
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
    """Sums over clients with a slot axis, to which each client contributes in some of the slots.

    A client sends only these slots with their indices, which the server therefore sees.
    """

    slots: Tensor
    """Slots in ascending order, (S,)."""
    arrays: Params
    """Sums over clients, {name: (S, ...)}."""
    counts: Tensor
    """Number of clients that contributed to each slot, (S,)."""

    @property
    def nbytes(self) -> int:
        """Number of bytes, as if each client had sent its own message."""
        return int(self.counts.sum()) * (row_bytes(self.arrays) + 8)


@dataclass(frozen=True)
class Reply:
    """Message from one or several clients to the server. No array has an axis over samples.

    Example:
        >>> import torch
        >>> from coterie.extend import Reply
        >>> reply = Reply(clients=("a", "b"), rows={"loss": torch.tensor([0.5, 0.7])})
        >>> reply.nbytes
        8
    """

    clients: tuple[ClientId, ...]
    """Clients that replied and were accepted, in the order of the rows."""
    sums: Mapping[str, Tensor] = field(default_factory=dict)
    """Arrays that are summed over clients."""
    slotted: Mapping[str, Slotted] = field(default_factory=dict)
    """Arrays that are summed over clients, slot by slot."""
    rows: Params = field(default_factory=dict)
    """Arrays with one row for each client, {name: (m, ...)}. A method declares the names of all rows that it uses."""
    rejected: tuple[ClientId, ...] = ()
    """Clients whose reply was left out because it was not finite."""
    paths: tuple[str, ...] = ()
    """Names of the computation paths that the learner took, sorted; for the record only, not counted in bytes."""

    @property
    def nbytes(self) -> int:
        """Number of bytes, as if each client had sent its own message."""
        sums = sum(s.numel() * s.element_size() for s in self.sums.values())
        rows = sum(r.numel() * r.element_size() for r in self.rows.values())
        return len(self.clients) * sums + rows + sum(s.nbytes for s in self.slotted.values())

    def only(self, valid: Tensor) -> Reply:
        """Return the reply without invalid rows, whose clients become rejected; for replies without sums.

        Args:
            valid: Whether each client's rows are valid, (m,).
        """
        if bool(valid.all()):
            return self
        flags = valid.tolist()
        accepted = tuple(client for client, good in zip(self.clients, flags, strict=True) if good)
        rejected = tuple(client for client, good in zip(self.clients, flags, strict=True) if not good)
        rows = {name: value[valid] for name, value in self.rows.items()} if accepted else {}
        return replace(self, clients=accepted, rows=rows, rejected=(*self.rejected, *rejected))


def merge_slotted(parts: Sequence[Slotted]) -> Slotted:
    """Return the total of slotted sums, which may have different slots."""
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
    """Merge replies into one: sums are added in the given order, rows are concatenated."""
    if len(replies) == 1:
        return replies[0]
    return merge_answers(
        [r for r in replies if r.clients],
        tuple(c for r in replies for c in r.clients),
        tuple(c for r in replies for c in r.rejected),
        tuple(sorted({path for r in replies for path in r.paths})),
    )


def merge_answers(
    answered: Sequence[Reply], clients: tuple[ClientId, ...], rejected: tuple[ClientId, ...], paths: tuple[str, ...]
) -> Reply:
    """Merge the arrays of replies that contain at least one client each.

    Args:
        answered: The replies; their clients are not read.
        clients: Clients of the merged reply.
        rejected: Rejected clients of the merged reply.
        paths: Computation paths of the merged reply.
    """
    if not answered:
        return Reply(clients=(), rejected=rejected, paths=paths)
    first = answered[0]
    return Reply(
        clients=clients,
        sums={name: torch.stack([r.sums[name] for r in answered]).sum(dim=0) for name in first.sums},
        slotted={name: merge_slotted([r.slotted[name] for r in answered]) for name in first.slotted},
        rows={name: torch.cat([r.rows[name] for r in answered]) for name in first.rows},
        rejected=rejected,
        paths=paths,
    )


# ---- conversion to a header and named arrays -----------------------------------------------------------------


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
        arrays["only"] = broadcast.only  # also determines the slots in the message
    return header, arrays


def broadcast_of(header: Mapping[str, Any], arrays: Params) -> Broadcast:
    """Return the broadcast with these parts; the inverse of `broadcast_parts`."""
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
        if not bool((s.counts == 1).all()):  # in the reply of a single client, all counts are 1
            arrays[f"counts/{name}"] = s.counts
    return header, arrays


def reply_of(header: Mapping[str, Any], arrays: Params) -> Reply:
    """Return the reply with these parts; the inverse of `reply_parts`.

    Raises:
        ValueError: if an array does not belong to a reply.
    """
    names = header["slotted"]
    places = ("sums/", "rows/", *(f"slotted/{name}/" for name in names))
    single = {f"{kind}/{name}" for kind in ("slots", "counts") for name in names}
    unexpected = [name for name in arrays if name not in single and not name.startswith(places)]
    if unexpected:
        raise ValueError(f"array {unexpected[0]!r} has no place in a reply")
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


# ---- conversion to bytes: safetensors for arrays, JSON for the header, no pickle ----------------------------

_JSON = "coterie"


def pack(parts: Parts) -> bytes:
    """Serialise a message in two parts."""
    header, arrays = parts
    # safetensors refuses tensors that share memory
    contiguous = {name: a.detach().cpu().contiguous().clone() for name, a in arrays.items()}
    return safetensors_save(contiguous, metadata={_JSON: json.dumps(header)})


def unpack(data: bytes) -> Parts:
    """Return the two parts that `pack` serialised."""
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    return json.loads(metadata[_JSON]), safetensors_load(data)


def encode_broadcast(broadcast: Broadcast) -> bytes:
    """Serialise a broadcast."""
    return pack(broadcast_parts(broadcast))


def decode_broadcast(data: bytes) -> Broadcast:
    """Return the broadcast that `encode_broadcast` serialised."""
    return broadcast_of(*unpack(data))


def encode_reply(reply: Reply) -> bytes:
    """Serialise a reply."""
    return pack(reply_parts(reply))


def decode_reply(data: bytes) -> Reply:
    """Return the reply that `encode_reply` serialised."""
    return reply_of(*unpack(data))
