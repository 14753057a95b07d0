"""Training runs from a plan to a result: initialise, train with callbacks, evaluate."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coterie.cluster.executor import chosen_executor
from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.numbers import finite_numbers
from coterie.core.state import ServerState
from coterie.data import SCENARIOS, scenario
from coterie.diagnosis.values import Diagnosis
from coterie.engines.in_process import InProcess
from coterie.errors import CoterieError, DivergenceWarning, RunError, memory_failures
from coterie.learners import LearnerChoice
from coterie.learners.base import has_features
from coterie.learners.linear import Linear
from coterie.methods.initializers import GivenModels
from coterie.methods.rates import RATE, find_rate
from coterie.plugins.loading import load_installed
from coterie.training.callbacks.base import Callback, Progress, TrainingRun
from coterie.training.callbacks.functions import OnRound, as_callback
from coterie.training.callbacks.internal import (
    Exploding,
    FolderWriter,
    Patience,
    PrivacyBudget,
    SettledLoss,
    StateRelease,
    counts_questions,
    write_clients,
)
from coterie.training.choosing import OnTrial, Outcome, StopWhenSettled, choose, one_by_one, outcome_of
from coterie.training.concluding import conclude, has_stopped
from coterie.training.divergence import DIVERGED, overflow_refused
from coterie.training.earlier import EarlierRun, check_schema, clients_with_drift
from coterie.training.exploding import lowered_rate
from coterie.training.loop import train
from coterie.training.measuring import record_of
from coterie.training.planning import MethodChoice, Plan, method_of_config, prepare
from coterie.training.records import RoundRecord
from coterie.training.refit import REFIT, refitted
from coterie.training.result import Result, load
from coterie.training.runs.folder import RunFolder, versions
from coterie.training.runs.journal import TrialLog
from coterie.training.stopping import Settling, Watch
from coterie.training.trials import TrialJob, on_workers

FAR_MEAN, FAR_SCALE = 10.0, 10.0
"""Mean of targets, and scale of drawn coefficients, in standard deviations of the targets, beyond which one of several
linear models often attracts all clients."""
LARGEST_MEAN, LARGEST_RATIO = 3.0, 10.0
"""Largest mean of a target, and ratio of its standard deviation to 1 in both directions, that a network learns well."""

Callbacks = Sequence[Callback | OnRound]
"""Callbacks, or functions that are called with the record of each round and end the run by returning True."""


def fit(
    data: ClientDirectory,
    method: MethodChoice = "ifca",
    *,
    learner: LearnerChoice | None = None,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    on_trial: OnTrial | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Result:
    """Find the groups among clients and train a model for each.

    Args:
        data: The clients, from `from_arrays`, `from_table` or `scenario`, or remote clients (docs/flower.md).
        method: A typed method such as `IFCA(clusters=4)` from `coterie.methods`, or a name from `coterie methods`;
            "auto" diagnoses the clients (`coterie.diagnose`) and follows the recommendation.
        learner: Name of a model family with settings ("mlp:hidden=200"), or a function that returns a torch.nn.Module;
            by default chosen to suit the data.
        out: Folder for the run, which must not exist yet; by default nothing is written.
        callbacks: Callbacks (`coterie.callbacks`), or functions that are called with the record of each round. If one
            returns True, the run ends after this round; if it raises an exception, the folder can be resumed.
        on_trial: Called with the number of finished trial runs and their total number, if trial runs choose the number
            of clusters (`clusters="auto"`).
        executor: A `concurrent.futures.Executor` that carries out these trial runs several at a time; `workers`, an
            option, names processes of Dask for them (docs/cluster.md).
        **options: Settings of the run (`rounds`, `seed`, `participation`, ...) and of the method by their short names
            (`coterie describe NAME` lists them); they replace the fields of a typed method. `init` also accepts a run
            folder, an earlier result, or K models as dicts of named arrays.

    Returns:
        The models, the assignment of the clients and the records of all rounds.

    Raises:
        ConfigError: if an option is unknown or does not fit; in this case nothing has been written.
        TrainingError: if no client replies, or nothing can be trained.

    Example:
        >>> import coterie
        >>> from coterie.methods import IFCA
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> result = coterie.fit(data, IFCA(clusters=4), learner="logistic", rounds=2)
        >>> len(result.models)
        4
    """
    return carry_out(prepare(data, method, learner, options), out, callbacks, on_trial, executor)


def carry_out(
    plan: Plan,
    out: str | Path | None = None,
    callbacks: Callbacks = (),
    on_trial: OnTrial | None = None,
    executor: Executor | None = None,
) -> Result:
    """Run a plan from its first round, in a new folder if `out` is given."""
    if out is None:
        return execute(initialize_run(plan, on_trial=on_trial, executor=executor), None, callbacks)
    claimed = RunFolder.claim(Path(out), plan.config, plan.data.fingerprint(), counts_questions(plan), plan.diagnosis)
    with claimed as folder:
        try:
            initialized = initialize_run(plan, folder.trials(), on_trial, executor)
        except CoterieError:
            folder.abandon()  # a mistake found before the first round leaves no folder behind
            raise
        return execute(_recorded(folder, plan, initialized), folder, callbacks)


# ---- initialisation --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Initialized:
    """A run before its first round, or at the round where it resumes."""

    plan: Plan
    """The plan with all values that depend on the data."""
    state: ServerState
    """The state to start from."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """Findings of the initialisation and their cost, ready for JSON."""


def initialize(plan: Plan) -> Initialized:
    """Find the values that depend on the data, and make the first models."""
    assert not plan.tries, "trial runs choose the number of clusters first (initialize_run)"
    if plan.earlier is not None:
        check_schema(plan.earlier, plan.data.schema)
    with torch.no_grad():
        found: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if plan.seeks_rate:
            clock = time.perf_counter()
            rate = find_rate(plan.run)
            plan = plan.decided(lr=rate.lr)
            spent = round(time.perf_counter() - clock, 6)
            found, notes = {RATE: rate.found}, rate.notes
        initial = plan.method.initialize(plan.run)
        found |= initial.found
        plan = plan.decided(initial.clusters)
        if RATE in found:
            found["initialization_seconds"] = round(spent + found.get("initialization_seconds", 0), 6)
        if plan.earlier is not None:
            before = plan.earlier.assignments
            found["drift"] = clients_with_drift(
                plan.data, plan.federation, plan.learner, initial.state.clusters, before
            )
        if plan.diagnosis is not None:
            found = _with_diagnosis(found, plan.diagnosis)
    for note in (*notes, *_target_notes(plan), *initial.notes):
        warnings.warn(note, stacklevel=4)
    return Initialized(plan, initial.state, finite_numbers(found))


def _target_notes(plan: Plan) -> list[str]:
    """Return a note if models start far from the targets, so that one of them may attract all clients.

    Linear models of a table start at its targets.
    """
    schema = plan.data.schema
    if not schema.is_table:
        return _odd_targets(plan)
    mean, deviation = schema.target_scale
    of_usual_size = abs(mean) <= LARGEST_MEAN and 1 / LARGEST_RATIO <= deviation <= LARGEST_RATIO
    if schema.classes or of_usual_size or not has_features(plan.learner):
        return []
    return [
        f"target {schema.target!r} has the mean {mean:.4g} and the standard deviation {deviation:.4g}, but a network "
        f"starts near 0 and may not get there: train on ({schema.target} - {mean:.4g}) / {deviation:.4g} instead, or "
        "use --learner linear:bias=true"
    ]


def _odd_targets(plan: Plan) -> list[str]:
    """Return a note if several linear models are drawn far from the targets of arrays, or are much larger."""
    data, learner = plan.data, plan.learner
    drawn = plan.method.initializer.random and plan.method.groups.found
    if not isinstance(data, FederatedDataset) or not isinstance(learner, Linear) or learner.center or not drawn:
        return []
    mean, deviation = float(data.train.y.mean()), float(data.train.y.std(unbiased=False))
    if deviation == 0 or (abs(mean) <= FAR_MEAN * deviation and learner.scale <= FAR_SCALE * deviation):
        return []
    return [
        f"the targets have the mean {mean:.4g} and the standard deviation {deviation:.4g}, but models start near 0 "
        f"with coefficients of about {learner.scale:g}, so that one of them may attract all clients: standardise the "
        f"targets, or use learner linear:bias=true,scale={deviation / 10:.3g},center={mean:.6g}"
    ]


@memory_failures()
@overflow_refused()
def initialize_run(
    plan: Plan, trials: TrialLog | None = None, on_trial: OnTrial | None = None, executor: Executor | None = None
) -> Initialized:
    """Initialise a run, after trial runs have chosen the number of clusters if it depends on the data.

    Args:
        plan: The run.
        trials: Log of finished trial runs; those that it contains are not run again.
        on_trial: Called after each trial run.
        executor: Executor that carries out the trial runs; by default the workers of the settings, if there are any.
    """
    if not plan.tries:
        return initialize(plan)
    clock = time.perf_counter()
    elsewhere = chosen_executor(None if plan.settings.engine == "dask" else plan.settings.workers, executor)
    run_trials = one_by_one(_train_trial) if elsewhere is None else on_workers(elsewhere, carry_out_trial)
    plan, chosen = choose(plan, run_trials, trials, on_trial)
    spent = time.perf_counter() - clock
    for caution in chosen["warnings"]:
        warnings.warn(f"clusters=auto: {caution}", stacklevel=3)
    initialized = initialize(plan)
    seconds = round(spent + initialized.found.get("initialization_seconds", 0), 6)
    return replace(initialized, found={**initialized.found, "chosen": chosen, "initialization_seconds": seconds})


def _train_trial(plan: Plan) -> Result:
    return execute(initialize(plan), None, [StopWhenSettled()])


def carry_out_trial(text: str, sent: bytes | None) -> Outcome:
    """Carry out a trial run in a worker; see `TrialJob`."""
    return outcome_of(TrialJob.plan(text, sent), _train_trial)


def _with_diagnosis(found: dict[str, Any], diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the findings with the reason for the method and the cost of the diagnosis."""
    recommendation, cost = diagnosis.recommendation, diagnosis.cost
    diagnosed = {
        "reason": recommendation.reason,
        "do_not_cluster": recommendation.do_not_cluster,
        "exchanges": cost.exchanges,
        "bytes_up": cost.bytes_up,
        "bytes_down": cost.bytes_down,
    }
    seconds = round(cost.seconds + found.get("initialization_seconds", 0), 6)
    return {**found, "diagnosed": diagnosed, "initialization_seconds": seconds}


