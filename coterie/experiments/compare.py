"""Comparison of several methods on the same data over several seeds, with one run folder for each method and seed.

::

    compare.toml              the plan, which is enough to resume after an interruption
    jobs/ifca-seed0/          a run folder like those of `coterie run`
    report.html
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data import find_scenario, scenario
from coterie.errors import ConfigError, CoterieError, DivergenceWarning, RunError, shown
from coterie.experiments.comparison import Comparison
from coterie.experiments.pools import Pool, Processes, chosen_pool
from coterie.experiments.processes import leave_if_importing_main
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
    """Whether the run has the test data."""

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return self.folder.name

    @property
    def finished(self) -> bool:
        """Whether the run has a result."""
        return (self.folder / "result.json").is_file()

    def data(self) -> FederatedDataset:
        """Return the data of the run."""
        whole = scenario(self.scenario, seed=self.seed, **self.scenario_options)
        return whole if self.tested else replace(whole, test=None, newcomers=None)

    def rounds(self) -> int:
        """Return the largest number of rounds of the run, from its options only."""
        if not self.variant.kind.trains:
            return 0
        suggested = find_scenario(self.scenario).recommended.get("rounds", RunSettings().rounds)
        return most_of(self.options.get("rounds", suggested))

    def run_options(self) -> dict[str, Any]:
        """Return the options of the run, including the seed."""
        return {**self.options, "seed": self.seed}

    def done(self) -> int:
        """Return the number of finished rounds; for a finished run the number of planned rounds."""
        if self.finished:
            return self.rounds()
        records = self.folder / "records.jsonl"
        return records.read_bytes().count(b"\n") if records.is_file() else 0


Progress = Callable[[Job, int], None]
"""Function that is called repeatedly with a job and its number of finished rounds."""


def plan_comparison(name: str, methods: Methods, seeds: Sequence[int], options: Mapping[str, Any], out: Path) -> None:
    """Check all settings of a comparison, and write compare.toml into a new folder, without running anything.

    Args:
        name: Name of the scenario.
        methods: Names or typed methods in a list, or in a mapping by label.
        seeds: Seeds of the runs of each method.
        options: Options of the scenario and of the runs; each applies to the methods that have it.
        out: The new folder.

    Raises:
        ConfigError: if a method, an option or a combination of them is not allowed; then nothing is written.
    """
    options = plain_options(options)
    check_one_process_each(options)
    variants = variants_of(methods)
    if not variants or not seeds:
        raise ConfigError("a comparison needs at least one method and one seed")
    entry = find_scenario(name)
    scenario_names = {option.name for option in entry.options}
    listed = ", ".join(variant.label for variant in variants)
    _check_taken(options, scenario_names | _names_of(variants), f"scenario {name} or of {listed}")
    _check_effect({each: value for each, value in options.items() if each not in scenario_names}, variants)
    plan: dict[str, Any] = {
        "scenario": name,
        "methods": [variant.label for variant in variants],
        "seeds": list(seeds),
        "options": dict(options),
    }
    typed = {variant.label: variant.to_plain() for variant in variants if not variant.is_plain}
    if typed:
        plan["typed"] = typed
    first = [job for job in _jobs(out, plan) if job.seed == seeds[0]]
    data = first[0].data()
    for job in first:
        prepare(data, job.variant.choice(), None, job.run_options())  # finds mistakes before anything is written
    create_for_jobs(out, FILE, plan)


def _names_of(variants: Sequence[Variant]) -> set[str]:
    """Return the names of all options of these methods."""
    return {option.name for variant in variants for option in variant.kind.options()}


def _check_taken(options: Mapping[str, Any], known: Collection[str], by: str) -> None:
    for option in options:
        if option not in known:
            raise ConfigError(f"{option} is not an option of {by}: leave it out")


def _check_effect(options: Mapping[str, Any], variants: Sequence[Variant]) -> None:
    """Raise ConfigError for an option that affects none of the methods."""
    used = {name for variant in variants for name in variant.takes(options)}
    for option in options:
        if option not in used:
            listed = ", ".join(variant.label for variant in variants)
            raise ConfigError(f"{option} has no effect on {listed} with these options: leave it out")


def check_data(data: object) -> None:
    """Raise ConfigError unless the data is the name of a scenario or a dataset."""
    if not isinstance(data, str | FederatedDataset):
        raise ConfigError(
            "data must be the name of a scenario or the result of from_arrays, from_table or scenario, got "
            f"{type(data).__name__}"
        )


def check_in_process(workers: str | None, executor: Executor | None) -> None:
    """Raise ConfigError if the runs of a dataset are to be carried out by other processes."""
    if workers is not None or executor is not None:
        raise ConfigError(
            "workers and executor share the runs of a scenario, which every process can build by its name: give the "
            "name of a scenario, or register a function that returns your data (coterie.data.register_scenario)"
        )


def check_one_process_each(options: Mapping[str, Any]) -> None:
    """Raise ConfigError if each single run is to be spread over workers."""
    if options.get("engine") == "dask":
        raise ConfigError(
            "engine=dask spreads one run over workers, but here workers share the runs: leave engine out, and give "
            "workers only"
        )


def check_no_seed(options: Mapping[str, Any]) -> None:
    """Raise ConfigError for the option `seed`, since `seeds` sets the seeds."""
    if "seed" in options:
        raise ConfigError(f"seed={shown(options['seed'])} has no effect here: give a list of seeds, seeds=[...]")


def folder_path(out: object) -> Path:
    """Return the folder that the argument `out` names."""
    if not isinstance(out, str | os.PathLike) or "\0" in str(out):
        raise ConfigError(f"out must be the path of a folder, got {shown(out)}")
    return Path(out)


def is_comparison(folder: Path) -> bool:
    """Return whether a folder was created by `plan_comparison`."""
    return (folder / FILE).is_file()


def jobs_of(folder: Path) -> list[Job]:
    """Return the runs of a comparison, seed by seed."""
    return _jobs(folder, read_toml(folder / FILE))


def _jobs(folder: Path, plan: Mapping[str, Any]) -> list[Job]:
    scenario_names = {option.name for option in find_scenario(plan["scenario"]).options}
    options = plan["options"]
    of_scenario = {name: value for name, value in options.items() if name in scenario_names}
    of_runs = {name: value for name, value in options.items() if name not in scenario_names}
    variants = [Variant.from_plain(label, plan.get("typed", {})) for label in plan["methods"]]
    return [
        Job(
            folder / "jobs" / f"{variant.label}-seed{seed}",
            plan["scenario"],
            of_scenario,
            variant,
            seed,
            variant.takes(of_runs),
        )
        for seed in plan["seeds"]
        for variant in variants
    ]


def run_comparison(folder: Path, pool: Pool | None = None, progress: Progress = lambda job, done: None) -> list[str]:
    """Run or resume all unfinished jobs of a comparison; return one line for each job that failed."""
    return [f"{name}: {why}" for name, why in run_jobs(jobs_of(folder), folder, pool, progress).items()]


def run_jobs(
    jobs: Sequence[Job], folder: Path, pool: Pool | None = None, progress: Progress = lambda job, done: None
) -> dict[str, str]:
    """Run or resume all unfinished jobs in worker processes.

    Args:
        jobs: The jobs.
        folder: Folder that contains the folders of the jobs.
        pool: The worker processes; by default one for each core.
        progress: Function that is called repeatedly with a job and its number of finished rounds.

    Returns:
        The reasons of failures, by name of the job.
    """
    for job in jobs:
        progress(job, job.done())

    def watch(pending: Sequence[Job]) -> None:
        for job in pending:
            progress(job, job.done())

    failed = {}
    # workers may have another current folder
    open_jobs = [replace(job, folder=job.folder.absolute()) for job in jobs if not job.finished]
    for job, outcome in (pool or Processes()).run(run_job, open_jobs, watch, folder):
        progress(job, job.done())
        if isinstance(outcome, CoterieError):
            failed[job.name] = str(outcome)
    return {job.name: failed[job.name] for job in jobs if job.name in failed}


def run_job(job: Job) -> None:
    """Run one job in a worker process; its result shows whether training diverged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DivergenceWarning)
        run_or_resume(job.folder, job.data(), job.variant.choice(), None, job.run_options())


