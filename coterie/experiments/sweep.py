"""Every combination of some options, run and ranked by the clients' validation samples.

The validation samples are cut from the clients' training samples, and the runs get to see no test data at all, so the
choice cannot depend on it.

::

    sweep.toml                what was asked; enough to go on after an interruption
    jobs/001-lr=0.1-seed0/    a run folder, as `coterie run` writes it
    sweep.json                the ranking
"""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
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
    check_no_seed,
    folder_path,
    go_on,
    is_list,
    run_jobs,
    seed_list,
)
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
"""Of each client's training samples, for validation."""
FILE = "sweep.toml"
MOST_RUNS = 100_000
"""The most runs of a sweep."""
LONGEST = 60
"""Letters of a job's folder that tell its options."""


@dataclass(frozen=True)
class Asked:
    """What a sweep is about: all of sweep.toml."""

    scenario: str
    """Its name, or that of a dataset of one's own."""
    method: str
    """Name of the method."""
    over: Mapping[str, Sequence[Any]]
    """The values of each swept option, as TOML holds them."""
    seeds: Sequence[int]
    validation: float = SHARE
    options: Mapping[str, Any] = field(default_factory=dict)
    """What is the same in all runs, options of the scenario included."""
    data_sha256: str = ""
    """Digest of a dataset of one's own: it cannot be made again from a name."""
    settings: Mapping[str, Any] | None = None
    """All settings of a typed method; None: the method was given by name."""

    @property
    def variant(self) -> Variant:
        return Variant(self.method, self.method, self.settings)

    def combinations(self) -> list[dict[str, Any]]:
        """The swept options of each cell, the last one varying fastest."""
        return [dict(zip(self.over, values, strict=True)) for values in product(*self.over.values())]

    def jobs(self, folder: Path, number: int, cell: Mapping[str, Any]) -> list[Job]:
        """The runs of one cell, one a seed."""
        named = SCENARIOS.get(self.scenario)
        of_scenario = {option.name for option in named.options} if named else set()
        told = ",".join(f"{name}={option_text(value)}" for name, value in cell.items())
        words = re.sub(r"[^\w.,=+-]+", "_", told)[:LONGEST]
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
        return [job for number, cell in enumerate(self.combinations()) for job in self.jobs(folder, number, cell)]


@dataclass(frozen=True)
class Cell:
    """One combination of the swept options and how it did."""

    options: Mapping[str, Any]
    score: Spread | None = None
    """The mean validation score over clients, one value a seed; None if it failed or is not finite in some seed."""
    loss: Spread | None = None
    """The same of the validation loss, which breaks ties."""
    seconds: float | None = None
    """Of training, the mean over seeds."""
    failed: str = ""
    """Why a seed has no result, or that its training diverged."""


@dataclass(frozen=True)
class Sweep:
    """What a sweep found."""

    method: str
    score_name: str
    """`accuracy` (higher is better) or `rmse` (lower is better)."""
    seeds: tuple[int, ...]
    cells: tuple[Cell, ...]
    """The best first, those without a score last."""
    command: str
    """What trains the best combination, on all training samples unless it needs some to know when to stop."""
    notes: tuple[str, ...]
    """Cautions: a best value at the edge of what was tried."""

    @property
    def best(self) -> dict[str, Any]:
        """The swept options of the best cell, as keywords for `fit`."""
        return dict(self.cells[0].options)

    def summary(self) -> dict[str, Any]:
        """What sweep.json holds."""
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
    **options: Any,
) -> Sweep:
    """Run every combination of the values in `over` and rank them by the clients' validation samples.

    Args:
        data: Name of a scenario (runs are carried out in parallel worker processes, and every seed draws its own data),
            or a dataset (one run after the other). Its test data is not touched.
        method: Name of the method, or a typed method whose other fields are the same in all runs.
        over: The values of each option to try, such as {"lr": [0.01, 0.1], "local_steps": [1, 10]}. Options such as
            `optimizer` take texts ("adam", "sgd:momentum=0.9") or typed values.
        seeds: Number of seeds of each combination, or a list of them.
        validation: Share of each client's training samples that is held out and decides.
        out: Folder for the runs. The same call with the same folder continues where it stopped. By default nothing is
            kept.
        learner: As in `fit`; a function only with a dataset.
        **options: Options that are the same for all runs, as in `fit`.

    Returns:
        The combinations, the best first.

    Raises:
        ConfigError: if an option cannot be swept or does not fit; nothing has been written then.
        RunError: if every combination failed, or the folder holds another sweep.
    """
    leave_if_importing_main()
    check_data(data)
    check_no_seed(options)
    if out is None:
        with tempfile.TemporaryDirectory() as place:
            again = {"over": over, "seeds": seeds, "validation": validation, "learner": learner, **options}
            return sweep(data, method, out=Path(place) / "sweep", **again)
    folder = folder_path(out)
    seeds = seed_list(seeds)
    variant = Variant.of(method)
    if isinstance(data, str):
        if learner is not None and not isinstance(learner, str):
            raise ConfigError("a learner of your own needs a dataset instead of a scenario's name: pass scenario(...)")
        fixed = options if learner is None else {**options, "learner": learner}
        plan_sweep(Asked(data, variant.method, over, seeds, validation, fixed, settings=variant.settings), folder)
        return conclude(folder, run_sweep(folder))
    asked = Asked(data.name, variant.method, over, seeds, validation, options, data.fingerprint(), variant.settings)
    plan_sweep(asked, folder, data, learner)
    return conclude(folder, _run_here(folder, replace(data, test=None, newcomers=None), learner))


