"""Checks that the answer of a node must pass before the server aggregates it. A failed check gives a reason."""

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
"""Relative rounding error allowed in sums."""
LEAST_POOLED, MOST_POOLED = 1e-30, 1e30
"""Range of the absolute values of pooled moments with which heads can be solved in float64."""
FEWEST_COMPARED = 3
"""Smallest number of nodes whose changes can be compared."""

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
Named = Iterator[tuple[str, Tensor, Spec]]


@dataclass(frozen=True)
class SentRequest:
    """The request that a node was sent, as far as its answer is checked against it."""

    task: str
    clusters: Clusters
    """Models that were sent."""
    sizes: Mapping[ClientId, int]
    """Number of training samples n_i of each client of the node that was asked."""
    expected: Expected | None = None
    """Form of the answer; None: the answer must only be finite and have the form of most other answers."""
    trains: bool = False
    """Whether the answer is a change of the clusters' models."""
    most_change: float | None = None
    """Largest allowed norm of a change of a model."""
    change_factor: float | None = None
    """Largest allowed ratio of the norm of a change to the median over all nodes."""
    only: Tensor | None = None
    """Slots that the clients in `sizes` were sent, or `ALL`, (m, R); None: every client was sent all slots."""

    @property
    def most_bytes(self) -> int:
        """Largest allowed number of bytes of the arrays of the answer."""
        return MOST_BYTES if self.expected is None else self.expected.most_bytes(len(self.sizes))


@dataclass
class CheckHistory:
    """Facts about the answers of earlier exchanges of the same run."""

    longest: float = 0.0
    """Largest median of the norms of the nodes' changes so far."""
    shapes: dict[tuple[str, str], tuple[int, ...]] = field(default_factory=dict)
    """Lengths that only nodes know, by task and array, as the nodes first agreed on them."""


def check_answers(
    contents: Mapping[int, RecordDict], sent: Mapping[int, SentRequest], history: CheckHistory | None = None
) -> tuple[dict[int, Answer], dict[int, str]]:
    """Return the answers that may be aggregated, by node in the order of `sent`, and why the others are refused.

    Each answer is checked by itself first, and then compared with the answers of the other nodes.
    """
    history = CheckHistory() if history is None else history
    sound: dict[int, Answer] = {}
    refused: dict[int, str] = {}
    for node in (node for node in sent if node in contents):
        try:
            answer = _read(contents[node], sent[node])
            why = why_refused(answer, sent[node], history)
        except InputError as error:
            refused[node] = f"sent an unexpected message: {error}"
        except Exception as error:  # MemoryError included: nothing that one node sends may stop the server
            refused[node] = f"sent a message that cannot be checked ({one_line(str(error)) or type(error).__name__})"
        else:
            if why is None:
                sound[node] = answer
            else:
                refused[node] = why
    for find_outliers in (_unusual_forms, _isolated_nonfinite, _outlying_changes):
        replies = {node: answer.reply for node, answer in sound.items() if answer.reply.clients}
        for node, why in find_outliers(replies, sent, history).items():
            refused[node] = why
            del sound[node]
    return sound, refused


def _read(content: RecordDict, sent: SentRequest) -> Answer:
    """Return the answer, without arrays if it contains the work of no client."""
    answer = read_answer(content, sent.task, len(sent.sizes), sent.most_bytes)
    if answer.reply.clients:
        return answer
    return replace(answer, reply=Reply((), rejected=answer.reply.rejected, paths=answer.reply.paths))


# ---- one answer on its own ---------------------------------------------------------------------------------------


def why_refused(answer: Answer, sent: SentRequest, history: CheckHistory | None = None) -> str | None:
    """Return the first fault of an answer, checked by itself; None if it has none."""
    return next(_faults(answer, sent, history or CheckHistory()), None)


def _faults(answer: Answer, sent: SentRequest, history: CheckHistory) -> Iterator[str]:
    reply = answer.reply
    yield from _client_faults(answer, sent)
    yield from _shape_faults(reply, sent.expected)
    if not reply.clients:
        return
    if sent.expected is None:
        yield from _nonfinite_faults(reply)
        return
    yield from _name_faults(reply, sent.expected)
    for name, value, spec in _named(reply, sent.expected):
        yield from _form_faults(sent, history, name, value, spec)
        yield from _value_faults(name, value, spec)
    yield from _total_faults(reply, sent, sent.expected)
    yield from _moment_faults(reply)
    if sent.trains:
        yield from _model_faults(reply, sent)


