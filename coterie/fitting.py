"""From a plan to a result: begin, run the loop, look at what came out."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.population import Population
from coterie.errors import RunError
from coterie.evaluate.clients import Mixture, Scores, own_weights, scores, training_losses
from coterie.evaluate.metrics import SURE, agreement, parameter_error, worst_tenth
from coterie.evaluate.newcomers import newcomer_scores, scores_of_own
from coterie.evaluate.regression import memberships, regression_report
from coterie.learners import LearnerChoice
from coterie.learners.base import Learner
from coterie.learners.linear import Linear
from coterie.planning import Plan, Start, prepare
from coterie.result import Result, load
from coterie.runs.folder import Record, RunFolder, versions
from coterie.scenarios import SCENARIOS, scenario
from coterie.server.loop import Round, ServerState, best_lane
from coterie.server.loop import settle as settle_lane
from coterie.server.race import rounds_with_race
from coterie.starting import Begun, begin, begin_again
from coterie.tiers.weights import SoftByEM

OnRound = Callable[[Record], bool | None]
"""Called with each round's record before it is written; True ends the run after this round."""

MOST_PRODUCTS = 2 * 10**10
"""Samples times squared coefficients up to which the diagnostics of linear models are computed; a second or two."""
DETAILED = 500
"""Up to so many clients a record holds every client's cluster; beyond, only sizes and moves."""


def fit(
    data: Population,
    method: str = "ifca",
    *,
    learner: LearnerChoice | None = None,
    start: Start | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    **options: Any,
) -> Result:
    """Find the groups and train a model for each.

    data: from `from_arrays` or `scenario`.
    method: a name from `coterie methods`; its options follow as keywords (`coterie describe NAME` lists them).
    learner: a name with settings ("mlp:hidden=200") or a function that returns a torch.nn.Module.
    start: a name with settings ("random", "odcl", "gaussian:sd=1"; `coterie.starts` has them all), a run folder, an
        earlier result, or K models as dicts of named arrays; by default what the method begins with.
    out: a folder to write the run to; it must not exist yet.
    on_round: called with each round's record before it is written. If it returns True the run ends there, as one that
        has reached its last round; if it raises, the folder can be resumed.
    """
    return carry_out(prepare(data, method, learner, start, options), out, on_round)


def carry_out(plan: Plan, out: str | Path | None = None, on_round: OnRound | None = None) -> Result:
    """Run a plan from its first round, in a new folder if one is named."""
    begun = begin(plan)
    folder = None
    if out is not None:
        folder = RunFolder.create(Path(out), begun.plan.config, plan.data.fingerprint())
        folder.begin(begun.told)
        folder.checkpoint(begun.state)
    return execute(begun, folder, on_round or (lambda record: None))