def plan_sweep(
    asked: Asked, folder: Path, data: FederatedDataset | None = None, learner: LearnerChoice | None = None
) -> None:
    """Check everything, then write sweep.toml into a new folder, or find the same one there. Nothing runs yet.

    `data` is a dataset of one's own; without it the scenario is built.
    """
    asked = _checked(asked)
    if (folder / FILE).is_file():
        if read_asked(folder) != asked:
            raise RunError(
                f"{folder} holds another sweep: choose another folder, or ask the same again to go on with it"
            )
        return
    first = [job for job in asked.all_jobs(folder) if job.seed == asked.seeds[0]]
    seen = first[0].data() if data is None else replace(data, test=None, newcomers=None)
    for job in first:
        prepare(seen, job.variant.choice(), learner, job.run_options())  # a mistake shows before anything is written
    create_for_jobs(folder, FILE, {name: value for name, value in asdict(asked).items() if value not in ("", None)})


def _checked(asked: Asked) -> Asked:
    """The same with values in their own types; an error for what cannot be swept."""
    kind = asked.variant.kind
    if asked.data_sha256 == "":
        find_scenario(asked.scenario)
    if not isinstance(asked.over, Mapping):
        raise ConfigError(f"over must be a dict of lists, such as {{'lr': [0.1, 1]}}, got {shown(asked.over)}")
    if not asked.over:
        raise ConfigError("nothing to sweep: name at least one option with its values, such as over lr=0.01,0.1,1")
    if not asked.seeds:
        raise ConfigError("a sweep needs at least one seed")
    of_scenario = SCENARIOS[asked.scenario].options if asked.scenario in SCENARIOS else ()
    known = {option.name: option for option in kind.options()}
    over = {}
    for name, values in asked.over.items():
        if name in {option.name for option in of_scenario}:
            raise ConfigError(f"{name} changes the data of {asked.scenario}, and scores on other data do not compare")
        if name in ("seed", "validation", "finetune"):
            raise ConfigError(f"{name} is not swept: it is the same for all combinations; set it beside over")
        if name in asked.options:
            raise ConfigError(f"{name} is both set and swept: leave one of them out")
        over[name] = _values(name, values, known.get(name))
    runs = math.prod(len(values) for values in over.values()) * len(asked.seeds)
    if runs > MOST_RUNS:
        raise ConfigError(f"a sweep of {runs:,} runs is too large, at most {MOST_RUNS:,} are allowed: try fewer values")
    return replace(asked, over=over, seeds=list(asked.seeds), options=plain_options(asked.options))


def _values(name: str, given: Sequence[Any], option: Option | None) -> list[Any]:
    """The values to try; those of an unknown option are refused later, by the method, with the nearest name."""
    if not is_list(given):
        raise ConfigError(f"{name} must be swept over a list of values, got {shown(given)}")
    values = [plain_value(value.item() if isinstance(value, np.generic) else value) for value in given]
    if option is not None and not issubclass(option.kind, Registered):  # members are checked with the whole run
        values = [option.check(value) for value in values]
    if not values:
        raise ConfigError(f"{name} has no values to try: give at least one")
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise ConfigError(f"{name} lists {shown(twice[0])} twice: name every value once")
    return values