def run_or_resume(
    folder: Path,
    data: FederatedDataset,
    method: MethodChoice,
    learner: LearnerChoice | None,
    options: Mapping[str, Any],
) -> None:
    """Resume the run in a folder, or start it if there is none, and finish it."""
    if (folder / "config.toml").is_file():
        resume(folder, data, learner=learner, warn=lambda text: None)
    else:
        chosen = {} if learner is None else {"learner": learner}  # the name of a learner is among the options
        fit(data, method, out=folder, **{**options, **chosen})


MOST_SEEDS = 10_000
"""Largest number of seeds of a comparison or a sweep."""


def is_list(value: object) -> TypeGuard[Sequence[Any]]:
    """Return whether a value is a sequence other than a text, or an array with one axis."""
    if isinstance(value, np.ndarray):
        return value.ndim == 1
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def seed_list(seeds: int | Sequence[int], first: int = 0) -> list[int]:
    """Return a list of different seeds.

    Args:
        seeds: Number of consecutive seeds, or a list of seeds.
        first: First of the consecutive seeds.

    Raises:
        ConfigError: if a seed or the number of seeds is not allowed, or a seed is listed twice.
    """
    if is_list(seeds):
        listed = [check_seed(seed) for seed in seeds]
    else:
        count = Option("seeds", int, "", low=1, high=MOST_SEEDS).check(seeds)
        if not isinstance(count, int):
            raise ConfigError("seeds must be a number of seeds or a list of seeds, got None")
        listed = [check_seed(first + number) for number in range(count)]
    if len(set(listed)) < len(listed):
        raise ConfigError("seeds lists a seed twice: list every seed once")
    return listed


