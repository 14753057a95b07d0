"""Sweep over all combinations of some options, ranked by the clients' validation samples.

The validation samples are a part of the clients' training samples, and the runs have no test data, so that the choice
cannot depend on it.

::

    sweep.toml                the plan, which is enough to resume after an interruption
    jobs/001-lr=0.1-seed0/    a run folder like those of `coterie run`
    sweep.json                the ranking
"""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.core.numbers import finite_numbers
from coterie.core.registry import Registered
from coterie.data import SCENARIOS, find_scenario
from coterie.errors import ConfigError, CoterieError, DivergenceWarning, RunError, shown
from coterie.experiments.compare import (
    Job,
    Progress,
    check_data,
    check_in_process,
    check_no_seed,
    check_one_process_each,
    folder_path,
    is_list,
    run_jobs,
    run_or_resume,
    seed_list,
)
from coterie.experiments.pools import Pool, chosen_pool
from coterie.experiments.processes import leave_if_importing_main
from coterie.experiments.variants import Variant
from coterie.files import write_json
from coterie.learners import LearnerChoice
from coterie.options import Option, plain_options, plain_value
from coterie.report.commands import option_text, run_command
from coterie.report.comparison import Spread
from coterie.report.reading import RunData, read_run
from coterie.training.planning import MethodChoice, prepare
from coterie.training.runs.files import writing
from coterie.training.runs.folder import read_toml
from coterie.training.runs.locking import create_for_jobs

SHARE = 0.2
"""Default share of each client's training samples that is held out for validation."""
FILE = "sweep.toml"
MOST_RUNS = 100_000
"""Largest number of runs of a sweep."""
LONGEST = 60
"""Largest number of characters for the options in the name of a job's folder."""


@dataclass(frozen=True)
class SweepPlan:
    """Plan of a sweep, which is stored as sweep.toml."""

    scenario: str
    """Name of the scenario or of the user's dataset."""
    method: str
    """Name of the method."""
    over: Mapping[str, Sequence[Any]]
    """Values of each swept option, as TOML values."""
    seeds: Sequence[int]
    """Seeds of each combination."""
    validation: float = SHARE
    """Share of each client's training samples that is held out for validation."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options that are the same in all runs, including those of the scenario."""
    data_sha256: str = ""
    """Digest of the user's dataset, which cannot be created again from a name."""
    settings: Mapping[str, Any] | None = None
    """All settings of a typed method; None: the method was given by name."""

    @property
    def variant(self) -> Variant:
        """The method with its settings."""
        return Variant(self.method, self.method, self.settings)

    def combinations(self) -> list[dict[str, Any]]:
        """Return the swept options of each cell; the last option varies fastest."""
        return [dict(zip(self.over, values, strict=True)) for values in product(*self.over.values())]

    def jobs(self, folder: Path, number: int, cell: Mapping[str, Any]) -> list[Job]:
        """Return the runs of one cell, one for each seed."""
        named = SCENARIOS.get(self.scenario)
        of_scenario = {option.name for option in named.options} if named else set()
        text = ",".join(f"{name}={option_text(value)}" for name, value in cell.items())
        words = re.sub(r"[^\w.,=+-]+", "_", text)[:LONGEST]
        return [
            Job(
                folder / "jobs" / f"{number:03d}-{words}-seed{seed}",
                self.scenario,
                {name: value for name, value in self.options.items() if name in of_scenario},
                self.variant,
                seed,
                {name: value for name, value in self.options.items() if name not in of_scenario}
                | {**cell, "validation": self.validation},
                tested=False,
            )
            for seed in self.seeds
        ]

    def all_jobs(self, folder: Path) -> list[Job]:
        """Return the runs of all cells."""
        return [job for number, cell in enumerate(self.combinations()) for job in self.jobs(folder, number, cell)]


@dataclass(frozen=True)
class Cell:
    """One combination of the swept options, and its results."""

    options: Mapping[str, Any]
    """The swept options."""
    score: Spread | None = None
    """Mean validation score over clients for each seed; None if a run failed or a score is not finite."""
    loss: Spread | None = None
    """Mean validation loss for each seed, which breaks ties."""
    seconds: float | None = None
    """Mean training time over seeds, in seconds."""
    failed: str = ""
    """Reason why a seed has no result, or why its training diverged."""


