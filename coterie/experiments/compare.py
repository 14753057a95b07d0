"""Several methods on the same data over several seeds: one run folder for each, side by side.

::

    compare.toml              what was asked; enough to go on after an interruption
    jobs/ifca-seed0/          a run folder, as `coterie run` writes it
    report.html
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data import find_scenario, scenario
from coterie.errors import ConfigError, CoterieError, DivergenceWarning, RunError, shown
from coterie.experiments.comparison import Comparison
from coterie.experiments.processes import in_processes, leave_if_importing_main
from coterie.experiments.variants import Methods, Variant, variants_of
from coterie.learners import LearnerChoice
from coterie.methods.settings import RunSettings, most_of
from coterie.options import Option, check_seed, plain_options
from coterie.report.reading import read_run
from coterie.training.fitting import fit, resume
from coterie.training.planning import MethodChoice, prepare
from coterie.training.runs.folder import read_toml
from coterie.training.runs.locking import create_for_jobs

FILE = "compare.toml"


@dataclass(frozen=True)
class Job:
    """One run of a comparison or of a sweep."""

    folder: Path
    scenario: str
    scenario_options: Mapping[str, Any]
    variant: Variant
    seed: int
    options: Mapping[str, Any]
    tested: bool = True
    """Whether it gets to see the test data."""

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def finished(self) -> bool:
        return (self.folder / "result.json").is_file()

    def data(self) -> FederatedDataset:
        whole = scenario(self.scenario, seed=self.seed, **self.scenario_options)
        return whole if self.tested else replace(whole, test=None, newcomers=None)

    def rounds(self) -> int:
        """Number of rounds that it will take at most; from the options, without the data."""
        if not self.variant.kind.trains:
            return 0
        suggested = find_scenario(self.scenario).recommended.get("rounds", RunSettings().rounds)
        return most_of(self.options.get("rounds", suggested))

    def run_options(self) -> dict[str, Any]:
        return {**self.options, "seed": self.seed}

    def done(self) -> int:
        """Rounds finished so far, as far as the folder tells; all of them for a run that stopped early."""
        if self.finished:
            return self.rounds()
        records = self.folder / "records.jsonl"
        return records.read_bytes().count(b"\n") if records.is_file() else 0


Progress = Callable[[Job, int], None]
"""Called now and then with a job and the rounds it has done."""


def plan_comparison(name: str, methods: Methods, seeds: Sequence[int], options: Mapping[str, Any], out: Path) -> None:
    """Check everything, then write compare.toml into a new folder. Nothing runs yet.

    Args:
        name: Name of the scenario.
        methods: Names or typed values, in a list, or in a mapping by label.
        seeds: Seeds of the runs of each method.
        options: Options of the scenario and of the runs; each goes to the methods that take it.
        out: The new folder.

    Raises:
        ConfigError: if a method, an option or a combination of them cannot work; nothing has been written then.
    """
    options = plain_options(options)
    variants = variants_of(methods)
    if not variants or not seeds:
        raise ConfigError("a comparison needs at least one method and one seed")
    entry = find_scenario(name)
    scenario_names = {option.name for option in entry.options}
    listed = ", ".join(variant.label for variant in variants)
    _check_taken(options, scenario_names | _names_of(variants), f"scenario {name} nor of {listed}")
    _check_effect({each: value for each, value in options.items() if each not in scenario_names}, variants)
    asked: dict[str, Any] = {
        "scenario": name,
        "methods": [variant.label for variant in variants],
        "seeds": list(seeds),
        "options": dict(options),
    }
    typed = {variant.label: variant.to_plain() for variant in variants if not variant.is_plain}
    if typed:
        asked["typed"] = typed
    first = [job for job in _jobs(out, asked) if job.seed == seeds[0]]
    data = first[0].data()
    for job in first:
        prepare(data, job.variant.choice(), None, job.run_options())  # a mistake shows before anything is written
    create_for_jobs(out, FILE, asked)


def _names_of(variants: Sequence[Variant]) -> set[str]:
    """The names of all options of these methods."""
    return {option.name for variant in variants for option in variant.kind.options()}


def _check_taken(options: Mapping[str, Any], known: Collection[str], by: str) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(f"{option} is no option of {by}: leave it out")


def _check_effect(options: Mapping[str, Any], variants: Sequence[Variant]) -> None:
    """Refuse options that have an effect on none of the methods; each goes to those on which it has one."""
    used = {name for variant in variants for name in variant.takes(options)}
    for option in options:
        if option not in used:
            listed = ", ".join(variant.label for variant in variants)
            raise ConfigError(f"{option} has no effect on {listed} with these options: leave it out")


def check_data(data: object) -> None:
    """Refuse what is neither a scenario's name nor a dataset."""
    if not isinstance(data, str | FederatedDataset):
        raise ConfigError(
            f"expected a scenario's name or the result of from_arrays or scenario, got {type(data).__name__}"
        )