def _recorded(folder: RunFolder, plan: Plan, initialized: Initialized) -> Initialized:
    """Write the initialisation to the folder; `plan` is the plan before it."""
    write_clients(plan, folder)
    before, after = plan.config, initialized.plan.config
    decided = {name: value for name, value in after.items() if before.get(name) != value}
    folder.initialize(initialized.found, decided, initialized.state)
    return initialized


# ---- resuming --------------------------------------------------------------------------------------------------------


def resume(
    folder: str | Path,
    data: ClientDirectory | None = None,
    *,
    learner: LearnerChoice | None = None,
    callbacks: Callbacks = (),
    on_trial: OnTrial | None = None,
    warn: Callable[[str], None] = warnings.warn,
    workers: str | None = None,
    executor: Executor | None = None,
) -> Result:
    """Resume an interrupted run; the result is the same as without the interruption.

    Args:
        folder: The run folder. A finished run is only loaded.
        data: The same data again; needed only for arrays in memory and for remote clients.
        learner: The same learner again, if it was a function.
        callbacks: As in `fit`.
        on_trial: As in `fit`.
        warn: Called with warnings about the folder.
        workers: Workers to use instead of those of the interrupted run, as in the option of this name.
        executor: As in `fit`.

    Returns:
        The result of the run.

    Raises:
        RunError: if the folder is damaged, of another version or in use, or the data differs.
        TrainingError: if the training fails.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> folder = tempfile.mkdtemp() + "/run"
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> first = coterie.fit(data, "fedavg", learner="logistic", rounds=1, out=folder)
        >>> coterie.resume(folder).assignments == first.assignments
        True
    """
    run = RunFolder.open(Path(folder))
    if run.finished:
        return load(folder, learner=learner)
    run.resumable()
    config = run.asked_config
    data = _data_again(config, data, run.path)
    if config.get("engine") != "dask":
        data = data.in_memory()
    if data.fingerprint() != run.fingerprint:
        raise RunError(
            f"{folder}: the data differs from that of the run: pass the same to coterie.resume(folder, data)"
        )
    method, options = method_of_config({name: value for name, value in config.items() if name not in data.options})
    chosen = options.pop("learner", None)
    if workers is not None:
        options["workers"] = workers
    plan = prepare(data, method, chosen if learner is None else learner, options)
    return continue_plan(plan, run, callbacks, warn, on_trial, executor)