@dataclass(frozen=True)
class Sweep:
    """Result of a sweep: all combinations, ranked by their validation scores."""

    method: str
    """Name of the method."""
    score_name: str
    """`accuracy` (higher is better) or `rmse` (lower is better)."""
    seeds: tuple[int, ...]
    """Seeds of each combination."""
    cells: tuple[Cell, ...]
    """The combinations, the best first, those without a score last."""
    command: str
    """Command that trains the best combination, on all training samples unless early stopping needs some of them."""
    notes: tuple[str, ...]
    """Notes, for example that the best value is the largest one that was tried."""

    @property
    def best(self) -> dict[str, Any]:
        """Swept options of the best cell, as keyword arguments of `fit`."""
        return dict(self.cells[0].options)

    def summary(self) -> dict[str, Any]:
        """Return the content of sweep.json."""
        return {
            "method": self.method,
            "score": f"validation {self.score_name}",
            "seeds": list(self.seeds),
            "best": self.best,
            "command": self.command,
            "notes": list(self.notes),
            "cells": [_plain(cell) for cell in self.cells],
        }


def _plain(cell: Cell) -> dict[str, Any]:
    return {
        "options": dict(cell.options),
        "score": None if cell.score is None else cell.score.mean,
        "sd": None if cell.score is None else cell.score.sd,
        "scores": None if cell.score is None else list(cell.score.values),
        "loss": None if cell.loss is None else cell.loss.mean,
        "seconds": cell.seconds,
        "failed": cell.failed or None,
    }


