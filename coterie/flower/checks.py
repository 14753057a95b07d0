"""Decide whether the answer of a node may enter the sums. Each check gives a sentence where it may not."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from flwr.app import RecordDict
from torch import Tensor

from coterie.core.clusters import Clusters, flat
from coterie.core.expected import LARGEST, Expected, Slots, Spec
from coterie.core.messages import ALL, Reply, Slotted
from coterie.core.shard import ClientId
from coterie.errors import InputError
from coterie.flower.untrusted import one_line
from coterie.flower.wire import MOST_BYTES, Answer, read_answer

ROUNDED = 1e-6
"""Part by which sums may differ from what they are compared with."""
LEAST_POOLED, MOST_POOLED = 1e-30, 1e30
"""Sizes of pooled moments with which heads can be solved in float64."""
FEWEST_COMPARED = 3
"""Smallest number of nodes whose changes can be compared."""

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
Named = Iterator[tuple[str, Tensor, Spec]]


@dataclass(frozen=True)
class Asked:
    """What an answer is compared with."""

    task: str
    clusters: Clusters
    """Those that were sent."""
    sizes: Mapping[ClientId, int]
    """Who of the node was asked, with n_i."""
    expected: Expected | None = None
    """Form of the answer; None: only that it is finite and as most others are."""
    trains: bool = False
    """Whether the answer is a change of the clusters' models."""
    most_change: float | None = None
    """How long a change of a model may be, at most."""
    change_factor: float | None = None
    """How many times the median of all nodes' changes it may be, at most."""
    only: Tensor | None = None
    """(m, R) the slots that the clients in `sizes` were sent, or `ALL`; None: every client was sent all."""

    @property
    def most_bytes(self) -> int:
        """Bytes of the arrays of the answer at most."""
        return MOST_BYTES if self.expected is None else self.expected.most_bytes(len(self.sizes))


@dataclass
class Memory:
    """What earlier exchanges of the same run have shown."""

    longest: float = 0.0
    """The largest median of the nodes' changes so far."""
    shapes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """Shapes that only nodes know, by task and name, as they agreed on them first."""


def sort_out(
    contents: Mapping[int, RecordDict], asked: Mapping[int, Asked], memory: Memory | None = None
) -> tuple[dict[int, Answer], dict[int, str]]:
    """Return the answers by node that may be added up, in the order of `asked`, and why the others may not.

    Each must be sound on its own, and must not stand apart from those of the other nodes.
    """
    memory = Memory() if memory is None else memory
    sound: dict[int, Answer] = {}
    refused: dict[int, str] = {}
    for node in (node for node in asked if node in contents):
        try:
            answer = _read(contents[node], asked[node])
            why = why_refused(answer, asked[node], memory)
        except InputError as error:
            refused[node] = f"sent something else: {error}"
        except Exception as error:  # MemoryError included: nothing that one node sends may stop the server
            refused[node] = f"sent what cannot be checked ({one_line(str(error)) or type(error).__name__})"
        else:
            if why is None:
                sound[node] = answer
            else:
                refused[node] = why
    for stands_apart in (_other_form, _not_finite_alone, _changed_too_much):
        replies = {node: answer.reply for node, answer in sound.items() if answer.reply.clients}
        for node, why in stands_apart(replies, asked, memory).items():
            refused[node] = why
            del sound[node]
    return sound, refused


def _read(content: RecordDict, asked: Asked) -> Answer:
    """The answer; one that no client's work is in has no arrays either."""
    answer = read_answer(content, asked.task, len(asked.sizes), asked.most_bytes)
    if answer.reply.clients:
        return answer
    return replace(answer, reply=Reply((), rejected=answer.reply.rejected, paths=answer.reply.paths))


# ---- one answer on its own ---------------------------------------------------------------------------------------


def why_refused(answer: Answer, asked: Asked, memory: Memory | None = None) -> str | None:
    """Return the first fault of an answer on its own; None: it is sound."""
    return next(_faults(answer, asked, memory or Memory()), None)


