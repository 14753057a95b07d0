"""The form of a sound answer to every task: names, shapes, types and ranges, from what the server itself asked.

A length that only the node's learner knows is None here; all nodes must then have the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import torch

from coterie.core.clusters import Clusters, flat
from coterie.core.dataset import torch_dtype
from coterie.core.keys import Purpose, key_for
from coterie.core.messages import ROUND, Broadcast, Task
from coterie.errors import CoterieError
from coterie.flower.terms import Terms
from coterie.learners import make_learner
from coterie.tiers.method import RoundSettings, read_distance, read_objective

LARGEST = {torch.float64: 1e100, torch.float32: 1e15}
"""Larger numbers count as not finite: their squares, added up, are not."""
ROUNDED = 1e-6
"""Part by which sums may differ from what they are compared with."""
WIDE = 2**16
"""Largest length that only the nodes know."""
ROOM = 4096
"""Bytes that an array takes besides its values."""

Missing = Literal["never", "vector", "shared"]
Total = Literal["", "samples", "mass", "one"]


@dataclass(frozen=True)
class Spec:
    """One array of an answer."""

    shape: tuple[int | None, ...] = ()
    """Without the axis of clients or slots."""
    dtype: torch.dtype | None = torch.float64
    """None: any floating type."""
    low: float = -math.inf
    high: float = math.inf
    missing: Missing = "never"
    """Where values may be NaN or infinite: nowhere; in a whole vector (last axis) of a restart that diverged; or where
    the answers of most nodes are so, too, as with a model that has diverged."""
    total: Total = ""
    """What the values of all clients may sum to at most: their n_i, what they count in the mean, or 1 for each."""
    whole: bool = False
    """Whether the values are whole numbers."""
    axes: int = 0
    """Leading axes (after that of clients) for each of which the total holds."""

    @property
    def nbytes(self) -> int:
        """Bytes of one row at most."""
        return 8 * math.prod(WIDE if length is None else length for length in self.shape)

    def fits(self, shape: tuple[int, ...], dtype: torch.dtype) -> bool:
        """Whether an array of this shape is meant; a length that nobody here knows has an upper bound."""
        same = len(shape) == len(self.shape) and all(
            length == wanted or (wanted is None and length <= WIDE)
            for length, wanted in zip(shape, self.shape, strict=True)
        )
        return same and (dtype in LARGEST if self.dtype is None else dtype == self.dtype)

    def __str__(self) -> str:
        kind = "a floating type" if self.dtype is None else str(self.dtype).removeprefix("torch.")
        return f"{kind} {tuple('any' if length is None else length for length in self.shape)}"


Specs = Mapping[str, Spec]


@dataclass(frozen=True)
class Slots:
    """A slotted sum of an answer."""

    count: int
    """Number of slots."""
    arrays: Specs


@dataclass(frozen=True)
class Expected:
    """Everything that a sound answer holds."""

    sums: Specs = field(default_factory=dict)
    slotted: Mapping[str, Slots] = field(default_factory=dict)
    rows: Specs = field(default_factory=dict)

    def most_bytes(self, clients: int) -> int:
        """Bytes of all arrays at most, for so many clients."""
        arrays = [spec.nbytes for spec in self.sums.values()]
        arrays += [clients * spec.nbytes for spec in self.rows.values()]
        for slots in self.slotted.values():
            held = slots.count
            arrays += [held * spec.nbytes for spec in slots.arrays.values()] + [8 * held, 8 * held]
        return sum(arrays) + ROOM * (len(arrays) + 1) + 64 * 1024


def expected(task: Task, broadcast: Broadcast, terms: Terms) -> Expected | None:
    """Return the form of a node's answer; None for a task of somebody's own."""
    if task.name == ROUND:
        return _round(RoundSettings.read(task.settings), broadcast.clusters, terms)
    build = _TASKS.get(task.name)
    return None if build is None else build(task.settings, broadcast, terms)


# ---- a round ---------------------------------------------------------------------------------------------------


def _round(settings: RoundSettings, clusters: Clusters, terms: Terms) -> Expected:
    R, K, way = clusters.restarts, clusters.K, settings.weights.way
    loss = Spec((R,), low=-1.0, missing="shared" if R > 1 else "never")
    sums = {"samples": Spec((), low=0, whole=True, total="samples")}
    sums |= {} if settings.hides else {"loss": loss}
    rows = {"cluster": Spec((R,), torch.int64, 0, K - 1)}
    vector = _width(clusters)
    personal = way == "personal"
    if personal:
        rows["model"] = Spec((R, vector), clusters_dtype(clusters), missing="vector" if R > 1 else "never")
    elif settings.each:
        trained = K if way == "respond" else R
        rows["change"] = Spec((trained, vector), clusters_dtype(clusters), missing="vector" if R > 1 else "never")
    if personal or (settings.each and way == "respond"):
        missing: Missing = "vector" if R > 1 else "never"
        rows["weights"] = Spec((R, K), low=0, high=1, total="one", axes=1, missing=missing)
    if way == "respond":
        sums["likelihood"] = Spec((R,), missing="shared" if R > 1 else "never")
    counted = {name: _counted(name, R, K, terms) for name in settings.objective.counts} if way == "respond" else {}
    if settings.objective.summed:
        sums |= counted
    else:
        rows |= counted
    if settings.distance is not None:
        rows |= {name: _told(name, terms) for name in settings.distance.reveals if name not in ("change", "anchor")}
    return Expected(sums, _models(settings, clusters), rows)


def _models(settings: RoundSettings, clusters: Clusters) -> dict[str, Slots]:
    """The slotted sums of a round."""
    dtype, all_slots = clusters_dtype(clusters), clusters.restarts * clusters.K
    mass = Spec((), low=0, total="mass")
    if settings.work.pools_heads and "body.weight" in clusters.shared:
        width, features = clusters.shared["body.weight"].shape[1:]
        pooled = {"gram": Spec((features, width), dtype), "cross": Spec((features,), dtype), "mass": mass}
        return {"pooled": Slots(all_slots, pooled)}
    found: dict[str, Slots] = {}
    if not settings.each and settings.weights.way != "personal":
        found["clusters"] = Slots(all_slots, {**_changes(clusters.params), "mass": mass})
    if clusters.shared:
        found["body"] = Slots(clusters.restarts, _changes(clusters.shared))
    if clusters.overall:
        found["overall"] = Slots(clusters.restarts, _changes(clusters.overall))
    return found


def _changes(params: Mapping[str, torch.Tensor]) -> dict[str, Spec]:
    return {f"change/{name}": Spec(tuple(p.shape[1:]), p.dtype) for name, p in params.items()}


def _counted(name: str, R: int, K: int, terms: Terms) -> Spec:
    """What clients count for an objective."""
    if name == "labels":
        return Spec((R, K, terms.classes), None, low=0, total="samples", axes=1)
    return Spec((R, None, None))


def _told(name: str, terms: Terms) -> Spec:
    """What clients tell for a distance."""
    C, d = terms.classes, math.prod(terms.features)
    return {
        "prototypes": Spec((C, None)),
        "class_counts": Spec((C,), low=0, total="samples"),
        "mean_feature": Spec((None,)),
        "feature_norm": Spec((1,), low=0),
        "subspace": Spec((None, d, None), None, low=-1.001, high=1.001),
    }.get(name, Spec((None,), None))


def clusters_dtype(clusters: Clusters) -> torch.dtype | None:
    """Return the type of the models' numbers."""
    return next((p.dtype for p in clusters.params.values()), None)