def sweep(
    data: str | FederatedDataset,
    method: MethodChoice = "ifca",
    *,
    over: Mapping[str, Sequence[Any]],
    seeds: int | Sequence[int] = 1,
    validation: float = SHARE,
    out: str | Path | None = None,
    learner: LearnerChoice | None = None,
    workers: str | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Sweep:
    """Run all combinations of the values in `over`, and rank them by the clients' validation samples.

    Args:
        data: Name of a scenario, whose runs are carried out in parallel worker processes, with other data for every
            seed; or a dataset, whose runs are carried out one after the other. Its test data is not used.
        method: Name of the method, or a typed method whose other fields are the same in all runs.
        over: Values to try for each option, such as {"lr": [0.01, 0.1], "local_steps": [1, 10]}. Options such as
            `optimizer` take texts ("adam", "sgd:momentum=0.9") or typed values.
        seeds: Number of seeds of each combination, or a list of seeds.
        validation: Share of each client's training samples that is held out for validation.
        out: Folder for the runs. The same call with the same folder resumes an interrupted sweep. By default nothing is
            stored.
        learner: As in `fit`; a function is only allowed with a dataset.
        workers: As in `compare`.
        executor: As in `compare`.
        **options: Options that are the same for all runs, as in `fit`.

    Returns:
        The combinations, the best first.

    Raises:
        ConfigError: if an option cannot be swept or is not allowed; then nothing is written.
        RunError: if all combinations failed, or the folder has another sweep.

    Example:
        >>> import coterie
        >>> data = coterie.scenario("mixed-regression", clients=6)
        >>> found = coterie.sweep(data, "ifca", over={"lr": [0.001, 0.1]}, clusters=2, rounds=2)
        >>> sorted(found.best)
        ['lr']
    """
    leave_if_importing_main()
    check_data(data)
    check_no_seed(options)
    if out is None:
        with tempfile.TemporaryDirectory() as place:
            again = {"over": over, "seeds": seeds, "validation": validation, "learner": learner, **options}
            again |= {"workers": workers, "executor": executor}
            return sweep(data, method, out=Path(place) / "sweep", **again)
    folder = folder_path(out)
    seeds = seed_list(seeds)
    variant = Variant.of(method)
    if isinstance(data, str):
        if learner is not None and not isinstance(learner, str):
            raise ConfigError("a user-defined learner needs a dataset, not the name of a scenario: pass scenario(...)")
        pool = chosen_pool(None, workers, executor)
        fixed = options if learner is None else {**options, "learner": learner}
        plan_sweep(SweepPlan(data, variant.method, over, seeds, validation, fixed, settings=variant.settings), folder)
        return rank_runs(folder, run_sweep(folder, pool))
    check_in_process(workers, executor)
    plan = SweepPlan(data.name, variant.method, over, seeds, validation, options, data.fingerprint(), variant.settings)
    plan_sweep(plan, folder, data, learner)
    return rank_runs(folder, _run_here(folder, replace(data, test=None, newcomers=None), learner))


def plan_sweep(
    plan: SweepPlan, folder: Path, data: FederatedDataset | None = None, learner: LearnerChoice | None = None
) -> None:
    """Check all settings of a sweep, and write sweep.toml into a new folder, without running anything.

    A folder with the same sweep is left unchanged.

    Args:
        plan: Plan of the sweep.
        folder: New folder, or the folder of the same sweep.
        data: Dataset of the user; by default the data of the scenario.
        learner: Learner that a name cannot describe.

    Raises:
        ConfigError: if an option cannot be swept or is not allowed.
        RunError: if the folder has another sweep.
    """
    plan = _checked(plan)
    if (folder / FILE).is_file():
        if read_plan(folder) != plan:
            raise RunError(f"{folder} has another sweep: choose another folder, or repeat the same sweep to resume it")
        return
    first = [job for job in plan.all_jobs(folder) if job.seed == plan.seeds[0]]
    seen = first[0].data() if data is None else replace(data, test=None, newcomers=None)
    for job in first:
        prepare(seen, job.variant.choice(), learner, job.run_options())  # finds mistakes before anything is written
    create_for_jobs(folder, FILE, {name: value for name, value in asdict(plan).items() if value not in ("", None)})


def _checked(plan: SweepPlan) -> SweepPlan:
    """Return the plan with values in the types of their options; raise ConfigError for options that cannot be swept."""
    kind = plan.variant.kind
    if plan.data_sha256 == "":
        find_scenario(plan.scenario)
    check_one_process_each(plan.options)
    if not isinstance(plan.over, Mapping):
        raise ConfigError(f"over must be a dict of lists, such as {{'lr': [0.1, 1]}}, got {shown(plan.over)}")
    if not plan.over:
        raise ConfigError("nothing to sweep: give at least one option and its values to try, such as lr=0.01,0.1,1")
    if not plan.seeds:
        raise ConfigError("a sweep needs at least one seed")
    of_scenario = SCENARIOS[plan.scenario].options if plan.scenario in SCENARIOS else ()
    known = {option.name: option for option in kind.options()}
    over = {}
    for name, values in plan.over.items():
        if name in {option.name for option in of_scenario}:
            raise ConfigError(
                f"{name} changes the data of {plan.scenario}, and scores on different data are not comparable: give it "
                "a single value"
            )
        if name in ("seed", "validation", "finetune"):
            raise ConfigError(f"{name} cannot be swept, because all combinations must share it: give it a single value")
        if name in plan.options:
            raise ConfigError(f"{name} is both set and swept: leave one of them out")
        over[name] = _values(name, values, known.get(name))
    runs = math.prod(len(values) for values in over.values()) * len(plan.seeds)
    if runs > MOST_RUNS:
        raise ConfigError(f"a sweep of {runs:,} runs is too large, at most {MOST_RUNS:,} are allowed: try fewer values")
    return replace(plan, over=over, seeds=list(plan.seeds), options=plain_options(plan.options))


def _values(name: str, given: Sequence[Any], option: Option | None) -> list[Any]:
    """Return the checked values to try; the method refuses unknown options later, and suggests the nearest name."""
    if not is_list(given):
        raise ConfigError(f"{name} must be swept over a list of values, got {shown(given)}")
    values = [plain_value(value.item() if isinstance(value, np.generic) else value) for value in given]
    if option is not None and not issubclass(option.kind, Registered):  # members are checked with the whole run
        values = [option.check(value) for value in values]
    if not values:
        raise ConfigError(f"{name} has no values to try: give at least one")
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ConfigError(f"{name} lists {shown(twice[0])} twice: list every value once")
    return values


def is_sweep(folder: Path) -> bool:
    """Return whether a folder was created by `plan_sweep`."""
    return (folder / FILE).is_file()


def read_plan(folder: Path) -> SweepPlan:
    """Return the plan of the sweep in a folder."""
    try:
        return SweepPlan(**read_toml(folder / FILE))
    except TypeError:
        raise RunError(f"{folder / FILE} is damaged: run the sweep again in another folder") from None


def run_sweep(folder: Path, pool: Pool | None = None, progress: Progress = lambda job, done: None) -> dict[str, str]:
    """Run or resume all runs of a sweep over a scenario; return the reasons of failures by name of the run."""
    plan = read_plan(folder)
    if plan.data_sha256:
        raise RunError(
            f"the sweep in {folder} uses a dataset of a Python script: resume it with the same call of coterie.sweep"
        )
    return run_jobs(plan.all_jobs(folder), folder, pool, progress)


def _run_here(folder: Path, data: FederatedDataset, learner: LearnerChoice | None) -> dict[str, str]:
    """Run or resume all runs of a sweep on a dataset in this process; return the reasons of failures."""
    failed = {}
    for job in read_plan(folder).all_jobs(folder):
        try:
            if not job.finished:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DivergenceWarning)  # shown in the cell
                    run_or_resume(job.folder, data, job.variant.choice(), learner, job.run_options())
        except CoterieError as error:
            failed[job.name] = str(error)
    return failed