def _faults(answer: Answer, asked: Asked, memory: Memory) -> Iterator[str]:
    reply = answer.reply
    yield from _foreign(answer, asked)
    yield from _misshapen(reply, asked.expected)
    if not reply.clients:
        return
    if asked.expected is None:
        yield from _not_finite(reply)
        return
    yield from _other_names(reply, asked.expected)
    for name, value, spec in _named(reply, asked.expected):
        yield from _other_shape(asked, memory, name, value, spec)
        yield from _odd_values(name, value, spec)
    yield from _odd_totals(reply, asked, asked.expected)
    yield from _odd_moments(reply)
    if asked.trains:
        yield from _odd_models(reply, asked)


def _foreign(answer: Answer, asked: Asked) -> Iterator[str]:
    reply = answer.reply
    named = [*reply.clients, *reply.rejected]
    foreign = [c for c in (*named, *answer.lost) if c not in asked.sizes]
    if foreign:
        yield f"answers for client {foreign[0]!r}, which was not asked there"
    if len(set(named)) < len(named) or len(set(answer.lost)) < len(answer.lost):
        yield "names a client twice"


def _misshapen(reply: Reply, form: Expected | None) -> Iterator[str]:
    """Rows and slots that do not fit each other."""
    for name, value in reply.rows.items():
        if value.dim() == 0 or len(value) != len(reply.clients):
            yield f"has {name!r} of shape {tuple(value.shape)} for {len(reply.clients)} clients"
    for name, part in reply.slotted.items():
        count = len(part.slots) if part.slots.dim() == 1 else -1
        arrays = {"slots": part.slots, "counts": part.counts, **part.arrays}
        odd = [key for key, value in arrays.items() if value.dim() == 0 or len(value) != count]
        if odd or part.slots.dtype != torch.int64 or part.counts.dtype != torch.int64 or part.counts.dim() != 1:
            yield f"has slots of {name!r} that do not fit each other ({', '.join(odd) or 'dtype'})"
        elif not bool((part.slots.diff() > 0).all()):
            yield f"has slots of {name!r} that are not ascending"
        elif bool(((part.counts < 0) | (part.counts > len(reply.clients))).any()):
            yield f"has counts of {name!r} that are negative, or more than its {len(reply.clients)} clients"
        known = None if form is None else form.slotted.get(name)
        if known is not None and count and not 0 <= int(part.slots[0]) <= int(part.slots[-1]) < known.count:
            yield f"has slot {int(part.slots[-1])} of {name!r}, but there are {known.count}"


def _other_names(reply: Reply, form: Expected) -> Iterator[str]:
    """Arrays that were not asked for, and those that are not there."""
    found = {f"sums/{name}" for name in reply.sums} | {f"rows/{name}" for name in reply.rows}
    wanted = {f"sums/{name}" for name in form.sums} | {f"rows/{name}" for name in form.rows}
    for name in {*reply.slotted, *form.slotted}:
        part, slots = reply.slotted.get(name), form.slotted.get(name)
        found |= {f"{name}/{key}" for key in part.arrays} if part is not None else set()
        wanted |= {f"{name}/{key}" for key in slots.arrays} if slots is not None else set()
        if slots is None:
            yield f"has sums {name!r} that nobody asked for"
    for name in sorted(wanted - found):
        yield f"does not say {name!r}"
    for name in sorted(found - wanted):
        yield f"has {name!r}, which nobody asked for"


def _named(reply: Reply, form: Expected) -> Named:
    """Every array with its name and form, those with the axis of clients or slots after the others."""
    for name, spec in form.sums.items():
        yield f"sums/{name}", reply.sums[name], spec
    for name, spec in form.rows.items():
        yield f"rows/{name}", reply.rows[name], spec
    for part, slots in form.slotted.items():
        for name, spec in slots.arrays.items():
            yield f"{part}/{name}", reply.slotted[part].arrays[name], spec


def _shape(name: str, value: Tensor) -> tuple[int, ...]:
    """Without the axis of clients or slots."""
    return tuple(value.shape) if name.startswith("sums/") else tuple(value.shape[1:])


def _other_shape(asked: Asked, memory: Memory, name: str, value: Tensor, spec: Spec) -> Iterator[str]:
    shape = _shape(name, value)
    if not spec.fits(shape, value.dtype):
        yield f"has {name!r} as {_said(shape, value.dtype)}, but the run has {spec}"
    known = memory.shapes.get((asked.task, name)) if None in spec.shape else None
    if known is not None and _unknown(spec, shape) != known:
        yield f"has {name!r} of shape {shape}, but it had other lengths before: {known}"


