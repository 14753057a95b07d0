"""How a run begins: what was left to the data is decided, and the first models are there."""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch

from coterie.core.population import torch_dtype
from coterie.evaluate.regression import ask_curvature
from coterie.learners.linear import as_linear
from coterie.planning import MOMENT_DESCENT, Plan, Start
from coterie.result import Result, load
from coterie.server.loop import ServerState
from coterie.server.moment_descent import Coarse, MomentSettings, moment_descent
from coterie.server.start import Model, given_start, random_start

STABLE = 0.9
"""gamma: the automatic step size times the largest curvature of a client; below 1 every local step is stable."""


@dataclass(frozen=True)
class Begun:
    """A run before its first round."""

    plan: Plan
    """With everything decided."""
    state: ServerState
    told: Mapping[str, Any] = field(default_factory=dict)
    """What the beginning found out and what it cost, JSON-ready."""


def begin(plan: Plan) -> Begun:
    """Decide what was left to the data, and make the first models."""
    told: dict[str, Any] = {}
    models: Sequence[Model] | None = None
    clock = time.perf_counter()
    with torch.no_grad():
        if "lr" in plan.open:
            told["curvature"] = _largest_curvature(plan)
            plan = plan.settled(lr=STABLE / told["curvature"])
        if plan.start == MOMENT_DESCENT:
            coarse = _coarse(plan)
            told["moment_descent"] = coarse.told(plan.data.clients)
            plan, models = plan.settled(clusters=coarse.grouping.k), _named(plan, coarse)
        state = first_state(plan, models)
    if told:
        told["beginning_seconds"] = round(time.perf_counter() - clock, 6)
    return Begun(plan, state, told)


def _named(plan: Plan, coarse: Coarse) -> list[Model]:
    """The coarse models as a start; what the user has to know of them is told."""
    for note in coarse.grouping.notes:
        warnings.warn(f"moment descent: {note}", stacklevel=4)
    named = as_linear(plan.learner).named(coarse.centres)
    return [{name: p[k].cpu().numpy() for name, p in named.items()} for k in range(coarse.grouping.k)]


def first_state(plan: Plan, models: Start | None = None) -> ServerState:
    """The server before the first round, with random models or with those given."""
    given = plan.start if models is None else models
    dtype, device = torch_dtype(plan.options.dtype), torch.device(plan.options.device)
    if given == "random":
        clusters = random_start(plan.method, plan.learner, plan.options.seed, dtype, device)
    else:
        clusters = given_start(plan.method, plan.learner, _models(given), dtype, device)
    return ServerState.fresh(clusters, len(plan.data.clients))


def _models(start: Start) -> Sequence[Model]:
    if isinstance(start, Result):
        return start.models
    return load(start).models if isinstance(start, str) else start


def _coarse(plan: Plan) -> Coarse:
    """Moment descent with the method's own options for it, where it has any."""
    own = {f.name: plan.options.own.get(f.name) for f in fields(MomentSettings)}
    given = {name: value for name, value in own.items() if value is not None}
    settings = MomentSettings(k=None if "clusters" in plan.open else plan.options.clusters, **given)
    width = as_linear(plan.learner).coefficients
    dtype, device = torch_dtype(plan.options.dtype), torch.device(plan.options.device)
    return moment_descent(plan.federation, width, settings, plan.options.seed, dtype, device)


def _largest_curvature(plan: Plan) -> float:
    """max_i of the largest eigenvalue of X_i^T X_i / n_i, of what the learner's loss makes of it."""
    _, curvature = ask_curvature(plan.federation)
    largest = float(curvature.max()) * (1 if as_linear(plan.learner).half else 2)
    return max(largest, float(np.finfo(np.float32).tiny))
