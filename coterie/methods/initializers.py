"""Initializers that are not methods themselves: random models, given models, or models made from the truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import ClassVar

import numpy as np
import torch

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.registry import register
from coterie.errors import ConfigError
from coterie.methods.run import FirstModels, Initializer, Run
from coterie.options import AUTO, Auto, check_fields, option
from coterie.tiers.composition import Tiers

Model = Mapping[str, np.ndarray]
"""One model as named arrays."""
_RESTARTS = (
    "number of random initialisations that are trained side by side, of which the one with the lowest training loss is "
    "kept; auto: the method decides"
)


@dataclass(frozen=True, kw_only=True)
class Drawn(Initializer):
    """Base class of initializers that draw models by keys of the run's seed."""

    restarts: int | Auto = option(AUTO, _RESTARTS, low=1)
    random: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_fields(self)


@register("random")
@dataclass(frozen=True, kw_only=True)
class RandomInit(Drawn):
    """Draws models as the learner does: K different ones in each restart, or K copies if the server assigns clusters.

    Models that start equal never separate by their losses. If clusters are assigned, no difference is needed, and all
    models start where FedAvg starts.

    Example:
        >>> from coterie.methods import IFCA, RandomInit
        >>> IFCA(clusters=4, init=RandomInit(restarts=3)).init.restarts
        3
    """

    any_count: ClassVar[bool] = True

    def first_models(self, run: Run) -> FirstModels:
        K = clusters_of(run)
        if run.tiers.assignment.assigned:
            one = run.learner.start([key_for(run.seed, Purpose.START, 0, 0)], run.dtype)
            params = {name: p.repeat(K, *(1,) * (p.dim() - 1)) for name, p in one.items()}
        else:
            params = run.learner.start(keys_of(run), run.dtype)
            if K > 1 and all(bool((p[:K] == p[0]).all()) for p in params.values()):
                raise ConfigError(
                    "all initial models of this learner are equal, so clusters could never separate: reset some layers"
                )
        return FirstModels({name: p.to(run.device) for name, p in params.items()}, K)


@register("gaussian")
@dataclass(frozen=True, kw_only=True)
class GaussianInit(Drawn):
    """Draws every parameter from N(0, sd^2).

    Example:
        >>> from coterie.methods import IFCA, GaussianInit
        >>> IFCA(clusters=4, init=GaussianInit(sd=2.0)).init.sd
        2.0
    """

    sd: float = option(1.0, "standard deviation of every parameter; with 0 all parameters are 0", low=0)
    any_count: ClassVar[bool] = True

    def first_models(self, run: Run) -> FirstModels:
        K = clusters_of(run)
        if self.sd == 0 and K > 1 and not run.tiers.assignment.assigned:
            raise ConfigError("init=gaussian:sd=0 makes all clusters equal, so they never separate: set sd above 0")
        return FirstModels(noise(run, one_model(run), self.sd), K)


@register("near-truth")
@dataclass(frozen=True, kw_only=True)
class NearTruth(Drawn):
    """Draws models near the true ones, for experiments: theta_k* plus a random direction of limited length.

    The length is uniform between `low` and `high` times D, the distance between the two nearest true models.

    Example:
        >>> import coterie
        >>> from coterie.methods import IFCA, NearTruth
        >>> data = coterie.scenario("mixed-regression", clients=8, groups=2)
        >>> result = coterie.fit(data, IFCA(clusters=2, init=NearTruth()), rounds=1)
        >>> len(result.models)
        2
    """

    low: float = option(0.2, "smallest distance, as a share of the distance between the nearest true models", low=0)
    high: float = option(1 / 3, "largest distance, as a share of the distance between the nearest true models", low=0)

    def first_models(self, run: Run) -> FirstModels:
        true, like, K = run.data.true_models, one_model(run), clusters_of(run)
        if true is None or set(like) != {"weight"} or true.shape[1:] != like["weight"].shape[1:]:
            raise ConfigError(
                "near-truth needs a scenario with known true models, and a learner of the same shape without bias"
            )
        if len(true) != K or K < 2:
            raise ConfigError(
                f"near-truth needs one true model for each cluster, but there are {len(true)} and clusters={K}"
            )
        if self.low > self.high:
            raise ConfigError(f"near-truth: low={self.low:g} is above high={self.high:g}")
        separation = min(float(np.linalg.norm(a - b)) for a, b in combinations(true, 2))
        rows: list[np.ndarray] = []
        for key in keys_of(run):
            random = generator(key)
            direction = random.standard_normal(true.shape[1])
            length = random.uniform(self.low, self.high) * separation
            rows.append(true[len(rows) % K] + direction * (length / np.linalg.norm(direction)))
        return FirstModels({"weight": torch.from_numpy(np.stack(rows)).to(like["weight"])}, K)