def continue_plan(
    plan: Plan,
    run: RunFolder,
    callbacks: Callbacks = (),
    warn: Callable[[str], None] = warnings.warn,
    on_trial: OnTrial | None = None,
    executor: Executor | None = None,
) -> Result:
    """Continue a plan from the last checkpoint of its folder, or from its first round if there is none."""
    plan = replace(plan, diagnosis=run.diagnosis)
    with run.alone(), _as_before(run.versions, warn):
        if run.finished:
            raise RunError(f"{run.path} was finished by another process in the meantime: read it with coterie.load")
        state, records, best = run.last_state(warn)
        if state is None:
            if plan.config.get("init") == GivenModels.name:
                raise RunError(
                    f"{run.path} has no checkpoint to resume from, and its first models were given in Python: run it "
                    "again with the same models"
                )
            initialized = _recorded(run, plan, initialize_run(plan, run.trials(), on_trial, executor))
        else:
            initialized = _resumed(plan, state, run.findings, run.settled)
        return execute(initialized, run, callbacks, records, best)


def _resumed(plan: Plan, state: ServerState, found: Mapping[str, Any], decided: Mapping[str, Any]) -> Initialized:
    """Return the initialisation as it was when the run was new."""
    plan = plan.decided(**{name: decided[name] for name in ("clusters", "lr") if name in decided})
    store = plan.federation.store
    if store is not None and state.clients:
        store.restore(state.clients)
    if "drift" in found:
        plan = replace(plan, earlier=EarlierRun(found["drift"]["before"]))
    return Initialized(plan, state, found)