def compare(
    data: str | FederatedDataset,
    methods: Methods = ("local", "fedavg", "ifca"),
    *,
    seeds: int | Sequence[int] = 3,
    out: str | Path,
    learner: LearnerChoice | None = None,
    workers: str | None = None,
    executor: Executor | None = None,
    **options: Any,
) -> Comparison:
    """Run several methods over several seeds, and return their figures for a comparison.

    Args:
        data: Name of a scenario, whose runs are carried out in parallel worker processes, with other data for every
            seed; or a dataset, whose runs are carried out one after the other in this process, with other initial
            models and client sampling for every seed.
        methods: Names or typed methods such as `IFCA(clusters=4)`. A mapping gives each method a label, so that several
            variants of one method can be compared: `{"ifca-2": IFCA(clusters=2), "ifca-4": IFCA(clusters=4)}`.
        seeds: Number of seeds, or a list of seeds.
        out: New folder for the runs.
        learner: As in `fit`; a function is only allowed with a dataset.
        workers: Workers that share the runs of a scenario (docs/cluster.md): `local:4`, `tcp://127.0.0.1:8786`,
            `tls://scheduler:8786`; by default one process for each core of this machine.
        executor: An executor to use instead, such as a `concurrent.futures.ProcessPoolExecutor`.
        **options: As in `fit`. Each option applies to the methods that have it, and overrides the field of a typed
            method.

    Returns:
        The comparison: `to_frame`, `to_csv`, `to_latex`, `figure`, `differences(against=...)`, and the `folder` of the
        runs.

    Raises:
        ConfigError: if a method or an option is unknown or not allowed; then nothing is written.
        RunError: if runs failed; `coterie resume` resumes the comparison.

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
            raise ConfigError("a user-defined learner needs a dataset, not the name of a scenario: pass scenario(...)")
        pool = chosen_pool(None, workers, executor)
        plan_comparison(data, methods, seeds, options | ({} if learner is None else {"learner": learner}), folder)
        failed = run_comparison(folder, pool)
        if failed:
            raise RunError(f"{len(failed)} of {len(jobs_of(folder))} runs failed; the first failure: {failed[0]}")
        for job in jobs_of(folder):
            run = read_run(job.folder)
            if run.diverged:
                warnings.warn(f"{job.name}: {run.metrics['why_diverged']}", DivergenceWarning, stacklevel=2)
        return Comparison.read(folder)
    check_in_process(workers, executor)
    variants = variants_of(methods)
    _check_taken(options, _names_of(variants), ", ".join(variant.label for variant in variants))
    _check_effect(options, variants)
    for seed in seeds:
        for variant in variants:
            place = folder / "jobs" / f"{variant.label}-seed{seed}"
            fit(data, variant.choice(), learner=learner, out=place, seed=seed, **variant.takes(options))
    return Comparison.read(folder)
