"""How a run begins: what was left to the data is decided, and the first models are there."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.client.solvers import ExactMinimum, LocalSteps, StochasticGradient
from coterie.core.clusters import Clusters, Params, row_bytes, unflat
from coterie.core.dataset import torch_dtype
from coterie.core.keys import Purpose, generator, key_for
from coterie.core.numbers import finite_numbers
from coterie.core.schema import Schema
from coterie.core.shard import ClientId
from coterie.engines.in_process import InProcess
from coterie.errors import ConfigError, TrainingError, unknown_name
from coterie.evaluate.clients import scores
from coterie.evaluate.metrics import SURE
from coterie.evaluate.regression import ask_curvature
from coterie.learners.base import Learner
from coterie.learners.linear import Linear, as_linear
from coterie.learners.logistic import Logistic
from coterie.learners.minimum import GeneralisedLinear
from coterie.learners.projected import ProjectedSgd
from coterie.server.before import BEFORE
from coterie.server.clustering.choose import ClusterSettings
from coterie.server.grouping_once import group_by_summaries, group_by_updates
from coterie.server.loop import ServerState
from coterie.server.moment_descent import Coarse, MomentSettings, moment_descent
from coterie.server.one_shot import OneShot, Solver, one_shot
from coterie.server.start import as_clusters, given_start, random_start
from coterie.tiers.distance import PrincipalAngles
from coterie.training.planning import Plan, Start
from coterie.training.result import Result, load
from coterie.training.starts import DECOMPOSED_COSINE, MOMENT_DESCENT, ODCL, PRINCIPAL_ANGLES, STARTS, read_start

STABLE = 0.9
"""gamma: the automatic step size times the largest curvature of a client; below 1 every local step is stable."""

GIVEN = "given"
"""The name of a start that is a run folder, an earlier result or models."""

LEAST_ANGLE = 7.0
"""beta of PACFL in degrees: clients with digits of one turn are united at up to 5, those of two turns from 9 on."""


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
    assert not plan.tries, "trial runs choose the number of clusters first (fitting.begin_run)"
    told: dict[str, Any] = {}
    clock = time.perf_counter()
    with torch.no_grad():
        if "lr" in plan.open:
            told["curvature"] = _largest_curvature(plan)
            plan = plan.settled(lr=STABLE / told["curvature"])
        plan, clusters = WAYS[plan.beginning](plan, told)
    if told:
        told["beginning_seconds"] = round(time.perf_counter() - clock, 6)
    state = ServerState.fresh(clusters, len(plan.data.clients), plan.method.adapts and plan.method.weights.keeps)
    if plan.method.groups is not None and plan.method.groups.by == "one":
        plan = replace(plan, groups=torch.zeros(len(plan.data.clients), dtype=torch.int64))
    if _groups_found(plan) and plan.groups is not None:
        state = replace(state, choice=plan.groups[:, None])
    return Begun(plan, state, finite_numbers(told))


def settled_options(asked: Plan, begun: Plan) -> dict[str, Any]:
    """The options that the beginning has settled, JSON-ready."""
    before = asked.config
    return {name: value for name, value in begun.config.items() if before.get(name) != value}


def begin_again(plan: Plan, state: ServerState, told: Mapping[str, Any], settled: Mapping[str, Any]) -> Begun:
    """What `begin` gave when the run was new; clusters that it found are in the state.

    told, settled: What it found out, and the options that it settled.
    """
    if settled:
        plan = plan.settled(**settled)
    if plan.federation.shelf is not None and state.clients:
        plan.federation.shelf.restore(state.clients)
    if "drift" in told:
        plan = replace(plan, before=told["drift"]["before"])
    return Begun(replace(plan, groups=state.choice[:, 0]) if _groups_found(plan) else plan, state, told)


def _groups_found(plan: Plan) -> bool:
    """Whether the server's clusters begin with the run, and are in its state."""
    return plan.method.groups is not None and plan.method.groups.by in ("start", "one")


# ---- the ways to begin: from a plan to a plan with everything decided, and the models ------------------------------