@contextmanager
def _as_before(before: Mapping[str, Any], warn: Callable[[str], None]) -> Iterator[None]:
    """Use the run's number of threads, on which sums depend, and warn about other package versions."""
    now = versions()
    changed = [name for name in now if name in before and name != "threads" and now[name] != before[name]]
    if changed:
        named = ", ".join(f"{name} {before[name]} is now {now[name]}" for name in changed)
        warn(
            f"The run was started with different package versions ({named}): it continues, but may differ in the last "
            "digits"
        )
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
        load_installed()
    if name not in SCENARIOS:
        raise RunError(
            f"{path} was not run on a scenario: use coterie.resume(folder, data) in Python with the same arrays, or "
            "for remote clients start their app again with the same out"
        )
    known = {option.name for option in SCENARIOS[name].options}
    return scenario(name, seed=config["seed"], **{k: v for k, v in config.items() if k in known})


# ---- training --------------------------------------------------------------------------------------------------------


@memory_failures()
def execute(
    initialized: Initialized,
    folder: RunFolder | None,
    callbacks: Callbacks = (),
    records: Sequence[RoundRecord] = (),
    best: ServerState | None = None,
) -> Result:
    """Train to the last round, or until the run stops early, and return the result.

    Args:
        initialized: The run before its first round, or at the round where it resumes.
        folder: Run folder to write to, if any.
        callbacks: The user's callbacks.
        records: Records of the rounds before the state.
        best: The state with the lowest validation loss among these rounds, if it is kept.
    """
    plan = initialized.plan
    budget = None if plan.tiers.privacy is None else PrivacyBudget(plan, folder)
    watchers: list[Callback] = [
        *_patience(plan),
        Exploding(plan),
        *([] if budget is None else [budget]),
        *map(as_callback, callbacks),
    ]
    writers: list[Callback] = [*([] if folder is None else [FolderWriter(folder)]), StateRelease(folder)]
    progress = Progress(plan, initialized.state, best)
    path = None if folder is None else folder.path
    run = TrainingRun(plan.config, path, initialized.state.round, plan.rounds, list(records), progress)
    try:
        for callback in (*watchers, *writers):
            callback.on_start(run)
        with torch.no_grad():
            if not has_stopped(run.records) and (budget is None or budget.spending.allows(progress.state.round)):
                _train(run, progress, watchers, writers, budget)
            lowered = lowered_rate(initialized.found, run.records)
            if lowered is None:
                result = _concluded(initialized, run, progress, budget)
                if folder is not None or not isinstance(plan.federation, InProcess):
                    result = result.with_diagnostics()  # data and remote clients may be unavailable later
                for callback in (*writers, *watchers):
                    callback.on_end(run, result)
    except BaseException as error:
        for callback in (*watchers, *writers):
            callback.on_error(run, error)
        raise
    if lowered is not None:
        return execute(_started_again(initialized, lowered, folder), folder, callbacks)
    return result