@dataclass(frozen=True)
class GivenModels(Initializer):
    """Models that the user gives, one for each cluster."""

    models: Sequence[Model]
    """Arrays of each model, by name."""
    source: str = "given"
    """Run folder that the models come from, if any."""
    name: ClassVar[str] = "given"

    def first_models(self, run: Run) -> FirstModels:
        K = clusters_of(run)
        if len(self.models) != K:
            raise ConfigError(f"init has {len(self.models)} models but clusters={K}: give one model for each cluster")
        expected = {name: tuple(p.shape[1:]) for name, p in run.learner.start([0], run.dtype).items()}
        for index, model in enumerate(self.models):
            shapes = {name: tuple(np.shape(a)) for name, a in model.items()}
            if shapes != expected:
                raise ConfigError(
                    f"model {index} of init has arrays {shapes}, but learner {run.learner.spec} needs {expected}"
                )
            if not all(np.isfinite(a).all() for a in model.values()):
                raise ConfigError(f"model {index} of init has values that are not finite")
        params = {
            name: torch.stack([torch.as_tensor(np.asarray(m[name])).to(run.dtype) for m in self.models]).to(run.device)
            for name in expected
        }
        return FirstModels(params, K)


# ---- helpers of initializers ---------------------------------------------------------------------------------


def clusters_of(run: Run) -> int:
    """Return the number of clusters of a run in which it is known."""
    assert run.tiers.K is not None, "checked when the run is planned"
    return run.tiers.K


def one_model(run: Run) -> Params:
    """Return FedAvg's initial model, {name: (1, ...)}."""
    one = run.learner.start([key_for(run.seed, Purpose.START, 0, 0)], run.dtype)
    return {name: p.to(run.device) for name, p in one.items()}


def keys_of(run: Run) -> list[int]:
    """Return a key for each model of each restart."""
    K = clusters_of(run)
    return [key_for(run.seed, Purpose.START, r, k) for r in range(run.tiers.restarts) for k in range(K)]


def noise(run: Run, like: Params, sd: float) -> Params:
    """Return N(0, sd^2) for every parameter of every model of every restart; `like` gives the shapes."""
    rows = []
    for key in keys_of(run):
        random = generator(key)
        rows.append({n: sd * random.standard_normal(tuple(p.shape[1:])) for n, p in sorted(like.items())})
    return {n: torch.from_numpy(np.stack([row[n] for row in rows])).to(p) for n, p in like.items()}


def with_noise(run: Run, models: Params, sd: float) -> Params:
    """Return models {name: (K, ...)} in every restart, with N(0, sd^2) on every parameter."""
    drawn = noise(run, models, sd)
    return {n: p.repeat(run.tiers.restarts, *(1,) * (p.dim() - 1)) + drawn[n] for n, p in models.items()}


def as_clusters(params: Mapping[str, torch.Tensor], tiers: Tiers) -> Clusters:
    """Return models {name: (R K, ...)} as clusters; shared parameters are stored once for each restart."""
    assert tiers.K is not None, "known by now"
    named = dict(params)
    if not tiers.shared:
        overall = {name: p[:1].clone() for name, p in named.items()} if tiers.overall else None
        return Clusters(named, tiers.K, tiers.restarts, overall=overall)
    prefixes = tuple(prefix.removesuffix(".") + "." for prefix in tiers.shared)
    body = {n: p[:: tiers.K].clone() for n, p in named.items() if f"{n}.".startswith(prefixes)}
    heads = {n: p for n, p in named.items() if n not in body}
    for prefix in prefixes:
        if not any(f"{name}.".startswith(prefix) for name in body):
            raise ConfigError(f"shared={prefix[:-1]!r} names no parameter: they are {', '.join(sorted(named))}")
    if not heads:
        raise ConfigError("shared covers every parameter: leave at least one layer to the clusters")
    return Clusters(heads, tiers.K, tiers.restarts, body)