def _random(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    return plan, random_start(plan.method, plan.learner, plan.options.seed, *_place(plan))


def check_start(start: Start) -> None:
    """Refuse a text that is neither the name of a start nor a run folder."""
    if isinstance(start, str) and read_start(start) is None and not Path(start).exists():
        raise ConfigError(f"{start} is no run folder, and {unknown_name('start', start.partition(':')[0], STARTS)}")


def _given(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    start = plan.start
    check_start(start)
    if isinstance(start, Result | str):
        earlier = start if isinstance(start, Result) else load(start)
        _check_schema(earlier.schema, plan.data.schema)
        clusters = given_start(plan.method, plan.learner, earlier.models, *_place(plan))
        told["drift"] = drifted(plan, clusters, earlier.assignments)
        return replace(plan, before=earlier.assignments), clusters
    return plan, given_start(plan.method, plan.learner, start, *_place(plan))


def _check_schema(earlier: Schema, now: Schema) -> None:
    """Refuse models whose features or classes mean something else; warn where only the scaling differs."""
    if (earlier.columns, earlier.classes) != (now.columns, now.classes):
        raise ConfigError(
            "start: the earlier run has other columns or class labels than this data, so its models mean something "
            "else: read the table by from_table(..., schema=earlier.schema)"
        )
    if earlier.scales != now.scales:
        warnings.warn(
            "start: the table of the earlier run was scaled by other means and deviations, so that its models fit less "
            "well and drift is overstated: read the table by from_table(..., schema=earlier.schema)",
            stacklevel=2,
        )


def drifted(plan: Plan, clusters: Clusters, before: Mapping[ClientId, int]) -> dict[str, Any]:
    """Whose group of an earlier run no longer fits, before anything is trained: another model is surely better.

    before: each client's cluster then. Sure: by `SURE` standard errors on the client's held-out samples, or for want of
    them on its training samples.
    """
    clients = plan.data.clients
    told: dict[str, Any] = {
        "before": dict(before),
        "new": [client for client in clients if client not in before],
        "left": sorted(set(before) - set(clients)),
        "alarms": [],
    }
    own = torch.tensor([before.get(client, -1) for client in clients])
    if clusters.K == 1 or clusters.restarts > 1 or not bool((own >= 0).any()):
        return told
    found = scores(plan.federation, clusters, own, BEFORE, plan.learner.classes is None, margin=True)
    assert found.margin is not None
    assert found.losses is not None
    for at, margin, losses in zip(found.positions, found.margin, found.losses, strict=True):
        if margin <= -SURE:
            alarm = {"id": clients[at], "was": int(own[at]), "better": int(losses.argmin()), "margin": float(margin)}
            told["alarms"].append(alarm)
    if told["alarms"]:
        named = ", ".join(alarm["id"] for alarm in told["alarms"][:5]) + ", ..." * (len(told["alarms"]) > 5)
        warnings.warn(
            f"the group of {len(told['alarms'])} of {int((own >= 0).sum())} clients no longer fits ({named}): they may "
            "change their cluster",
            stacklevel=5,
        )
    return told


def _gaussian(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    sd = plan.beginning_settings["sd"]
    if sd == 0 and plan.method.procedure.K > 1 and not plan.method.weights.assigned:
        raise ConfigError("start=gaussian:sd=0 makes all clusters equal, so that they never separate: give sd above 0")
    return plan, as_clusters(_noisy(plan, _one_model(plan), sd), plan.method)


def _moment_descent(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    coarse = _coarse(plan)
    told["moment_descent"] = coarse.told(plan.data.clients)
    for note in coarse.grouping.notes:
        warnings.warn(f"moment descent: {note}", stacklevel=4)
    plan = plan.settled(clusters=coarse.grouping.k)
    named = as_linear(plan.learner).named(coarse.centres)
    models = [{name: p[k].cpu().numpy() for name, p in named.items()} for k in range(coarse.grouping.k)]
    return plan, given_start(plan.method, plan.learner, models, *_place(plan))


def _one_shot(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    """The clients' own solutions, clustered and averaged, or averaged inside the groups that the method has."""
    like = _one_model(plan)
    groups = torch.zeros(len(plan.data.clients), dtype=torch.int64) if plan.entry.groups == "one" else plan.groups
    found = one_shot(
        plan.federation,
        _solver(plan, like),
        like,
        _cluster_settings(plan),
        plan.options.client_weight == "samples",
        plan.options.seed,
        groups=groups,
        truth=plan.data.truth,
    )
    K = next(iter(found.models.values())).shape[0]
    told["one_shot"] = _with_costs(plan, found)
    for note in (*found.told.get("warnings", ()), *_about_sizes(plan, like)):
        warnings.warn(f"one-shot: {note}", stacklevel=4)
    plan = plan.settled(clusters=K)
    if plan.method.weights.assigned and plan.entry.groups != "truth":
        plan = replace(plan, groups=found.labels)
    return plan, as_clusters(found.models, plan.method)


def _principal_angles(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    """Groups by what samples look like; the models of all start as FedAvg's does."""
    settings = plan.beginning_settings
    if not plan.method.weights.assigned:
        raise ConfigError(
            f"start={PRINCIPAL_ANGLES} finds groups and no models, but in {plan.entry.name} clients choose by models: "
            "use method pacfl, or another start"
        )
    if settings["per_class"] and plan.learner.classes is None:
        raise ConfigError("per_class needs labels that are classes, but the targets are numbers: leave it out")
    beta, K = settings["beta"], None if "clusters" in plan.open else plan.options.clusters
    if beta is None and K is None and settings["angle"] == "sum":
        raise ConfigError("angle=sum needs beta, in degrees, or a number of clusters: sums depend on the data too much")
    found = group_by_summaries(
        plan.federation,
        PrincipalAngles(settings["directions"], settings["per_class"], settings["angle"]),
        settings["linkage"],
        K=K,
        limit=LEAST_ANGLE if beta is None else beta,
        seed=plan.options.seed,
    )
    told["grouping"] = found.told
    plan = replace(plan.settled(clusters=found.K), groups=found.labels)
    return plan, random_start(plan.method, plan.learner, plan.options.seed, *_place(plan))


def _decomposed_cosine(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    """Groups by what clients made of one model, and the mean of what its members made of it for each."""
    settings = plan.beginning_settings
    found = group_by_updates(
        plan.federation,
        _steps(plan, _one_model(plan), settings["pretrain_steps"]),
        plan.options.clusters,
        settings["measure"],
        settings["founders"],
        plan.options.client_weight == "samples",
        plan.options.seed,
    )
    told["grouping"] = found.told
    if plan.method.weights.assigned:
        plan = replace(plan, groups=found.labels)
    return plan, as_clusters(found.models, plan.method)


def _cluster_oracle(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    """The data of each true group in one place, which no federation can do: a yardstick."""
    if plan.data.truth is None:
        raise ConfigError("cluster-oracle needs the true groups: pass truth= to from_arrays, or take another start")
    K, groups = plan.method.procedure.K, int(plan.data.truth.max()) + 1
    if groups != K:
        raise ConfigError(
            f"cluster-oracle has {groups} true groups, but clusters={K}: leave clusters out or give {groups}"
        )
    if not isinstance(plan.federation, InProcess):
        raise ConfigError(
            "cluster-oracle puts the clients' data in one place, which only a simulation can: leave it out"
        )
    group, like = plan.federation.group, _one_model(plan)
    solver = _solver(plan, like)
    pooled = replace(group, train=group.train.pooled(plan.data.truth), test=None, validation=None, memory=None)
    reply = pooled.serve(solver.task(plan.options.seed), solver.broadcast)
    if len(reply.clients) < K:
        raise TrainingError(f"the pooled data of {K - len(reply.clients)} groups has no solution: give the learner l2")
    models = {name: p.to(like[name]) for name, p in unflat(reply.rows["model"], like).items()}
    return plan, as_clusters(_noisy(plan, models, plan.beginning_settings["noise"]), plan.method)


def _near_truth(plan: Plan, told: dict[str, Any]) -> tuple[Plan, Clusters]:
    """theta_k* plus a random direction times a length between `low` and `high` times D."""
    settings, K = plan.beginning_settings, plan.method.procedure.K
    true, like = plan.data.true_models, _one_model(plan)
    if true is None or set(like) != {"weight"} or true.shape[1:] != like["weight"].shape[1:]:
        raise ConfigError("near-truth needs a scenario with known true models and a learner of their shape, no bias")
    if len(true) != K or K < 2:
        raise ConfigError(f"near-truth measures in distances between {len(true)} true models, but clusters={K}")
    if settings["low"] > settings["high"]:
        raise ConfigError(f"near-truth: low={settings['low']:g} is above high={settings['high']:g}")
    apart = min(float(np.linalg.norm(a - b)) for a, b in combinations(true, 2))
    rows: list[np.ndarray] = []
    for key in _keys(plan):
        random = generator(key)
        way = random.standard_normal(true.shape[1])
        length = random.uniform(settings["low"], settings["high"]) * apart
        rows.append(true[len(rows) % K] + way * (length / np.linalg.norm(way)))
    return plan, as_clusters({"weight": torch.from_numpy(np.stack(rows)).to(like["weight"])}, plan.method)


WAYS: Mapping[str, Callable[[Plan, dict[str, Any]], tuple[Plan, Clusters]]] = {
    "random": _random,
    GIVEN: _given,
    "gaussian": _gaussian,
    MOMENT_DESCENT: _moment_descent,
    ODCL: _one_shot,
    PRINCIPAL_ANGLES: _principal_angles,
    DECOMPOSED_COSINE: _decomposed_cosine,
    "cluster-oracle": _cluster_oracle,
    "near-truth": _near_truth,
}


def _place(plan: Plan) -> tuple[torch.dtype, torch.device]:
    return torch_dtype(plan.options.dtype), torch.device(plan.options.device)


def _one_model(plan: Plan) -> Params:
    """The model that FedAvg starts from, {name: (1, ...)}."""
    dtype, device = _place(plan)
    one = plan.learner.start([key_for(plan.options.seed, Purpose.START, 0, 0)], dtype)
    return {name: p.to(device) for name, p in one.items()}


def _keys(plan: Plan) -> list[int]:
    """One for each model of each restart."""
    restarts, K = plan.method.restarts, plan.method.procedure.K
    return [key_for(plan.options.seed, Purpose.START, r, k) for r in range(restarts) for k in range(K)]


def _noisy(plan: Plan, models: Params, sd: float) -> Params:
    """Models {name: (K, ...)}, or one at zero for all, in every restart, with N(0, sd^2) added to every parameter."""
    rows = []
    for key in _keys(plan):
        random = generator(key)
        rows.append({n: sd * random.standard_normal(tuple(p.shape[1:])) for n, p in sorted(models.items())})
    noise = {n: torch.from_numpy(np.stack([row[n] for row in rows])).to(p) for n, p in models.items()}
    if len(next(iter(models.values()))) == 1:
        return noise
    return {n: p.repeat(plan.method.restarts, *(1,) * (p.dim() - 1)) + noise[n] for n, p in models.items()}


def _solver(plan: Plan, start: Params) -> Solver:
    """How clients solve their own problems."""
    settings = plan.beginning_settings
    name = settings["solver"] or ("exact" if _has_minimum(plan.learner) else "steps")
    if name == "exact":
        return Solver(ExactMinimum())
    if name == "sgd":
        if settings["sgd_radius"] is None:
            raise ConfigError(
                "solver=sgd projects on a ball around zero that must hold the solutions: give its radius, sgd_radius"
            )
        given = {key.removeprefix("sgd_"): value for key, value in settings.items() if key.startswith("sgd_")}
        return Solver(StochasticGradient(ProjectedSgd(**given)))
    return _steps(plan, start, settings["solve_steps"])


def _steps(plan: Plan, start: Params, steps: int | None) -> Solver:
    """Plain local steps from one model, so many or as many as in a round."""
    work = replace(plan.method.work, prox=0.0, implicit=False)
    if steps is not None:
        work = replace(work, steps=steps, epochs=None)
    return Solver(LocalSteps(work), start, plan.method.rate(0))


def _has_minimum(learner: Learner) -> bool:
    """Whether every client's problem has a solution, classes that it lacks aside."""
    return isinstance(learner, Linear) or (isinstance(learner, Logistic) and learner.l2 > 0)


def _cluster_settings(plan: Plan) -> ClusterSettings:
    settings = plan.beginning_settings
    known = {f.name for f in fields(ClusterSettings)} & settings.keys()
    given = {name: settings[name] for name in known}
    return ClusterSettings(clusters=None if "clusters" in plan.open else plan.options.clusters, **given)


def _with_costs(plan: Plan, found: OneShot) -> dict[str, Any]:
    """What is told, with the bytes of the whole exchange: where no rounds follow, each client is sent its model."""
    told = {**found.told, "clusters": next(iter(found.models.values())).shape[0]}
    if not plan.method.travels:
        return told | {"bytes_up": 0, "bytes_down": 0}
    if plan.options.rounds == 0:
        told["bytes_down"] += int((found.labels >= 0).sum()) * (row_bytes(found.models) + 8)
    return told


def _about_sizes(plan: Plan, like: Params) -> Iterator[str]:
    """A sentence where clients have fewer samples than coefficients."""
    width, sizes = row_bytes(like) // next(iter(like.values())).element_size(), plan.federation.sizes
    few = int((sizes < width).sum())
    if few and plan.entry.groups == "found" and isinstance(plan.learner, GeneralisedLinear):
        yield (
            f"{few} of {len(sizes)} clients have fewer samples than the model has coefficients ({width}): their own "
            "solutions say little, and so may the clusters"
        )


def _coarse(plan: Plan) -> Coarse:
    """Moment descent with what the start or the method says about it."""
    given = {name: value for name, value in plan.beginning_settings.items() if value is not None}
    settings = MomentSettings(k=None if "clusters" in plan.open else plan.options.clusters, **given)
    width = as_linear(plan.learner).coefficients
    dtype, device = torch_dtype(plan.options.dtype), torch.device(plan.options.device)
    return moment_descent(plan.federation, width, settings, plan.options.seed, dtype, device)


def _largest_curvature(plan: Plan) -> float:
    """max_i of the largest eigenvalue of X_i^T X_i / n_i, of what the learner's loss makes of it."""
    _, curvature = ask_curvature(plan.federation)
    largest = float(curvature.max()) * (1 if as_linear(plan.learner).half else 2)
    if not np.isfinite(largest):
        raise TrainingError("lr=auto: the squares of the features are not finite: standardise the columns or give lr")
    return max(largest, float(np.finfo(np.float32).tiny))