def check_no_seed(options: Mapping[str, Any]) -> None:
    """Refuse the option `seed`, which would have no effect beside `seeds`."""
    if "seed" in options:
        raise ConfigError(f"seed={shown(options['seed'])} has no effect here: list the seeds, seeds=[...]")


def folder_path(out: object) -> Path:
    """Return the folder that a user names as a path."""
    if not isinstance(out, str | os.PathLike) or "\0" in str(out):
        raise ConfigError(f"out must be the path of a folder, got {shown(out)}")
    return Path(out)


def is_comparison(folder: Path) -> bool:
    """Whether this folder was made by `plan_comparison`."""
    return (folder / FILE).is_file()


def jobs_of(folder: Path) -> list[Job]:
    """The runs of a comparison, seed by seed."""
    return _jobs(folder, read_toml(folder / FILE))


def _jobs(folder: Path, asked: Mapping[str, Any]) -> list[Job]:
    scenario_names = {option.name for option in find_scenario(asked["scenario"]).options}
    options = asked["options"]
    of_scenario = {name: value for name, value in options.items() if name in scenario_names}
    of_runs = {name: value for name, value in options.items() if name not in scenario_names}
    variants = [Variant.from_plain(label, asked.get("typed", {})) for label in asked["methods"]]
    return [
        Job(
            folder / "jobs" / f"{variant.label}-seed{seed}",
            asked["scenario"],
            of_scenario,
            variant,
            seed,
            variant.takes(of_runs),
        )
        for seed in asked["seeds"]
        for variant in variants
    ]


def run_comparison(folder: Path, workers: int | None = None, progress: Progress = lambda job, done: None) -> list[str]:
    """Run, or go on with, every job that is not finished; returns what failed, one line each."""
    return [f"{name}: {why}" for name, why in run_jobs(jobs_of(folder), workers, progress).items()]


def run_jobs(
    jobs: Sequence[Job], workers: int | None = None, progress: Progress = lambda job, done: None
) -> dict[str, str]:
    """Every job that is not finished, in processes of their own; the names of those that failed, and why."""
    for job in jobs:
        progress(job, job.done())

    def watch(pending: Sequence[Job]) -> None:
        for job in pending:
            progress(job, job.done())

    failed = {}
    for job, outcome in in_processes(run_job, [job for job in jobs if not job.finished], workers, watch):
        progress(job, job.done())
        if isinstance(outcome, CoterieError):
            failed[job.name] = str(outcome)
    return {job.name: failed[job.name] for job in jobs if job.name in failed}