# ---- results -------------------------------------------------------------------------------------------------


def rank_runs(folder: Path, failed: Mapping[str, str]) -> Sweep:
    """Rank the cells of a sweep whose runs have ended, and write sweep.json.

    Args:
        folder: Folder of the sweep.
        failed: Reasons of failures, by name of the run.

    Raises:
        RunError: if no combination has a finite validation score.
    """
    plan = read_plan(folder)
    cells, runs = [], {}
    for number, options in enumerate(plan.combinations()):
        jobs = plan.jobs(folder, number, options)
        found = [read_run(job.folder) for job in jobs if job.finished]
        if len(found) < len(jobs):
            cells.append((number, Cell(options, failed=_reason(jobs, failed))))
        else:
            cells.append((number, _cell(options, found)))
            if not cells[-1][1].failed:
                runs[number] = found[0]
    if not runs:
        raise RunError(f"all combinations failed; the first failure: {cells[0][1].failed}")
    higher = next(iter(runs.values())).higher_is_better
    ranked = sorted(cells, key=lambda numbered: _rank(numbered[1], higher))
    number, best = ranked[0]
    if best.score is None:
        raise RunError("no combination has a finite validation score: lower lr or scale the features")
    result = Sweep(
        plan.method,
        runs[number].score_name,
        tuple(plan.seeds),
        tuple(cell for _, cell in ranked),
        run_command(_final_run(runs[number]), spelled=plan.over),
        tuple(_edge_notes(plan, best.options)),
    )
    with writing(folder):
        write_json(folder / "sweep.json", finite_numbers(result.summary()))
    return result


def _cell(options: Mapping[str, Any], runs: Sequence[RunData]) -> Cell:
    lost = next((run for run in runs if run.diverged), None)
    if lost is not None:
        return Cell(options, failed=f"seed {lost.seed}: {lost.metrics['why_diverged']}")
    seconds = float(np.mean([run.metrics["seconds"] for run in runs]))
    score, loss = (_over_seeds(runs, f"validation_{name}") for name in (runs[0].score_name, "loss"))
    return Cell(options, score, loss, seconds)


def _over_seeds(runs: Sequence[RunData], metric: str) -> Spread | None:
    """Return the metric of each seed; None if one is not finite, since the mean of the others would be optimistic."""
    values = [run.metrics[metric] for run in runs]
    return None if None in values else Spread(tuple(float(value) for value in values))


def _reason(jobs: Sequence[Job], failed: Mapping[str, str]) -> str:
    return next((failed[job.name] for job in jobs if job.name in failed), "not finished")


def _rank(cell: Cell, higher_is_better: bool) -> tuple[float, float]:
    """Return a sorting key that puts the best cell first: by score, then by loss."""
    if cell.score is None:
        return math.inf, math.inf
    return (-1 if higher_is_better else 1) * cell.score.mean, math.inf if cell.loss is None else cell.loss.mean


def _final_run(run: RunData) -> RunData:
    """Return the run as it is repeated for the final models: without validation split, unless patience needs one."""
    kept = {name: value for name, value in run.config.items() if name != "validation" or "patience" in run.config}
    return replace(run, config=kept)


def _edge_notes(plan: SweepPlan, best: Mapping[str, Any]) -> Iterator[str]:
    """Yield a note for each numeric option whose best value is the smallest or largest one that was tried."""
    known = {option.name: option for option in plan.variant.kind.options()}
    for name, values in plan.over.items():
        if len(values) < 2 or known[name].kind not in (int, float):
            continue
        if best[name] == max(values) and best[name] < known[name].high:
            yield f"the best {name}, {best[name]:g}, is the largest value that was tried: larger ones may be better"
        if best[name] == min(values) and best[name] > known[name].low:
            yield f"the best {name}, {best[name]:g}, is the smallest value that was tried: smaller ones may be better"
