"""From a plan to a result: begin, run the loop, look at what came out."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.core.dataset import ClientDirectory
from coterie.data import SCENARIOS, scenario
from coterie.engines.in_process import InProcess
from coterie.engines.remote import RemoteClients
from coterie.errors import CoterieError, RunError, memory_failures
from coterie.learners import LearnerChoice
from coterie.privacy.budget import Spending
from coterie.server.loop import Round, ServerState
from coterie.server.race import rounds_with_race
from coterie.training.choosing import OnTrial, choose
from coterie.training.composing import COMPOSED, Composition
from coterie.training.concluding import conclude, has_stopped
from coterie.training.divergence import overflow_refused
from coterie.training.measuring import record_of
from coterie.training.planning import Plan, Start, prepare
from coterie.training.records import RoundRecord
from coterie.training.result import Result, load
from coterie.training.runs.files import writing
from coterie.training.runs.folder import RunFolder, versions
from coterie.training.runs.journal import TrialLog
from coterie.training.starting import GIVEN, Begun, begin, begin_again, settled_options

OnRound = Callable[[RoundRecord], bool | None]
"""Called with each round's record before it is written; True ends the run after this round."""


def fit(
    data: ClientDirectory,
    method: str | Composition = "ifca",
    *,
    learner: LearnerChoice | None = None,
    start: Start | None = None,
    out: str | Path | None = None,
    on_round: OnRound | None = None,
    on_trial: OnTrial | None = None,
    **options: Any,
) -> Result:
    """Find the groups and train a model for each.

    data: from `from_arrays` or `scenario`; or clients that live elsewhere, see docs/flower.md.
    method: a name from `coterie methods`; its options follow as keywords (`coterie describe NAME` lists them). Or a
        mix of one's own, from `compose`.
    learner: a name with settings ("mlp:hidden=200") or a function that returns a torch.nn.Module.
    start: a name with settings ("random", "odcl", "gaussian:sd=1"; `coterie.training.starts` has them all), a run
        folder, an earlier result, or K models as dicts of named arrays; by default what the method begins with.
    out: a folder to write the run to; it must not exist yet.
    on_round: called with each round's record before it is written. If it returns True the run ends there, as one that
        has reached its last round; if it raises, the folder can be resumed.
    on_trial: called with the number of finished trial runs and the number of all, where trial runs choose the number
        of clusters (`clusters="auto"`).
    """
    if isinstance(method, Composition):
        options = {**method.options, **options}
        method = COMPOSED
    return carry_out(prepare(data, method, learner, start, options), out, on_round, on_trial)


def carry_out(
    plan: Plan, out: str | Path | None = None, on_round: OnRound | None = None, on_trial: OnTrial | None = None
) -> Result:
    """Run a plan from its first round, in a new folder if one is named."""
    on_round = on_round or _ignore
    if out is None:
        return execute(begin_run(plan, on_trial=on_trial), None, on_round)
    with RunFolder.claim(Path(out), plan.config, plan.data.fingerprint(), _counts_questions(plan)) as run:
        try:
            begun = begin_run(plan, run.trials(), on_trial)
        except CoterieError:
            run.abandon()  # a mistake that shows before the first round leaves no folder behind
            raise
        return execute(_begun_in(run, plan, begun), run, on_round)


@memory_failures()
@overflow_refused()
def begin_run(plan: Plan, trials: TrialLog | None = None, on_trial: OnTrial | None = None) -> Begun:
    """`begin`, before it the choice of the number of clusters where trial runs decide it.

    trials: Keeps the results of trial runs; those that it has already are not run again.
    """
    if not plan.tries:
        return begin(plan)
    clock = time.perf_counter()
    plan, chosen = choose(plan, lambda trial: execute(begin(trial), None, _ignore), trials, on_trial)
    spent = time.perf_counter() - clock
    for caution in chosen["warnings"]:
        warnings.warn(f"clusters=auto: {caution}", stacklevel=3)
    begun = begin(plan)
    seconds = round(spent + begun.told.get("beginning_seconds", 0), 6)
    return replace(begun, told={**begun.told, "chosen": chosen, "beginning_seconds": seconds})


def _begun_in(run: RunFolder, plan: Plan, begun: Begun) -> Begun:
    """Write down how a run has begun; `plan` is the one before options were settled."""
    _write_clients(plan, run)
    run.begin(begun.told, settled_options(plan, begun.plan), begun.state)
    return begun


def resume(
    folder: str | Path,
    data: ClientDirectory | None = None,
    *,
    learner: LearnerChoice | None = None,
    on_round: OnRound | None = None,
    on_trial: OnTrial | None = None,
    warn: Callable[[str], None] = warnings.warn,
) -> Result:
    """Go on with an interrupted run; it ends as if it had never stopped.

    data: needed only for arrays of one's own and for clients that live elsewhere; checked against the digest stored
        with the run.
    """
    run = RunFolder.open(Path(folder))
    if run.finished:
        return load(folder, learner=learner)
    config = run.asked_config
    data = _data_again(config, data, run.path)
    if data.fingerprint() != run.fingerprint:
        raise RunError(f"{folder}: the data is not that of the run: pass the same to coterie.resume(folder, data)")
    elsewhere = {"scenario", "method", "learner", "start", *data.options}
    options = {name: value for name, value in config.items() if name not in elsewhere}
    chosen = config["learner"] if learner is None else learner
    plan = prepare(data, config["method"], chosen, config.get("start", "random"), options)
    return go_on(plan, run, on_round, warn, on_trial)