def resume(
    folder: str | Path,
    data: Population | None = None,
    *,
    learner: LearnerChoice | None = None,
    on_round: OnRound | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Result:
    """Go on with an interrupted run; it ends as if it had never stopped.

    data: needed only for arrays of one's own; checked against the digest stored with the run.
    """
    run = RunFolder.open(Path(folder))
    if run.finished:
        return load(folder, learner=learner)
    config = run.config
    data = _data_again(config, data, run.path)
    if data.fingerprint() != run.fingerprint:
        raise RunError(f"{folder}: the data is not that of the run: pass the same to coterie.resume(folder, data)")
    elsewhere = {"scenario", "method", "learner", "start", *data.options}
    options = {name: value for name, value in config.items() if name not in elsewhere}
    plan = prepare(data, config["method"], learner or config["learner"], config.get("start", "random"), options)
    state, records = run.last_state(warn)
    best = run.best_state(warn, before=len(records))
    with _as_before(run.versions, warn):
        begun = begin(plan) if state is None else begin_again(plan, state, run.beginning)
        return execute(begun, run, on_round or (lambda record: None), records, best)


@contextmanager
def _as_before(before: Mapping[str, Any], warn: Callable[[str], None]) -> Iterator[None]:
    """The number of threads the run began with, since sums depend on it; other versions can only be told."""
    now = versions()
    changed = [name for name in now if name in before and name != "threads" and now[name] != before[name]]
    if changed:
        told = ", ".join(f"{name} {before[name]} is now {now[name]}" for name in changed)
        warn(f"the run began elsewhere ({told}): it goes on, but may differ in the last digits")
    torch.set_num_threads(int(before.get("threads", now["threads"])))
    try:
        yield
    finally:
        torch.set_num_threads(now["threads"])


def _data_again(config: Mapping[str, Any], data: Population | None, path: Path) -> Population:
    if data is not None:
        return data
    name = config["scenario"]
    if name not in SCENARIOS:
        raise RunError(
            f"{path} was run on arrays: use coterie.resume(folder, federation) in Python with the same arrays"
        )
    known = {option.name for option in SCENARIOS[name].options}
    return scenario(name, seed=config["seed"], **{k: v for k, v in config.items() if k in known})


# ---- running -------------------------------------------------------------------------------------------------


def execute(
    begun: Begun,
    folder: RunFolder | None,
    on_round: OnRound,
    records: list[Record] | None = None,
    best: ServerState | None = None,
) -> Result:
    """Run to the last round, or until it stops early; `records` are those of the rounds before the state.

    `best` is the state with the least validation loss among them, where such a state is kept.
    """
    plan, state, records = begun.plan, begun.state, [] if records is None else records
    options = plan.options
    watch = plan.watch()
    for record in records:
        watch.see(record)
    keeps_best = options.patience is not None and plan.validated is not None
    clock = time.perf_counter()
    with torch.no_grad():
        for done in () if _has_stopped(records) else _rounds(plan, state):
            state = done.state
            record = _record(plan, done, time.perf_counter() - clock)
            if "start" not in record and records and "start" in records[-1]:
                record["start"] = records[-1]["start"]  # a race is over: the start that won it goes on
            if watch.see(record) and keeps_best:
                best = _with_clients(plan, state)
            # the mark is written with the record: a run killed after it does not go on when it is resumed
            wanted = on_round(record)
            last = state.round == options.rounds
            if not last and (watch.exhausted or _is_true(wanted)):
                record["stopped"], last = "patience" if watch.exhausted else "on_round", True
            records.append(record)
            if folder is not None:
                folder.append(record)
                if state.round % options.checkpoint_every == 0 or last:
                    folder.checkpoint(_with_clients(plan, state), best)
            if last:
                break
            clock = time.perf_counter()
        if best is not None and plan.federation.shelf is not None:
            plan.federation.shelf.restore(best.clients)
        result = _conclude(replace(begun, state=best or state), records)
    if folder is not None:
        folder.finish(result.parameters, result.summary())
    return result


def _with_clients(plan: Plan, state: ServerState) -> ServerState:
    """The state with a copy of what simulated clients keep, as a checkpoint holds it."""
    shelf = plan.federation.shelf
    return state if shelf is None else replace(state, clients=shelf.copy())


def _rounds(plan: Plan, state: ServerState) -> Iterator[Round]:
    options = plan.options
    return rounds_with_race(plan.method, plan.federation, state, options.rounds, options.seed, plan.groups)


def _is_true(answer: object) -> bool:
    """Whether a callback said True, Python's or NumPy's; other values that happen to be true say nothing."""
    return isinstance(answer, bool | np.bool_) and bool(answer)


def _has_stopped(records: list[Record]) -> bool:
    return bool(records) and "stopped" in records[-1]


def _record(plan: Plan, done: Round, seconds: float) -> Record:
    """One JSON-ready dict; with several starts its figures are those of the one that leads."""
    lane = best_lane(done.state.loss)
    choice = done.state.choice[:, lane]
    known = choice >= 0
    K = done.state.clusters.K
    sizes = torch.bincount(choice[known], minlength=K).tolist()
    record: Record = {
        "round": done.state.round - 1,
        "seconds": round(seconds, 6),
        "loss": _finite(done.state.loss[lane]),
        "clusters": sum(size > 0 for size in sizes),
        "moved": int(done.moved[lane]),
        "answered": done.answered,
        "missing": list(done.missing),
        "rejected": list(done.rejected),
        "bytes_up": done.bytes_up,
        "bytes_down": done.bytes_down,
        "path": done.path,
    }
    if plan.entry.groups != "self":
        record["sizes"] = sizes
        if len(choice) <= DETAILED:
            record["assignments"] = choice.tolist()
    if done.likelihood is not None:
        record["likelihood"] = _finite(done.likelihood[lane])
    if len(done.state.loss) > 1:
        record |= {"start": lane, "start_losses": [_finite(value) for value in done.state.loss]}
    if done.state.round % plan.options.evaluate_every == 0 or done.state.round == plan.options.rounds:
        models, at = done.state.clusters.lane(lane), done.state.round - 1
        mixture = _mixture(plan, done.state, lane)
        record |= _validation_figures(plan, models, choice, at, mixture)
        asked = _with_test_samples(plan, choice)
        if plan.data.test is not None and bool((asked >= 0).any()):
            found = scores(plan.federation, models, asked, at, plan.learner.classes is None, mixture=mixture)
            record |= _score_figures(plan, found)
        if plan.entry.groups != "self":  # a model for each client: only at the end
            record |= _newcomers(plan, models)
    if plan.data.truth is not None and bool(known.any()):
        rows = known.numpy()
        agreed = agreement(plan.data.truth[rows], choice.numpy()[rows])
        record |= {"ari": agreed["ari"], "identity": agreed["identity"]}
    return record


def _newcomers(plan: Plan, clusters: Clusters) -> dict[str, float | None]:
    """The mean score of newcomers, one for each true group, where the data has some."""
    newcomers, truth, regression = plan.data.newcomers, plan.data.truth, plan.learner.classes is None
    if newcomers is None:
        return {}
    models = clusters.all_models()
    if plan.entry.groups == "self" and truth is not None:
        found = scores_of_own(plan.learner, models, newcomers, truth)
    else:
        found = newcomer_scores(plan.learner, models, newcomers, _is_soft(plan))
    return {"newcomers": _finite(np.sqrt(found).mean() if regression else found.mean())}


def _best_rounds(plan: Plan, records: list[Record]) -> dict[str, Any]:
    """The best figures of all rounds beside those of the last, and after how many rounds, for tables that show both."""
    best: dict[str, Any] = {}
    better = min if plan.learner.classes is None else max
    for name in (score_name(plan.learner), "newcomers"):
        known = [(record[name], record["round"] + 1) for record in records if record.get(name) is not None]
        if known and plan.data.newcomers is not None:
            value, after = better(known, key=lambda pair: pair[0])
            best |= {f"best_{name}": value, f"best_{name}_after": after}
    return best


def _finite(value: float | Tensor) -> float | None:
    """A number for JSON; None when it is infinite or NaN."""
    return float(value) if math.isfinite(value) else None


def _score_figures(plan: Plan, found: Scores) -> dict[str, float | None]:
    """The mean over clients, and over the worst-off tenth of them; None if a model does not fit somebody at all."""
    name = score_name(plan.learner)
    figures = {name: found.score.mean(), "worst_tenth": worst_tenth(found.score, name == "accuracy")}
    return {key: _finite(value) for key, value in figures.items()}


def _validation_figures(
    plan: Plan, clusters: Clusters, own: Tensor, round_: int, mixture: Mixture | None
) -> dict[str, float | None]:
    """Loss and score on validation samples, the mean over the clients that have some and a cluster in `own` (m,)."""
    asked = _with_samples(plan, own)
    if plan.validated is None or not bool((asked >= 0).any()):
        return {}
    regression = plan.learner.classes is None
    found = scores(plan.federation, clusters, asked, round_, regression, on="validation", mixture=mixture)
    figures = {"loss": found.loss.mean(), score_name(plan.learner): found.score.mean()}
    return {f"validation_{name}": _finite(value) for name, value in figures.items()}


def _with_samples(plan: Plan, own: Tensor) -> Tensor:
    """The clusters (m,) of those clients that have validation samples; the others are not asked."""
    return own if plan.validated is None else torch.where(plan.validated, own, -1)


def _with_test_samples(plan: Plan, own: Tensor) -> Tensor:
    """The clusters (m,) of those clients that have test samples: one with a single row of a table has none."""
    test = plan.data.test
    return own if test is None else torch.where(torch.from_numpy(test.sizes > 0), own, -1)


def score_name(learner: Learner) -> str:
    """`accuracy` for classes, `rmse` for numbers."""
    return "rmse" if learner.classes is None else "accuracy"


def _conclude(done: Begun, records: list[Record]) -> Result:
    """Ask everybody once more: which start won, who belongs where, how well does it do."""
    plan, state = done.plan, done.state
    last = state.round - 1
    settled = _settled_softly(plan, state) if _is_soft(plan) else _settled(plan, state)
    positions, own, lane, start_losses = settled.positions, settled.own, settled.lane, settled.start_losses
    clusters = settle_lane(state, lane).clusters
    chooses = not plan.method.weights.assigned and clusters.K > 1
    doubtful = clusters.K > 1 and plan.entry.groups == "found"  # whose clusters may be wrong, whoever found them
    asked = _with_samples(plan, own) if plan.data.test is None else _with_test_samples(plan, own)
    found = scores(
        plan.federation,
        clusters,
        asked,
        last,
        plan.learner.classes is None,
        margin=doubtful,
        mixture=_mixture(plan, state, lane),
    )
    rows = _client_rows(plan, own, positions, found)
    if settled.weights is not None:
        rows = [{**row, "weights": each.tolist()} for row, each in zip(rows, settled.weights, strict=True)]
    if isinstance(plan.learner, Linear) and chooses and settled.losses is not None:
        sizes = plan.federation.sizes[positions]
        posterior = memberships(settled.losses, sizes, own.numpy()[positions], plan.learner)
        rows = [{**row, "posterior": each.tolist()} for row, each in zip(rows, posterior, strict=True)]
    metrics = _metrics(plan, records, own.numpy()[positions], positions, found, clusters, float(start_losses[lane]))
    metrics |= _validation_figures(plan, clusters, own, last, _mixture(plan, state, lane)) | _how_it_ended(
        plan, state, records
    )
    metrics |= _with_the_beginning(metrics, done.told) | _newcomers(plan, clusters) | _best_rounds(plan, records)
    if (regression := _regression(plan, clusters, own, last)) is not None:
        metrics["regression"] = regression
    if len(start_losses) > 1:
        metrics |= {"start": lane, "start_losses": [_finite(v) for v in start_losses]}
    elif records and "start" in records[-1]:
        metrics["start"] = records[-1]["start"]
    return Result(
        plan.config, plan.data.profile, plan.learner, clusters.models(), records, metrics, rows, plan.data.fingerprint()
    )


def _with_the_beginning(metrics: Mapping[str, Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What the beginning found out, and the totals with what it took."""
    found = told.get("moment_descent", told.get("one_shot", {}))
    costs = {**found, "seconds": told.get("beginning_seconds", 0)}
    totals = {name: metrics[name] + costs.get(name, 0) for name in ("bytes_up", "bytes_down", "seconds")}
    exchanges = {"exchanges": metrics["rounds"] + found["exchanges"]} if found else {}
    return {**told, **totals, **exchanges, "seconds": round(totals["seconds"], 3)}


def _regression(plan: Plan, clusters: Clusters, own: Tensor, last: int) -> dict[str, Any] | None:
    """Coefficients with intervals and the theory's guides, for linear models; None where they would cost too much."""
    if not isinstance(plan.learner, Linear) or plan.entry.groups == "self":
        return None
    if int(plan.federation.sizes.sum()) * plan.learner.coefficients**2 > MOST_PRODUCTS:
        warnings.warn("intervals of the coefficients are left out: with so much data they take long", stacklevel=2)
        return None
    work, lr = plan.method.work, plan.method.rate(max(0, last)) if plan.options.rounds else None
    return regression_report(
        plan.federation,
        plan.learner,
        clusters,
        own,
        round_=last,
        lr=lr,
        steps=work.full_batch_steps,
        prox=work.implicit,
        names=plan.data.feature_names or None,
    )


@dataclass(frozen=True)
class _Settled:
    """Which start won, and who belongs where."""

    positions: np.ndarray
    """Who answered."""
    own: Tensor
    """(m,) each client's final cluster, or -1."""
    lane: int
    start_losses: np.ndarray
    """(R,) each lane's mean training loss."""
    losses: np.ndarray | None = None
    """(answered, K) mean training losses under the models of the lane that won, where all were measured."""
    weights: np.ndarray | None = None
    """(answered, K) each client's own weights, where it has some."""


def _settled(plan: Plan, state: ServerState) -> _Settled:
    """By training loss: the least one of each client, and of each lane."""
    clusters = state.clusters
    positions, table = training_losses(plan.federation, clusters, plan.groups, state.round - 1)
    sizes, rows = plan.federation.sizes[positions], torch.from_numpy(positions)
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    if plan.groups is not None:
        own[rows] = plan.groups[rows]
        return _Settled(positions, own, 0, np.array([np.average(table[:, 0], weights=sizes)]))
    by_lane = table.reshape(len(table), clusters.lanes, clusters.K)
    finite = np.where(np.isfinite(by_lane), by_lane, np.inf)
    chosen = finite.argmin(axis=2)
    if plan.method.weights.keeps:  # clients that have a cluster stay in it
        told = state.choice.numpy()[positions]
        chosen = np.where(told >= 0, told, chosen)
    losses = np.average(np.take_along_axis(finite, chosen[:, :, None], axis=2)[:, :, 0], axis=0, weights=sizes)
    lane = int(np.argmin(losses))
    own[rows] = torch.from_numpy(chosen[:, lane])
    return _Settled(positions, own, lane, losses, by_lane[:, lane])


def _settled_softly(plan: Plan, state: ServerState) -> _Settled:
    """By the clients' own weights: the cluster that weighs most, and the lane of least weighted loss."""
    positions, weights, losses = own_weights(plan.federation, state.clusters, state.accepted, state.round - 1)
    by_lane = np.average(
        np.where(np.isfinite(losses), losses, np.inf), axis=0, weights=plan.federation.sizes[positions]
    )
    lane = int(np.argmin(by_lane))
    own = torch.full((len(plan.data.clients),), -1, dtype=torch.int64)
    own[torch.from_numpy(positions)] = torch.from_numpy(weights[:, lane].argmax(axis=1))
    return _Settled(positions, own, lane, by_lane, weights=weights[:, lane])


def _is_soft(plan: Plan) -> bool:
    return isinstance(plan.method.weights, SoftByEM)


def _mixture(plan: Plan, state: ServerState, lane: int) -> Mixture | None:
    """How clients with soft weights predict."""
    return Mixture(lane, state.clusters.lanes, state.accepted) if _is_soft(plan) else None


def _how_it_ended(plan: Plan, state: ServerState, records: list[Record]) -> dict[str, Any]:
    """Whether the run stopped early, and after how many rounds its models were taken if not after the last."""
    ended: dict[str, Any] = {"stopped": records[-1]["stopped"]} if _has_stopped(records) else {}
    return ended if state.round == len(records) else ended | {"best_rounds": state.round}


def _client_rows(plan: Plan, own: Tensor, positions: np.ndarray, found: Scores) -> list[dict[str, Any]]:
    """One row for each client at `positions`; one without samples to be scored on has no score."""
    place = {int(i): at for at, i in enumerate(found.positions)}
    rows = []
    for i in positions:
        at = place.get(int(i))
        row: dict[str, Any] = {
            "id": plan.data.clients[i],
            "n": int(plan.federation.sizes[i]),
            "cluster": int(own[i]),
            "score": None if at is None else _finite(found.score[at]),
            "loss": None if at is None else _finite(found.loss[at]),
        }
        if plan.data.truth is not None:
            row["truth"] = plan.data.group_names[plan.data.truth[i]]
        if at is not None and found.margin is not None and found.losses is not None:
            row |= {"margin": _finite(found.margin[at]), "losses": [_finite(v) for v in found.losses[at]]}
        rows.append(row)
    return rows


def _metrics(
    plan: Plan,
    records: list[Record],
    known: np.ndarray,
    positions: np.ndarray,
    found: Scores,
    clusters: Clusters,
    loss: float,
) -> dict[str, Any]:
    """The final figures; `known` are the clusters of the clients at `positions`."""
    metrics: dict[str, Any] = {
        "loss": _finite(loss),
        "clusters": len(np.unique(known)),
        "clients": len(known),
        **_score_figures(plan, found),
        "evaluated_on": plan.evaluated_on,
        "rounds": len(records),
        "bytes_up": sum(record["bytes_up"] for record in records),
        "bytes_down": sum(record["bytes_down"] for record in records),
        "seconds": round(sum(record["seconds"] for record in records), 3),
    }
    if found.margin is not None:
        metrics["sure"] = int((found.margin >= SURE).sum())
    if plan.data.truth is not None:
        metrics |= agreement(plan.data.truth[positions], known)
    if plan.data.true_models is not None and set(clusters.params) == {"weight"}:
        weights = clusters.params["weight"].double().cpu().numpy()
        if weights.shape[1:] == plan.data.true_models.shape[1:]:
            metrics["parameter_error"] = parameter_error(plan.data.true_models, weights)
    return metrics