def _unknown(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The lengths that only nodes know."""
    return tuple(length for length, wanted in zip(shape, spec.shape, strict=True) if wanted is None)


def _odd_values(name: str, value: Tensor, spec: Spec) -> Iterator[str]:
    """Values that are not finite where they must be, or out of range."""
    bad = _bad(value)
    allowed = bad
    if spec.missing == "never":
        allowed = torch.zeros_like(bad)
    elif spec.missing == "vector":
        allowed = (~value.isfinite()).any(dim=-1, keepdim=True).expand_as(bad)
        if bool(allowed.flatten(1).all(dim=1).any()):
            yield f"has values in {name!r} that are not finite in any start"
    if bool((bad & ~allowed).any()):
        odd = value[bad & ~allowed]
        largest = f"larger than {LARGEST[value.dtype]:g}"
        yield f"has values in {name!r} that are {largest if bool(odd.isfinite().all()) else 'not finite'}"
    slack = ROUNDED if value.is_floating_point() else 0
    outside = ~allowed & ((value < spec.low - slack) | (value > spec.high + slack))
    if bool(outside.any()):
        yield f"has {_number(value[outside][0])} in {name!r}, but values lie between {spec.low:g} and {spec.high:g}"
    if spec.whole and bool((value != value.round()).any()):
        yield f"has {name!r} that are not whole numbers"


def _bad(value: Tensor) -> Tensor:
    """Where values are not finite or so large that their sums would not be."""
    if not value.is_floating_point():
        return torch.zeros(value.shape, dtype=torch.bool)
    return ~(value.abs() <= LARGEST[value.dtype])


def _number(value: Tensor) -> str:
    return f"{float(value):g}"


def _odd_totals(reply: Reply, asked: Asked, form: Expected) -> Iterator[str]:
    """More samples, mass or weight than clients have."""
    sizes = torch.tensor([asked.sizes[c] for c in reply.clients], dtype=torch.float64)
    most = {"samples": float(sizes.sum()), "mass": float(len(sizes) if form.uniform else sizes.sum())}
    for name, spec in form.sums.items():
        if spec.total and (total := float(reply.sums[name].max())) > most[spec.total] * (1 + ROUNDED):
            yield f"counts for {total:g} samples in {name!r}, but its clients have {most[spec.total]:g}"
    if asked.trains and float(reply.sums["samples"]) < 1:
        yield "counts for no sample at all"
    for name, spec in form.rows.items():
        if not spec.total:
            continue
        value = reply.rows[name].double()
        totals = value.flatten(1 + spec.axes).sum(dim=-1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        each = torch.ones_like(sizes) if spec.total == "one" else sizes
        if bool((totals > each.reshape(-1, *(1,) * (totals.dim() - 1)) * (1 + ROUNDED) + ROUNDED).any()):
            yield f"has {name!r} that sum to {float(totals.max()):g} for a client, which is more than it has"
    for part, slots in form.slotted.items():
        yield from _odd_slot_totals(part, reply.slotted[part], slots, asked.clusters, form.uniform, most)


def _odd_slot_totals(
    part: str, sums: Slotted, slots: Slots, clusters: Clusters, uniform: bool, most: Mapping[str, float]
) -> Iterator[str]:
    for name, spec in slots.arrays.items():
        if not spec.total:
            continue
        total = float(_by_restart(sums.slots, sums.arrays[name], clusters).max())
        if total > most[spec.total] * (1 + ROUNDED):
            what = "clients" if spec.total == "mass" and uniform else "samples"
            yield f"counts for {total:g} {what} in {part!r}, but there are {most[spec.total]:g}"


def _by_restart(slots: Tensor, values: Tensor, clusters: Clusters) -> Tensor:
    """(R,) the values of all slots of a restart together."""
    restarts = torch.zeros(clusters.restarts, dtype=torch.float64)
    return restarts.index_add_(0, torch.div(slots, clusters.K, rounding_mode="floor"), values.double())


def _odd_moments(reply: Reply) -> Iterator[str]:
    """Sums from which means or heads would not be finite."""
    moments = reply.sums.get("moments")
    if moments is not None and moments.dim() == 3:
        count, width = moments[..., :1], (moments.shape[-1] - 1) // 2
        squares = moments[..., 1 + width :]
        if bool((count < 0).any()) or bool((squares < -ROUNDED * squares.abs().max()).any()):
            yield "has negative counts or squares in 'moments'"
        if bool((moments[..., 1:].abs() > count * LARGEST[torch.float64]).any()):
            yield "has 'moments' whose mean is not finite"
    if "pooled" in reply.slotted:
        for name, value in reply.slotted["pooled"].arrays.items():
            largest = float(value.abs().max()) if value.numel() else 0.0
            if name != "mass" and largest != 0 and not LEAST_POOLED <= largest <= MOST_POOLED:
                yield f"has {name!r} of size {largest:g}, with which heads cannot be solved"


def _odd_models(reply: Reply, asked: Asked) -> Iterator[str]:
    """Soft weights without a model, and changes that are too long on their own."""
    if "weights" in reply.rows and "model" in reply.rows:
        alone = ~reply.rows["weights"].isfinite().all(dim=-1) & reply.rows["model"].isfinite().all(dim=-1)
        if bool(alone.any()):
            yield "has values in 'rows/weights' that are not finite"
    yield from _not_as_assigned(reply, asked)
    yield from _diverged_quietly(reply, asked.clusters.restarts)
    length = longest_change(reply, asked.clusters)
    largest = min((LARGEST.get(p.dtype, 0.0) for p in asked.clusters.params.values()), default=math.inf)
    if not length <= largest:
        yield f"changes a model by {length:.3g}, which is not finite or larger than {largest:g}"
    if asked.most_change is not None and length > asked.most_change:
        yield f"changes a model by {length:.3g}, but at most {asked.most_change:g} is allowed"


def _not_as_assigned(reply: Reply, asked: Asked) -> Iterator[str]:
    """Work on other clusters than those that the server assigned to its clients."""
    if asked.only is None:
        return
    place = {client: row for row, client in enumerate(asked.sizes)}
    only = asked.only[torch.tensor([place[client] for client in reply.clients])]
    given = (only != ALL).all(dim=1)
    if bool((reply.rows["cluster"][given] != only[given] % asked.clusters.K).any()):
        yield "has clients in other clusters than they were assigned to"
    sums = reply.slotted.get("clusters")
    if sums is not None and bool(given.all()) and not bool(torch.isin(sums.slots, only).all()):
        yield "has changes of models that none of its clients was sent"


def _diverged_quietly(reply: Reply, restarts: int) -> Iterator[str]:
    """With several starts a vector may be missing in one that diverged; then its loss is not finite either."""
    loss = reply.sums.get("loss")
    for name in ("change", "model"):
        if loss is None or restarts == 1 or name not in reply.rows or reply.rows[name].shape[1] != restarts:
            continue
        missing = ~reply.rows[name].isfinite().all(dim=-1).all(dim=0)
        if bool((missing & loss.isfinite()).any()):
            yield f"has values in 'rows/{name}' that are not finite, but a finite loss there"


def _not_finite(reply: Reply) -> Iterator[str]:
    """For tasks of somebody's own, whose answers have a form that nobody here knows."""
    arrays = {**reply.sums, **reply.rows}
    arrays |= {f"{name}/{key}": value for name, part in reply.slotted.items() for key, value in part.arrays.items()}
    bad = [name for name, value in arrays.items() if bool(_bad(value).any())]
    if bad:
        yield f"has values in {bad[0]!r} that are not finite"


# ---- compared with the other answers -----------------------------------------------------------------------------


def _other_form(replies: Mapping[int, Reply], asked: Mapping[int, Asked], memory: Memory) -> dict[int, str]:
    """Answers that do not look as those of most nodes do; the form that they agree on is remembered."""
    counted = Counter(signature(reply) for reply in replies.values())
    if not counted:
        return {}
    usual = counted.most_common(1)[0][0]
    first = next(node for node, reply in replies.items() if signature(reply) == usual)
    form = asked[first].expected
    for name, value, spec in _named(replies[first], form) if form is not None else ():
        if None in spec.shape:
            memory.shapes.setdefault((asked[first].task, name), _unknown(spec, _shape(name, value)))
    return {node: unusual(reply, usual) for node, reply in replies.items() if signature(reply) != usual}


def _not_finite_alone(replies: Mapping[int, Reply], asked: Mapping[int, Asked], memory: Memory) -> dict[int, str]:
    """Answers that are not finite in a place where those of half of the nodes or more are."""
    bad: dict[str, dict[int, Tensor]] = {}
    for node, reply in replies.items():
        form = asked[node].expected
        for name, value, spec in _named(reply, form) if form is not None else ():
            if spec.missing == "shared":
                bad.setdefault(name, {})[node] = _bad(value) if name.startswith("sums/") else _bad(value).any(dim=0)
    found: dict[int, str] = {}
    for name, by_node in bad.items():
        common = torch.stack([mask.double() for mask in by_node.values()]).mean(dim=0) > 0.5
        for node, mask in by_node.items():
            if bool((mask & ~common).any()):
                found.setdefault(node, f"has values in {name!r} that are not finite, but those of most nodes are")
    return found


def _changed_too_much(replies: Mapping[int, Reply], asked: Mapping[int, Asked], memory: Memory) -> dict[int, str]:
    """Changes that are many times as long as is usual in this exchange, as they were before, and as the models are."""
    factors = {asked[node].change_factor for node in replies if asked[node].trains}
    if len(factors) != 1 or (factor := factors.pop()) is None:
        return {}
    clusters = next(asked[node].clusters for node in replies)
    lengths = {node: longest_change(reply, clusters) for node, reply in replies.items()}
    if len(lengths) < FEWEST_COMPARED:
        return {}
    memory.longest = max(memory.longest, float(np.median(list(lengths.values()))))
    usual, models = memory.longest, float(flat(clusters.params).double().norm(dim=1).max())
    most = max(factor * usual, models)
    return {
        node: f"changes a model by {length:.3g}, which is more than {factor:g} times what is usual ({usual:.3g})"
        for node, length in lengths.items()
        if 0 < most < length
    }


def longest_change(reply: Reply, clusters: Clusters) -> float:
    """The length of the longest change that a node's clients made of a model: in their mean, or each where they say.

    Who sends a model of its own has changed the cluster's that is nearest.
    """
    lengths = [0.0]
    if "change" in reply.rows:
        lengths.append(_largest(reply.rows["change"].double().norm(dim=-1)))
    if "model" in reply.rows:
        before = flat(clusters.params).double()
        apart = torch.cdist(reply.rows["model"].double().flatten(0, -2), before).amin(dim=-1)
        lengths.append(_largest(apart))
    sums = reply.slotted.get("clusters")
    if sums is not None:
        by_restart = _by_restart(sums.slots, sums.arrays["mass"], clusters)
        lengths.append(_longest_mean(sums, sums.arrays["mass"]))
        common = [part for name, part in reply.slotted.items() if name in ("body", "overall")]
        lengths += [_longest_mean(part, by_restart[part.slots]) for part in common]
    return max(lengths)


def _largest(lengths: Tensor) -> float:
    """Of those that are known: a start that diverged has none."""
    known = lengths[~lengths.isnan()]
    return float(known.max()) if len(known) else 0.0


def _longest_mean(part: Slotted, mass: Tensor) -> float:
    """The length of the longest of the summed changes, each divided by its mass (S,)."""
    changes = flat({name: value.double() for name, value in part.arrays.items() if name != "mass"})
    lengths = changes.norm(dim=1) / mass.double().clamp_min(torch.finfo(torch.float64).tiny)
    return float(lengths.max()) if len(lengths) else 0.0


def signature(reply: Reply) -> Signature:
    """Names, shapes and types of everything in an answer, without the axes of clients and slots."""
    parts = [(f"sums/{name}", tuple(value.shape), value.dtype) for name, value in reply.sums.items()]
    parts += [(f"rows/{name}", tuple(value.shape[1:]), value.dtype) for name, value in reply.rows.items()]
    for name, part in reply.slotted.items():
        parts += [(f"{name}/{key}", tuple(value.shape[1:]), value.dtype) for key, value in part.arrays.items()]
    return tuple(sorted(parts, key=lambda part: part[0]))


def unusual(reply: Reply, expected: Signature) -> str:
    """Say how an answer differs from what most sent."""
    found, wanted = set(signature(reply)), set(expected)
    name = sorted(part[0] for part in found ^ wanted)[0]
    return f"has {name!r} otherwise than most answers: {_listed(found, name)} instead of {_listed(wanted, name)}"


def _listed(parts: set[tuple[str, tuple[int, ...], torch.dtype]], name: str) -> str:
    return next((_said(shape, dtype) for n, shape, dtype in parts if n == name), "nothing")


def _said(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