def go_on(
    plan: Plan,
    run: RunFolder,
    on_round: OnRound | None = None,
    warn: Callable[[str], None] = warnings.warn,
    on_trial: OnTrial | None = None,
) -> Result:
    """Run a plan on from the last checkpoint of its folder, or from its beginning where there is none."""
    with run.alone(), _as_before(run.versions, warn):
        if run.finished:
            raise RunError(f"{run.path} was finished by another process meanwhile: read it with coterie.load")
        state, records, best = run.last_state(warn)
        if state is None:
            if plan.start == GIVEN:
                raise RunError(
                    f"{run.path} has no checkpoint to go on from, and its first models were given in Python: run it "
                    "again with the same models"
                )
            begun = _begun_in(run, plan, begin_run(plan, run.trials(), on_trial))
        else:
            begun = begin_again(plan, state, run.beginning, run.settled)
        return execute(begun, run, on_round or _ignore, records, best)


def _ignore(record: RoundRecord) -> None:
    """The callback of those who do not want to know."""


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


def _data_again(config: Mapping[str, Any], data: ClientDirectory | None, path: Path) -> ClientDirectory:
    if data is not None:
        return data
    name = config["scenario"]
    if name not in SCENARIOS:
        raise RunError(
            f"{path} was not run on a scenario: use coterie.resume(folder, data) in Python with the same arrays, or "
            "for clients elsewhere start their app again with the same out"
        )
    known = {option.name for option in SCENARIOS[name].options}
    return scenario(name, seed=config["seed"], **{k: v for k, v in config.items() if k in known})


# ---- running -------------------------------------------------------------------------------------------------


@memory_failures()
def execute(
    begun: Begun,
    folder: RunFolder | None,
    on_round: OnRound,
    records: list[RoundRecord] | None = None,
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
    spending = _spending(plan, folder, state.round)
    over = has_stopped(records) or (spending is not None and not spending.allows(state.round))
    if not over:
        _ask(plan, spending, folder, state.round)
    clock = time.perf_counter()
    with torch.no_grad():
        for done in () if over else _rounds(plan, state):
            state = done.state
            spent = None if spending is None else spending.epsilon
            record = record_of(plan, done, time.perf_counter() - clock, records, spent)
            if watch.see(record) and keeps_best:
                best = _with_clients(plan, state)
            # the mark is written with the record: a run killed after it does not go on when it is resumed
            wanted = on_round(record)
            last = state.round == options.rounds or done.diverged
            if not last and (watch.exhausted or _is_true(wanted)):
                record, last = replace(record, stopped="patience" if watch.exhausted else "on_round"), True
            if not last and spending is not None and not spending.allows(state.round):
                record, last = replace(record, stopped="privacy"), True
            records.append(record)
            if folder is not None:
                folder.append(record)
                if state.round % options.checkpoint_every == 0 or last:
                    _checkpoint(plan, folder, _with_clients(plan, state), best)
            _release(plan, folder, state, best)
            if last:
                break
            _ask(plan, spending, folder, state.round)
            clock = time.perf_counter()
        if best is not None and plan.federation.shelf is not None:
            plan.federation.shelf.restore(best.clients)
        spent = None if spending is None else spending.epsilon
        result = conclude(replace(begun, state=best or state), records, spent)
    if folder is not None:
        result = result.with_diagnostics()  # the data may be gone when they are asked for
        folder.finish(result.parameters, result.summary(), result.beside)
    return result


def _checkpoint(plan: Plan, folder: RunFolder, state: ServerState, best: ServerState | None = None) -> None:
    """Write the state, and before it who of the clients elsewhere lives where."""
    _write_clients(plan, folder)
    folder.checkpoint(state, best)


def _write_clients(plan: Plan, folder: RunFolder) -> None:
    """Write down who of the clients elsewhere lives where."""
    if isinstance(plan.data, RemoteClients):
        with writing(folder.path):
            plan.data.write_down(folder.path)


def _counts_questions(plan: Plan) -> bool:
    """Whether every question to the clients gives something away, so that a ledger counts them.

    A simulation that goes on from a checkpoint gives the same answers again; clients elsewhere draw new noise, so that
    their answers count again.
    """
    return plan.method.privacy is not None and not isinstance(plan.federation, InProcess)


def _spending(plan: Plan, folder: RunFolder | None, done: int) -> Spending | None:
    """What the clients of a private run have given away in the rounds so far, `done` of which counted."""
    if plan.method.privacy is None:
        return None
    asked = folder.asked() if folder is not None and _counts_questions(plan) else range(done)
    return Spending.of(plan.options, plan.data.clients, asked)


def _ask(plan: Plan, spending: Spending | None, folder: RunFolder | None, round_: int) -> None:
    """Count a round before anybody is asked."""
    if spending is None or round_ >= plan.options.rounds:
        return
    spending.ask(round_)
    if folder is not None and _counts_questions(plan):
        folder.ask(round_)


def _with_clients(plan: Plan, state: ServerState) -> ServerState:
    """The state with a copy of what simulated clients keep, as a checkpoint holds it."""
    shelf = plan.federation.shelf
    return state if shelf is None else replace(state, clients=shelf.copy())


def _release(plan: Plan, folder: RunFolder | None, state: ServerState, best: ServerState | None) -> None:
    """Tell clients elsewhere behind which of their rounds this run will never go back."""
    if not plan.method.weights.keeps or plan.federation.shelf is not None:
        return
    accepted = state.accepted if folder is None else folder.oldest_accepted()
    if accepted is not None:
        plan.federation.release(accepted if best is None else torch.minimum(accepted, best.accepted))


def _rounds(plan: Plan, state: ServerState) -> Iterator[Round]:
    seed, total = plan.options.seed, plan.options.rounds
    with overflow_refused():
        yield from rounds_with_race(plan.method, plan.federation, state, total, seed, plan.groups, plan.noise)


def _is_true(answer: object) -> bool:
    """Whether a callback said True, Python's or NumPy's; other values that happen to be true say nothing."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