def _width(clusters: Clusters) -> int:
    """Numbers of one cluster's own parameters."""
    return sum(math.prod(p.shape[1:]) for p in clusters.params.values())


# ---- other tasks -----------------------------------------------------------------------------------------------


def _held(broadcast: Broadcast) -> int:
    if broadcast.only is not None:
        return 1
    return next((len(p) for p in broadcast.clusters.params.values()), 0)


def _score(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    return Expected(rows={"losses": Spec((_held(broadcast),), low=-1e-3, missing="shared")})


def _evaluate(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    most = math.inf if terms.classes is None else 1.0
    rows = {
        "score": Spec((), low=0, high=most, missing="shared"),
        "loss": Spec((), low=-1e-3, missing="shared"),
    }
    if settings.get("margin"):
        rows["losses"] = Spec((_held(broadcast),), low=-1e-3, missing="shared")
        rows["margin"] = Spec((), low=-99, missing="shared")  # infinite for all where there is one model
    return Expected(rows=rows)


def _weights(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    clusters = broadcast.clusters
    parts = read_objective(settings["objective"]).client_components(clusters.K)
    return Expected(rows={"weights": Spec((clusters.restarts, parts), low=0, high=1, total="one", axes=1)})


def _moment_product(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    basis = broadcast.clusters.params["basis"]
    count = Spec((), low=0, whole=True, total="samples")
    product = Spec(tuple(basis.shape), basis.dtype)
    return Expected({"product": product, "mass": count, "samples": count, "energy": Spec((), low=0)})


def _anchor_step(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    anchor = broadcast.each["anchor"]
    return Expected(rows={"anchor": Spec(tuple(anchor.shape[1:]), anchor.dtype), "sigma": Spec((), low=0)})


def _moments(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    p = _width(broadcast.clusters)
    return _by_cluster(broadcast, {"gram": Spec((p, p), missing="shared"), "score": Spec((p,), missing="shared")})


def _meats(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    square = Spec((_width(broadcast.clusters),) * 2, missing="shared")
    rss = Spec((), low=0, missing="shared")
    return _by_cluster(broadcast, {"by_client": square, "by_sample": square, "rss": rss})


def _by_cluster(broadcast: Broadcast, arrays: dict[str, Spec]) -> Expected:
    samples = Spec((), low=0, whole=True, total="samples")
    return Expected(slotted={"clusters": Slots(broadcast.clusters.K, {**arrays, "samples": samples})})


def _curvature(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    return Expected(rows={"curvature": Spec((), low=-1e-6)})


def _solve(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    width = _width(broadcast.clusters) + sum(math.prod(p.shape[1:]) for p in broadcast.clusters.shared.values())
    return Expected(rows={"model": Spec((width or _model_width(terms),), torch_dtype(terms.dtype))})


def _introduce(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    return Expected(rows={"anchor": Spec((_model_width(terms),), torch_dtype(terms.dtype))})


def _summary(settings: Mapping[str, Any], broadcast: Broadcast, terms: Terms) -> Expected:
    distance = read_distance(cast(Mapping[str, Any], settings["distance"]))
    return Expected(rows={name: _told(name, terms) for name in distance.reveals})


def _model_width(terms: Terms) -> int | None:
    """Numbers of one model; None where only the nodes can build it."""
    try:
        model = make_learner(terms.learner, terms.profile).start([key_for(0, Purpose.START)], torch.float32)
    except CoterieError:
        return None
    return int(flat(model).shape[1])


_TASKS = {
    "score": _score,
    "evaluate": _evaluate,
    "finetune": _evaluate,
    "weights": _weights,
    "moment-product": _moment_product,
    "anchor-step": _anchor_step,
    "regression-moments": _moments,
    "regression-meats": _meats,
    "curvature": _curvature,
    "local-solve": _solve,
    "introduce": _introduce,
    "summary": _summary,
}