def _client_faults(answer: Answer, sent: SentRequest) -> Iterator[str]:
    reply = answer.reply
    named = [*reply.clients, *reply.rejected]
    foreign = [c for c in (*named, *answer.lost) if c not in sent.sizes]
    if foreign:
        yield f"answers for client {foreign[0]!r}, which was not asked at this node"
    if len(set(named)) < len(named) or len(set(answer.lost)) < len(answer.lost):
        yield "lists a client twice"


def _shape_faults(reply: Reply, form: Expected | None) -> Iterator[str]:
    """Yield faults of the lengths of rows and slots."""
    for name, value in reply.rows.items():
        if value.dim() == 0 or len(value) != len(reply.clients):
            yield f"has {name!r} of shape {tuple(value.shape)} for {len(reply.clients)} clients"
    for name, part in reply.slotted.items():
        yield from _slot_faults(name, part, len(reply.clients))
        known = None if form is None else form.slotted.get(name)
        some = part.slots.dim() != 1 or len(part.slots) > 0
        if known is not None and some and not 0 <= int(part.slots[0]) <= int(part.slots[-1]) < known.count:
            yield f"has slot {int(part.slots[-1])} of {name!r}, but there are {known.count}"


def _slot_faults(name: str, part: Slotted, clients: int) -> Iterator[str]:
    """Yield faults of the slots and counts of slotted sums; `clients` is the number of clients in the answer."""
    count = len(part.slots) if part.slots.dim() == 1 else -1
    arrays = {"slots": part.slots, "counts": part.counts, **part.arrays}
    odd = [key for key, value in arrays.items() if value.dim() == 0 or len(value) != count]
    if odd or part.slots.dtype != torch.int64 or part.counts.dtype != torch.int64 or part.counts.dim() != 1:
        yield f"has slots of {name!r} that do not fit each other ({', '.join(odd) or 'dtype'})"
    elif not bool((part.slots.diff() > 0).all()):
        yield f"has slots of {name!r} that are not ascending"
    elif bool(((part.counts < 0) | (part.counts > clients)).any()):
        yield f"has counts of {name!r} that are negative, or more than its {clients} clients"


def _name_faults(reply: Reply, form: Expected) -> Iterator[str]:
    """Yield arrays that were not requested, and requested arrays that are missing."""
    found = {f"sums/{name}" for name in reply.sums} | {f"rows/{name}" for name in reply.rows}
    wanted = {f"sums/{name}" for name in form.sums} | {f"rows/{name}" for name in form.rows}
    for name in {*reply.slotted, *form.slotted}:
        part, slots = reply.slotted.get(name), form.slotted.get(name)
        found |= {f"{name}/{key}" for key in part.arrays} if part is not None else set()
        wanted |= {f"{name}/{key}" for key in slots.arrays} if slots is not None else set()
        if slots is None:
            yield f"has sums {name!r}, which were not requested"
    for name in sorted(wanted - found):
        yield f"lacks {name!r}"
    for name in sorted(found - wanted):
        yield f"has {name!r}, which was not requested"


def _named(reply: Reply, form: Expected) -> Named:
    """Yield every array with its name and form; arrays with an axis of clients or slots come last."""
    for name, spec in form.sums.items():
        yield f"sums/{name}", reply.sums[name], spec
    for name, spec in form.rows.items():
        yield f"rows/{name}", reply.rows[name], spec
    for part, slots in form.slotted.items():
        for name, spec in slots.arrays.items():
            yield f"{part}/{name}", reply.slotted[part].arrays[name], spec


def _shape(name: str, value: Tensor) -> tuple[int, ...]:
    """Return the shape without the axis of clients or slots."""
    return tuple(value.shape) if name.startswith("sums/") else tuple(value.shape[1:])