def is_sweep(folder: Path) -> bool:
    """Whether this folder was made by `plan_sweep`."""
    return (folder / FILE).is_file()


def read_asked(folder: Path) -> Asked:
    """What the sweep in this folder is about."""
    try:
        return Asked(**read_toml(folder / FILE))
    except TypeError:
        raise RunError(f"{folder / FILE} is not as a sweep writes it: the folder is damaged, run it again") from None


def run_sweep(folder: Path, workers: int | None = None, progress: Progress = lambda job, done: None) -> dict[str, str]:
    """Run, or go on with, every run of a sweep over a scenario; the names of those that failed, and why."""
    asked = read_asked(folder)
    if asked.data_sha256:
        raise RunError(f"{folder} sweeps over arrays: go on with the same call of coterie.sweep in Python")
    return run_jobs(asked.all_jobs(folder), workers, progress)


def _run_here(folder: Path, data: FederatedDataset, learner: LearnerChoice | None) -> dict[str, str]:
    """The same on a dataset of one's own, in this process, one run after the other."""
    failed = {}
    for job in read_asked(folder).all_jobs(folder):
        try:
            if not job.finished:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore", DivergenceWarning)  # the cell says so
                    go_on(job.folder, data, job.variant.choice(), learner, job.run_options())
        except CoterieError as error:
            failed[job.name] = str(error)
    return failed


# ---- what came out -------------------------------------------------------------------------------------------


def conclude(folder: Path, failed: Mapping[str, str]) -> Sweep:
    """Rank the cells of a sweep that has run, and write sweep.json; `failed` says why some runs have no result."""
    asked = read_asked(folder)
    cells, runs = [], {}
    for number, options in enumerate(asked.combinations()):
        jobs = asked.jobs(folder, number, options)
        found = [read_run(job.folder) for job in jobs if job.finished]
        if len(found) < len(jobs):
            cells.append((number, Cell(options, failed=_reason(jobs, failed))))
        else:
            cells.append((number, _cell(options, found)))
            if not cells[-1][1].failed:
                runs[number] = found[0]
    if not runs:
        raise RunError(f"every combination failed; the first: {cells[0][1].failed}")
    higher = next(iter(runs.values())).higher_is_better
    ranked = sorted(cells, key=lambda numbered: _rank(numbered[1], higher))
    number, best = ranked[0]
    if best.score is None:
        raise RunError("no combination has a finite validation score: lower lr or scale the features")
    result = Sweep(
        asked.method,
        runs[number].score_name,
        tuple(asked.seeds),
        tuple(cell for _, cell in ranked),
        run_command(_for_good(runs[number]), spelled=asked.over),
        tuple(_edges(asked, best.options)),
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
    """One value a seed; None if one is not finite, since a mean over the other seeds would flatter."""
    values = [run.metrics[metric] for run in runs]
    return None if None in values else Spread(tuple(float(value) for value in values))


def _reason(jobs: Sequence[Job], failed: Mapping[str, str]) -> str:
    return next((failed[job.name] for job in jobs if job.name in failed), "not finished")


def _rank(cell: Cell, higher_is_better: bool) -> tuple[float, float]:
    """Sorts the best first: by score, then by loss."""
    if cell.score is None:
        return math.inf, math.inf
    return (-1 if higher_is_better else 1) * cell.score.mean, math.inf if cell.loss is None else cell.loss.mean


def _for_good(run: RunData) -> RunData:
    """As it would be run for good: on all training samples, unless patience needs some to watch."""
    kept = {name: value for name, value in run.config.items() if name != "validation" or "patience" in run.config}
    return replace(run, config=kept)


def _edges(asked: Asked, best: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each number whose best value is the least or the greatest tried, where it could go further."""
    known = {option.name: option for option in asked.variant.kind.options()}
    for name, values in asked.over.items():
        if len(values) < 2 or known[name].kind not in (int, float):
            continue
        if best[name] == max(values) and best[name] < known[name].high:
            yield f"the best {name}, {best[name]:g}, is the greatest that was tried: greater ones may be better"
        if best[name] == min(values) and best[name] > known[name].low:
            yield f"the best {name}, {best[name]:g}, is the least that was tried: smaller ones may be better"
