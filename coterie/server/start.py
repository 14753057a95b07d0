"""Where the models come from before the first round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from coterie.core.clusters import Clusters, Params
from coterie.core.keys import Purpose, key_for
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.tiers.method import Method

Model = Mapping[str, np.ndarray]
"""One model as named arrays."""


def random_start(method: Method, learner: Learner, seed: int, dtype: torch.dtype, device: torch.device) -> Clusters:
    """K different random models in each restart, or K copies of one when the server assigns the clusters.

    Models that start equal never separate by loss; models whose clients are given need no difference, and start
    where FedAvg starts.
    """
    restarts, K = method.restarts, method.procedure.K
    if method.weights.assigned:
        one = learner.start([key_for(seed, Purpose.START, 0, 0)], dtype)
        params = {name: p.repeat(K, *(1,) * (p.dim() - 1)) for name, p in one.items()}
    else:
        params = learner.start([key_for(seed, Purpose.START, r, k) for r in range(restarts) for k in range(K)], dtype)
        if K > 1 and all(bool((p[:K] == p[0]).all()) for p in params.values()):
            raise ConfigError(
                "every start of the learner is the same, so clusters could never separate: draw some layers anew"
            )
    return as_clusters({name: p.to(device) for name, p in params.items()}, method)


def given_start(
    method: Method, learner: Learner, models: Sequence[Model], dtype: torch.dtype, device: torch.device
) -> Clusters:
    """The user's own models, one for each cluster."""
    K = method.procedure.K
    if len(models) != K:
        raise ConfigError(f"start has {len(models)} models but clusters={K}: give one model for each cluster")
    if method.restarts != 1:
        raise ConfigError(f"restarts={method.restarts} needs random starts: leave restarts at 1 when start is given")
    expected = {name: tuple(p.shape[1:]) for name, p in learner.start([0], dtype).items()}
    for index, model in enumerate(models):
        found = {name: tuple(np.shape(a)) for name, a in model.items()}
        if found != expected:
            raise ConfigError(f"start model {index} has arrays {found}, but learner {learner.spec} needs {expected}")
        if not all(np.isfinite(a).all() for a in model.values()):
            raise ConfigError(f"start model {index} has values that are not finite")
    params = {
        name: torch.stack([torch.as_tensor(np.asarray(m[name])).to(dtype) for m in models]).to(device)
        for name in expected
    }
    return as_clusters(params, method)


def as_clusters(params: Params, method: Method) -> Clusters:
    """Models {name: (R K, ...)}; shared parameters are put aside, once for each restart (those of its first model)."""
    if not method.shared:
        overall = {name: p[:1].clone() for name, p in params.items()} if method.overall else None
        return Clusters(params, method.procedure.K, method.restarts, overall=overall)
    prefixes = tuple(prefix.removesuffix(".") + "." for prefix in method.shared)
    body = {n: p[:: method.procedure.K].clone() for n, p in params.items() if f"{n}.".startswith(prefixes)}
    heads = {n: p for n, p in params.items() if n not in body}
    for prefix in prefixes:
        if not any(f"{name}.".startswith(prefix) for name in body):
            raise ConfigError(f"shared={prefix[:-1]!r} names no parameter: they are {', '.join(sorted(params))}")
    if not heads:
        raise ConfigError("shared covers every parameter: leave at least one layer to the clusters")
    return Clusters(heads, method.procedure.K, method.restarts, body)