def _form_faults(sent: SentRequest, history: CheckHistory, name: str, value: Tensor, spec: Spec) -> Iterator[str]:
    shape = _shape(name, value)
    if not spec.fits(shape, value.dtype):
        yield f"has {name!r} as {_dtype_and_shape(shape, value.dtype)}, but the run has {spec}"
    known = history.shapes.get((sent.task, name)) if None in spec.shape else None
    if known is not None and _unknown(spec, shape) != known:
        yield f"has {name!r} of shape {shape}, but earlier answers had lengths {known}"


def _unknown(spec: Spec, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the lengths that only nodes know."""
    return tuple(length for length, wanted in zip(shape, spec.shape, strict=True) if wanted is None)


def _value_faults(name: str, value: Tensor, spec: Spec) -> Iterator[str]:
    """Yield values that are not finite but must be, and values out of range."""
    bad = _nonfinite(value)
    allowed = bad
    if spec.missing == "never":
        allowed = torch.zeros_like(bad)
    elif spec.missing == "vector":
        allowed = (~value.isfinite()).any(dim=-1, keepdim=True).expand_as(bad)
        if bool(allowed.flatten(1).all(dim=1).any()):
            yield f"has values in {name!r} that are not finite in any restart"
    if bool((bad & ~allowed).any()):
        odd = value[bad & ~allowed]
        largest = f"larger than {LARGEST[value.dtype]:g}"
        yield f"has values in {name!r} that are {largest if bool(odd.isfinite().all()) else 'not finite'}"
    slack = ROUNDED if value.is_floating_point() else 0
    outside = ~allowed & ((value < spec.low - slack) | (value > spec.high + slack))
    if bool(outside.any()):
        yield f"has {_number(value[outside][0])} in {name!r}, but values must be from {spec.low:g} to {spec.high:g}"
    if spec.whole and bool((value != value.round()).any()):
        yield f"has values in {name!r} that are not whole numbers"


def _nonfinite(value: Tensor) -> Tensor:
    """Return a mask of the values that are not finite, or so large that their sums would not be finite."""
    if not value.is_floating_point():
        return torch.zeros(value.shape, dtype=torch.bool)
    return ~(value.abs() <= LARGEST[value.dtype])


def _number(value: Tensor) -> str:
    return f"{float(value):g}"


def _total_faults(reply: Reply, sent: SentRequest, form: Expected) -> Iterator[str]:
    """Yield totals of samples, mass or weights that exceed what the clients have."""
    sizes = torch.tensor([sent.sizes[c] for c in reply.clients], dtype=torch.float64)
    most = {"samples": float(sizes.sum()), "mass": float(len(sizes) if form.uniform else sizes.sum())}
    for name, spec in form.sums.items():
        if spec.total and (total := float(reply.sums[name].max())) > most[spec.total] * (1 + ROUNDED):
            yield f"reports {total:g} samples in {name!r}, but its clients have {most[spec.total]:g}"
    if sent.trains and float(reply.sums["samples"]) < 1:
        yield "reports less than one sample"
    for name, spec in form.rows.items():
        if not spec.total:
            continue
        value = reply.rows[name].double()
        totals = value.flatten(1 + spec.axes).sum(dim=-1).nan_to_num(nan=0.0, posinf=0.0, neginf=0.0)
        each = torch.ones_like(sizes) if spec.total == "one" else sizes
        if bool((totals > each.reshape(-1, *(1,) * (totals.dim() - 1)) * (1 + ROUNDED) + ROUNDED).any()):
            yield f"has values in {name!r} that sum to {float(totals.max()):g} for a client, which is more than it has"
    for part, slots in form.slotted.items():
        yield from _slot_total_faults(part, reply.slotted[part], slots, sent.clusters, form.uniform, most)


def _slot_total_faults(
    part: str, sums: Slotted, slots: Slots, clusters: Clusters, uniform: bool, most: Mapping[str, float]
) -> Iterator[str]:
    for name, spec in slots.arrays.items():
        if not spec.total:
            continue
        total = float(_by_restart(sums.slots, sums.arrays[name], clusters).max())
        if total > most[spec.total] * (1 + ROUNDED):
            what = "clients" if spec.total == "mass" and uniform else "samples"
            yield f"reports {total:g} {what} in {part!r}, but there are {most[spec.total]:g}"


def _by_restart(slots: Tensor, values: Tensor, clusters: Clusters) -> Tensor:
    """Return the sum of the values over the slots of each restart, shape (R,)."""
    restarts = torch.zeros(clusters.restarts, dtype=torch.float64)
    return restarts.index_add_(0, torch.div(slots, clusters.K, rounding_mode="floor"), values.double())


def _moment_faults(reply: Reply) -> Iterator[str]:
    """Yield sums whose means or heads would not be finite."""
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


def _model_faults(reply: Reply, sent: SentRequest) -> Iterator[str]:
    """Yield soft weights without a model, and changes of models that are too large by themselves."""
    if "weights" in reply.rows and "model" in reply.rows:
        alone = ~reply.rows["weights"].isfinite().all(dim=-1) & reply.rows["model"].isfinite().all(dim=-1)
        if bool(alone.any()):
            yield "has values in 'rows/weights' that are not finite"
    yield from _assignment_faults(reply, sent)
    yield from _divergence_faults(reply, sent.clusters.restarts)
    length = longest_change(reply, sent.clusters)
    largest = min((LARGEST.get(p.dtype, 0.0) for p in sent.clusters.params.values()), default=math.inf)
    if not length <= largest:
        yield f"changes a model by {length:.3g}, which is not finite or larger than {largest:g}"
    if sent.most_change is not None and length > sent.most_change:
        yield f"changes a model by {length:.3g}, but at most {sent.most_change:g} is allowed"


def _assignment_faults(reply: Reply, sent: SentRequest) -> Iterator[str]:
    """Yield results for other clusters than those that the server assigned to the clients."""
    if sent.only is None:
        return
    place = {client: row for row, client in enumerate(sent.sizes)}
    only = sent.only[torch.tensor([place[client] for client in reply.clients])]
    given = (only != ALL).all(dim=1)
    if bool((reply.rows["cluster"][given] != only[given] % sent.clusters.K).any()):
        yield "has clients in other clusters than they were assigned to"
    sums = reply.slotted.get("clusters")
    if sums is not None and bool(given.all()) and not bool(torch.isin(sums.slots, only).all()):
        yield "has changes of models that none of its clients was sent"


def _divergence_faults(reply: Reply, restarts: int) -> Iterator[str]:
    """Yield missing vectors of restarts whose loss is finite.

    With several restarts a vector may be missing in one that diverged, but then its loss is not finite either.
    """
    loss = reply.sums.get("loss")
    for name in ("change", "model"):
        if loss is None or restarts == 1 or name not in reply.rows or reply.rows[name].shape[1] != restarts:
            continue
        missing = ~reply.rows[name].isfinite().all(dim=-1).all(dim=0)
        if bool((missing & loss.isfinite()).any()):
            yield f"has values in 'rows/{name}' that are not finite, but a finite loss there"


def _nonfinite_faults(reply: Reply) -> Iterator[str]:
    """Yield values that are not finite, for user-defined tasks whose answers declare no form."""
    arrays = {**reply.sums, **reply.rows}
    arrays |= {f"{name}/{key}": value for name, part in reply.slotted.items() for key, value in part.arrays.items()}
    bad = [name for name, value in arrays.items() if bool(_nonfinite(value).any())]
    if bad:
        yield f"has values in {bad[0]!r} that are not finite"


# ---- compared with the other answers -----------------------------------------------------------------------------


def _unusual_forms(
    replies: Mapping[int, Reply], sent: Mapping[int, SentRequest], history: CheckHistory
) -> dict[int, str]:
    """Return the nodes whose answers have another form than most answers; store the common form in the history."""
    counted = Counter(signature(reply) for reply in replies.values())
    if not counted:
        return {}
    usual = counted.most_common(1)[0][0]
    first = next(node for node, reply in replies.items() if signature(reply) == usual)
    form = sent[first].expected
    for name, value, spec in _named(replies[first], form) if form is not None else ():
        if None in spec.shape:
            history.shapes.setdefault((sent[first].task, name), _unknown(spec, _shape(name, value)))
    return {node: unusual(reply, usual) for node, reply in replies.items() if signature(reply) != usual}


def _isolated_nonfinite(
    replies: Mapping[int, Reply], sent: Mapping[int, SentRequest], history: CheckHistory
) -> dict[int, str]:
    """Return the nodes whose answers are not finite where the answers of at least half of the nodes are."""
    bad: dict[str, dict[int, Tensor]] = {}
    for node, reply in replies.items():
        form = sent[node].expected
        for name, value, spec in _named(reply, form) if form is not None else ():
            if spec.missing == "shared":
                bad.setdefault(name, {})[node] = (
                    _nonfinite(value) if name.startswith("sums/") else _nonfinite(value).any(dim=0)
                )
    found: dict[int, str] = {}
    for name, by_node in bad.items():
        common = torch.stack([mask.double() for mask in by_node.values()]).mean(dim=0) > 0.5
        for node, mask in by_node.items():
            if bool((mask & ~common).any()):
                found.setdefault(node, f"has values in {name!r} that are not finite, but those of most nodes are")
    return found


def _outlying_changes(
    replies: Mapping[int, Reply], sent: Mapping[int, SentRequest], history: CheckHistory
) -> dict[int, str]:
    """Return the nodes whose changes are much larger than the usual change, now and earlier, and than the models."""
    factors = {sent[node].change_factor for node in replies if sent[node].trains}
    if len(factors) != 1 or (factor := factors.pop()) is None:
        return {}
    clusters = next(sent[node].clusters for node in replies)
    lengths = {node: longest_change(reply, clusters) for node, reply in replies.items()}
    if len(lengths) < FEWEST_COMPARED:
        return {}
    history.longest = max(history.longest, float(np.median(list(lengths.values()))))
    usual, models = history.longest, float(flat(clusters.params).double().norm(dim=1).max())
    most = max(factor * usual, models)
    return {
        node: f"changes a model by {length:.3g}, which is more than {factor:g} times what is usual ({usual:.3g})"
        for node, length in lengths.items()
        if 0 < most < length
    }


def longest_change(reply: Reply, clusters: Clusters) -> float:
    """Return the norm of the largest change that a node's clients made to a model.

    It is that of the mean change, or of each client's change where rows have them. The model of a client that sends a
    whole model is compared with the nearest cluster model.
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
    """Return the largest length, without those of restarts that diverged, which are NaN."""
    known = lengths[~lengths.isnan()]
    return float(known.max()) if len(known) else 0.0


def _longest_mean(part: Slotted, mass: Tensor) -> float:
    """Return the norm of the largest mean change: the summed changes of each slot divided by its mass (S,)."""
    changes = flat({name: value.double() for name, value in part.arrays.items() if name != "mass"})
    lengths = changes.norm(dim=1) / mass.double().clamp_min(torch.finfo(torch.float64).tiny)
    return float(lengths.max()) if len(lengths) else 0.0


def signature(reply: Reply) -> Signature:
    """Return names, shapes and types of all arrays of an answer, without the axes of clients and slots."""
    parts = [(f"sums/{name}", tuple(value.shape), value.dtype) for name, value in reply.sums.items()]
    parts += [(f"rows/{name}", tuple(value.shape[1:]), value.dtype) for name, value in reply.rows.items()]
    for name, part in reply.slotted.items():
        parts += [(f"{name}/{key}", tuple(value.shape[1:]), value.dtype) for key, value in part.arrays.items()]
    return tuple(sorted(parts, key=lambda part: part[0]))


def unusual(reply: Reply, expected: Signature) -> str:
    """Return how the form of an answer differs from that of most answers."""
    found, wanted = set(signature(reply)), set(expected)
    name = sorted(part[0] for part in found ^ wanted)[0]
    other, usual = _described(found, name), _described(wanted, name)
    return f"has {name!r} in another form than most answers: {other} instead of {usual}"


def _described(parts: set[tuple[str, tuple[int, ...], torch.dtype]], name: str) -> str:
    return next((_dtype_and_shape(shape, dtype) for n, shape, dtype in parts if n == name), "nothing")


def _dtype_and_shape(shape: tuple[int, ...], dtype: torch.dtype) -> str:
    return f"{str(dtype).removeprefix('torch.')} {shape}"