def run_job(job: Job) -> None:
    """One job, in a worker process; that its training diverged is in its result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        go_on(job.folder, job.data(), job.variant.choice(), None, job.run_options())


def go_on(
    folder: Path,
    data: FederatedDataset,
    method: MethodChoice,
    learner: LearnerChoice | None,
    options: Mapping[str, Any],
) -> None:
    """Bring the run in this folder to its end, whether or not it has begun."""
    if (folder / "config.toml").is_file():
        resume(folder, data, learner=learner, warn=lambda text: None)
    else:
        chosen = {} if learner is None else {"learner": learner}  # a name is among the options
        fit(data, method, out=folder, **{**options, **chosen})


MOST_SEEDS = 10_000
"""The most seeds of a comparison or a sweep."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Whether this is a list of values: a sequence that is no text, or an array with one axis."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def seed_list(seeds: int | Sequence[int], first: int = 0) -> list[int]:
    """Return the seeds: so many from `first` on, or those that are listed, checked and each one once."""
    if is_list(seeds):
        listed = [check_seed(seed) for seed in seeds]
    else:
        count = Option("seeds", int, "", low=1, high=MOST_SEEDS).check(seeds)
        if not isinstance(count, int):
            raise ConfigError("seeds must be a number of seeds or a list of them, got None")
        listed = [check_seed(first + number) for number in range(count)]
    if len(set(listed)) < len(listed):
        raise ConfigError("seeds lists a seed twice: name every seed once")
    return listed


def compare(
    data: str | FederatedDataset,
    methods: Methods = ("local", "fedavg", "ifca"),
    *,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    learner: LearnerChoice | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods over several seeds and return their figures side by side.

    Args:
        data: Name of a scenario (runs are carried out in parallel worker processes, and every seed draws its own data),
            or a dataset (one run after the other in this process; seeds change the first models and the sampling).
        methods: Names or typed methods such as `IFCA(clusters=4)`. A mapping gives each a label, so that several
            variants of one method can be compared: `{"ifca-2": IFCA(clusters=2), "ifca-4": IFCA(clusters=4)}`.
        seeds: Number of seeds, or a list of them.
        out: New folder for the runs.
        learner: As in `fit`; a function only with a dataset.
        **options: As in `fit`. Each goes to the methods that take it, and replaces the field of a typed method.

    Returns:
        The comparison: `to_frame`, `to_csv`, `to_latex`, `figure`, `differences(against=...)`, and the `folder` of the
        runs.

    Raises:
        ConfigError: if a method or an option is unknown or does not fit; nothing has been written then.
        RunError: if runs failed; `coterie resume` continues the others.

    Example:
        >>> import tempfile
        >>> import coterie
        >>> from coterie.methods import IFCA
        >>> data = coterie.scenario("rotated-digits", clients=8)
        >>> out = tempfile.mkdtemp() + "/comparison"
        >>> comparison = coterie.compare(data, ["fedavg", IFCA(clusters=4)], seeds=2, out=out, rounds=2)
        >>> [row.method for row in comparison.differences(against="fedavg")]
        ['ifca']
    """
    leave_if_importing_main()
    check_data(data)
    check_no_seed(options)
    seeds = seed_list(seeds)
    folder = folder_path(out)
    if not isinstance(methods, Mapping) and not is_list(methods):
        raise ConfigError(f"methods must be a list of names or typed methods, got {shown(methods)}")
    if isinstance(data, str):
        if learner is not None and not isinstance(learner, str):
            raise ConfigError("a learner of your own needs a dataset instead of a scenario's name: pass scenario(...)")
        plan_comparison(data, methods, seeds, options | ({} if learner is None else {"learner": learner}), folder)
        failed = run_comparison(folder)
        if failed:
            raise RunError(f"{len(failed)} of {len(jobs_of(folder))} runs failed; the first: {failed[0]}")
        for job in jobs_of(folder):
            run = read_run(job.folder)
            if run.diverged:
                warnings.warn(f"{job.name}: {run.metrics['why_diverged']}", DivergenceWarning, stacklevel=2)
        return Comparison.read(folder)
    variants = variants_of(methods)
    _check_taken(options, _names_of(variants), ", ".join(variant.label for variant in variants))
    _check_effect(options, variants)
    for seed in seeds:
        for variant in variants:
            place = folder / "jobs" / f"{variant.label}-seed{seed}"
            fit(data, variant.choice(), learner=learner, out=place, seed=seed, **variant.takes(options))
    return Comparison.read(folder)