def _started_again(initialized: Initialized, found: Mapping[str, Any], folder: RunFolder | None) -> Initialized:
    """Return the run before its first round, with a lower learning rate."""
    rate = found[RATE]
    warnings.warn(
        f"the training diverged with the learning rate {rate['diverged_with'][-1]:.3g} from lr=auto: it starts again "
        f"with {rate['lr']:.3g}",
        DivergenceWarning,
        stacklevel=4,
    )
    plan = initialized.plan.decided(lr=rate["lr"])
    if plan.federation.store is not None:
        plan.federation.store.clear()
    again = replace(initialize(plan), found=found)
    if folder is not None:
        folder.initialize_again(found, folder.settled | {"lr": rate["lr"]}, again.state)
    return again


def _patience(plan: Plan) -> list[Callback]:
    """Return the callback of the option `patience`, or of `rounds=auto`."""
    patience = plan.settings.patience
    if patience is None:
        return [SettledLoss(Settling(plan.least_rounds))] if plan.settles else []
    monitor = "loss" if plan.validated is None else "validation_loss"
    return [Patience(Watch(monitor, patience, plan.race_rounds), keeps_best=plan.validated is not None)]


def _train(
    run: TrainingRun,
    progress: Progress,
    watchers: Sequence[Callback],
    writers: Sequence[Callback],
    budget: PrivacyBudget | None,
) -> None:
    """Train round by round: record each round, ask the callbacks whether to stop, and write."""
    plan = progress.plan
    everyone = (*watchers, *writers)
    clock = time.perf_counter()

    def before_round(round_: int) -> None:
        nonlocal clock
        for callback in everyone:
            callback.on_round_start(run, round_)
        clock = time.perf_counter()

    for step in train(plan.method, plan.run, progress.state, before_round):
        progress.state = step.state
        epsilon = None if budget is None else budget.spending.epsilon
        record = record_of(plan, step, time.perf_counter() - clock, run.records, epsilon)
        stops = [callback for callback in watchers if _is_true(callback.on_round(run, record))]
        progress.last = step.state.round == plan.rounds or step.diverged
        if stops and not progress.last:
            # the reason is stored with the record, so that a run killed now does not continue when it is resumed
            record, progress.last = replace(record, stopped=stops[0].reason), True
        run.records.append(record)
        for callback in writers:
            callback.on_round(run, record)
        if progress.last:
            return


def _concluded(initialized: Initialized, run: TrainingRun, progress: Progress, budget: PrivacyBudget | None) -> Result:
    """Evaluate the final models."""
    store = progress.plan.federation.store
    if progress.best is not None and store is not None:
        store.restore(progress.best.clients)
    epsilon = None if budget is None else budget.spending.epsilon
    plan, state, found = initialized.plan, progress.best or progress.state, initialized.found
    if plan.tiers.refit and run.records[-1].stopped != DIVERGED:
        done = refitted(plan.run, state)
        state, found = done.state, {**found, REFIT: finite_numbers(done.found)}
    return conclude(plan, state, found, run.records, epsilon)


def _is_true(answer: object) -> bool:
    """Return whether a callback returned True (Python's or NumPy's); other truthy values do not count."""
    return isinstance(answer, bool | np.bool_) and bool(answer)
