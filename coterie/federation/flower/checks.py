"""Is the answer of a node fit to enter the sums? Each check gives a sentence where it is not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from flwr.app import RecordDict
from torch import Tensor

from coterie.core.clusters import Clusters, Params, flat
from coterie.core.messages import LOOKING, ROUND, Reply, Slotted
from coterie.core.shard import ClientId
from coterie.errors import InputError
from coterie.federation.flower.wire import Answer, read_answer

SLACK = 1e-6
"""By which part sums may differ from what they are compared with: they are rounded."""

Signature = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]


@dataclass(frozen=True)
class Asked:
    """What an answer is held against."""

    task: str
    clusters: Clusters
    """Those that were sent."""
    sizes: Mapping[ClientId, int]
    """Who of the node was asked, with n_i."""
    most_change: float | None = None
    """How long a change of a model may be, at most."""
    tells_loss: bool = True
    """Whether the answer to a round has a loss in it."""


def sort_out(
    contents: Mapping[int, RecordDict], asked: Mapping[int, Asked]
) -> tuple[dict[int, Answer], dict[int, str]]:
    """The answers by node that may be added up, in the order of `asked`, and why the others may not.

    Each must be sound on its own, and look as those of most clients do.
    """
    sound: dict[int, Answer] = {}
    refused: dict[int, str] = {}
    for node in (node for node in asked if node in contents):
        try:
            answer = read_answer(contents[node], asked[node].task)
        except InputError as error:
            refused[node] = f"sent something else: {error}"
            continue
        why = why_refused(answer.reply, asked[node])
        if why is None:
            sound[node] = answer
        else:
            refused[node] = why
    said = {node: answer.reply for node, answer in sound.items() if answer.reply.clients}
    expected = usual(said)
    for node, reply in said.items():
        if expected is not None and signature(reply) != expected:
            refused[node] = unusual(reply, expected)
            del sound[node]
    return sound, refused


def why_refused(reply: Reply, asked: Asked) -> str | None:
    """The first fault of an answer on its own; None: it is sound."""
    try:
        return next(_faults(reply, asked), None)
    except (RuntimeError, ValueError, TypeError, IndexError, KeyError) as error:
        return f"has arrays that cannot even be compared ({str(error).splitlines()[0]})"  # nothing may stop a server


def _faults(reply: Reply, asked: Asked) -> Iterator[str]:
    yield from _foreign(reply, asked)
    yield from _misshapen(reply)
    if not reply.clients:
        return
    if asked.task not in LOOKING:
        yield from _not_finite(reply, asked.clusters.lanes)
    if asked.task == ROUND:
        yield from _other_models(reply, asked)
        if asked.most_change is not None and (length := longest_change(reply, asked.clusters)) > asked.most_change:
            yield f"changes a model by {length:.3g}, but at most {asked.most_change:g} is allowed"


def _foreign(reply: Reply, asked: Asked) -> Iterator[str]:
    named = [*reply.clients, *reply.rejected]
    foreign = [c for c in named if c not in asked.sizes]
    if foreign:
        yield f"answers for client {foreign[0]!r}, which was not asked there"
    if len(set(named)) < len(named):
        yield "names a client twice"


def _misshapen(reply: Reply) -> Iterator[str]:
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
        elif not bool((part.slots.diff() > 0).all()) or bool((part.counts < 0).any()):
            yield f"has slots of {name!r} that are not ascending, or negative counts"


def _not_finite(reply: Reply, lanes: int) -> Iterator[str]:
    """A lane that diverged has an infinite loss, and with several lanes rows of it that are looked at one by one."""
    loose = {name: value for name, value in reply.sums.items() if name in ("loss", "likelihood")}
    strict = {name: value for name, value in reply.sums.items() if name not in loose}
    strict |= {f"{name}/{key}": value for name, part in reply.slotted.items() for key, value in part.arrays.items()}
    strict |= reply.rows if lanes == 1 else {}
    bad = [name for name, value in strict.items() if not bool(value.isfinite().all())]
    bad += [name for name, value in loose.items() if bool(value.isnan().any())]
    if bad:
        yield f"has values in {bad[0]!r} that are not finite"


def _other_models(reply: Reply, asked: Asked) -> Iterator[str]:
    """Clusters, slots and shapes that are not those of the models sent."""
    clusters, rows = asked.clusters, reply.rows.get("cluster")
    if rows is None or rows.dtype != torch.int64 or rows.shape[1:] != (clusters.lanes,):
        yield f"does not say the cluster of each client in each of {clusters.lanes} starts"
    elif bool(((rows < 0) | (rows >= clusters.K)).any()):
        yield f"names cluster {int(rows.max())}, but there are {clusters.K}"
    sums: dict[str, tuple[int, ...]] = {"loss": (clusters.lanes,)} if asked.tells_loss else {}
    sums["samples"] = ()
    for name, shape in sums.items():
        value = reply.sums.get(name)
        if value is None or tuple(value.shape) != shape or not value.is_floating_point():
            yield f"does not say {name!r} as numbers of shape {shape}"
    models: dict[str, tuple[Params, int]] = {
        "clusters": (clusters.params, clusters.lanes * clusters.K),
        "body": (clusters.shared, clusters.lanes),
        "overall": (clusters.overall or {}, clusters.lanes),
        "pooled": ({}, clusters.lanes * clusters.K),
    }
    for name, part in reply.slotted.items():
        if name not in models:
            yield f"has sums {name!r} that nobody asked for"
            continue
        params, slots = models[name]
        if len(part.slots) and not 0 <= int(part.slots.min()) <= int(part.slots.max()) < slots:
            yield f"has slot {int(part.slots.max())} of {name!r}, but there are {slots}"
        yield from _other_shapes(name, part, params)
    yield from _too_much_mass(reply, asked)


def _other_shapes(name: str, part: Slotted, params: Params) -> Iterator[str]:
    """Changes that do not fit these models; sums that are pooled are of other shapes, but have a mass, too."""
    expected = {f"change/{key}": (tuple(p.shape[1:]), p.dtype) for key, p in params.items()}
    expected |= {"mass": ((), torch.float64)} if name in ("clusters", "pooled") else {}
    found = {key: (tuple(value.shape[1:]), value.dtype) for key, value in part.arrays.items()}
    for key in sorted(expected.keys() | (found.keys() if name != "pooled" else set())):
        if expected.get(key) != found.get(key):
            yield f"has {key!r} of {name!r} as {_said(found.get(key))}, but the model is {_said(expected.get(key))}"


def _said(kind: tuple[tuple[int, ...], torch.dtype] | None) -> str:
    return "nothing" if kind is None else f"{str(kind[1]).removeprefix('torch.')} {kind[0]}"


def _too_much_mass(reply: Reply, asked: Asked) -> Iterator[str]:
    """A client counts n_i times at most, in all clusters of a lane together."""
    samples = sum(asked.sizes[c] for c in reply.clients)
    masses = [m for part in reply.slotted.values() if (m := _mass_by_lane(part, asked.clusters)) is not None]
    masses.append(reply.sums["samples"].flatten())
    for mass in masses:
        if bool((mass < 0).any()) or float(mass.max()) > samples * (1 + SLACK):
            yield f"counts for {float(mass.max()):g} samples, but its clients have {samples}"


def _mass_by_lane(part: Slotted, clusters: Clusters) -> Tensor | None:
    """(R,) what the contributions to all slots of a lane count together."""
    if "mass" not in part.arrays:
        return None
    mass = part.arrays["mass"]
    if bool((mass < 0).any()):
        return mass
    return torch.zeros(clusters.lanes, dtype=torch.float64).index_add_(0, part.slots // clusters.K, mass)


def longest_change(reply: Reply, clusters: Clusters) -> float:
    """The length of the longest change that a node's clients made of a model: in their mean, or each where they say.

    Who sends a model of its own has changed the cluster's that is nearest.
    """
    lengths = [0.0]
    if "change" in reply.rows:
        lengths.append(float(reply.rows["change"].double().norm(dim=-1).max()))
    if "model" in reply.rows:
        before = flat(clusters.params).double()
        lengths.append(float(torch.cdist(reply.rows["model"].double().flatten(0, -2), before).amin(dim=-1).max()))
    sums = reply.slotted.get("clusters")
    if sums is not None:
        by_lane = _mass_by_lane(sums, clusters)
        assert by_lane is not None
        lengths.append(_longest_mean(sums, sums.arrays["mass"]))
        beside = [part for name, part in reply.slotted.items() if name in ("body", "overall")]
        lengths += [_longest_mean(part, by_lane[part.slots]) for part in beside]
    return max(lengths)


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


def usual(replies: Mapping[int, Reply]) -> Signature | None:
    """What the answers of most clients look like, ties to the first; None where nobody answered."""
    counted: Counter[Signature] = Counter()
    for reply in replies.values():
        counted[signature(reply)] += len(reply.clients)
    return counted.most_common(1)[0][0] if counted else None


def unusual(reply: Reply, expected: Signature) -> str:
    """How an answer differs from what most sent."""
    found, wanted = set(signature(reply)), set(expected)
    name = sorted(part[0] for part in found ^ wanted)[0]
    return f"has {name!r} otherwise than most answers: {_listed(found, name)} instead of {_listed(wanted, name)}"


def _listed(parts: set[tuple[str, tuple[int, ...], torch.dtype]], name: str) -> str:
    return next((_said((shape, dtype)) for n, shape, dtype in parts if n == name), "nothing")
