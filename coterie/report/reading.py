"""Reading of finished runs for a page: options, records and final figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.methods.base import Method
from coterie.methods.initializers import GivenModels
from coterie.methods.run import Initializer
from coterie.options import from_options
from coterie.plugins.loading import knows
from coterie.training.measures import MEASURES
from coterie.training.records import ClientResult, Metrics, RoundRecord
from coterie.training.runs.folder import RunFolder
from coterie.training.subject import Subject, subject_of

JOBS = "jobs"
"""The folder inside a comparison that holds its runs."""


@dataclass(frozen=True)
class RunData:
    """A finished run: options, figures of each round, final figures, figures of each client."""

    config: Mapping[str, Any]
    records: list[RoundRecord]
    metrics: Metrics
    clients: list[ClientResult]
    label: str = ""
    """Name of the method's variant in a comparison; empty: the method's own name."""
    subject: Subject = field(default_factory=Subject)
    """Facts about the data."""

    @property
    def method(self) -> str:
        return str(self.config.get("method", "unknown"))

    @property
    def name(self) -> str:
        """Name under which the run is shown: the label, or the method."""
        return self.label or self.method

    @property
    def method_class(self) -> type[Method] | None:
        """Class of the method; None if it is unknown here, as without its plugin."""
        return Method.members[self.method] if knows(Method, self.method) else None

    @property
    def seed(self) -> int:
        return int(self.config.get("seed", 0))

    @property
    def scenario(self) -> str:
        return str(self.config.get("scenario", "arrays"))

    @property
    def score_name(self) -> str:
        """`accuracy` (higher is better) or `rmse` (lower is better)."""
        return "accuracy" if "accuracy" in self.metrics else "rmse"

    @property
    def higher_is_better(self) -> bool:
        return MEASURES[self.score_name].better == "higher"

    @property
    def diverged(self) -> bool:
        """Whether the training diverged, so that its models are not to be used."""
        return self.metrics.diverged

    @property
    def score(self) -> float | None:
        """The mean score over clients."""
        value = self.metrics.get(self.score_name)
        return None if value is None else float(value)


def typed_method(run: RunData) -> Method | None:
    """Return the method of a run with its settings; None if it is not known here."""
    kind = run.method_class
    if kind is None:
        return None
    own = {name: value for name, value in run.config.items() if name in kind.own_names()}
    if is_given(own.get("init")):
        own["init"] = GivenModels(())
    method: Method = from_options(kind, own)
    return method


def is_given(init: object) -> bool:
    """Return whether the option `init` of a config names a run folder, or stands for models given in Python."""
    return isinstance(init, str) and not knows(Initializer, init.partition(":")[0])


def run_from_parts(
    config: Mapping[str, Any], records: Iterable[Mapping[str, Any]], summary: Mapping[str, Any], label: str = ""
) -> RunData:
    """Return a run from plain values; `summary` is what result.json holds."""
    return RunData(
        dict(config),
        [RoundRecord.from_json(record) for record in records],
        Metrics.from_json(summary["metrics"]),
        [ClientResult.from_json(client) for client in summary["clients"]],
        label,
        subject_of(summary),
    )


def read_run(path: Path, label: str = "") -> RunData:
    """Return the run in a finished run folder, under the label of its variant in a comparison."""
    run = RunFolder.open(path)
    return run_from_parts(run.config, run.records(), run.result, label)


def read_runs(path: Path) -> list[RunData]:
    """Return the finished runs of a run folder or of a comparison (under jobs/), by name of their folder."""
    if (path / "config.toml").is_file():
        return [read_run(path)]
    jobs = _jobs(path)
    if not jobs:
        raise RunError(f"{path} is neither a run nor a comparison: it has no config.toml and no runs under {JOBS}/")
    finished = [job for job in jobs if job.finished]
    if not finished:
        raise RunError(f"{path} holds no finished run ({len(jobs)} unfinished): continue with 'coterie resume {path}'")
    return [read_run(job.path, _label(job.path)) for job in finished]


def count_unfinished(path: Path) -> int:
    """Return the number of unfinished runs of a comparison; 0 for a single run."""
    return sum(not job.finished for job in _jobs(path))


def _label(job: Path) -> str:
    """Return the label in the name of a job's folder, LABEL-seedN; empty for a folder that is named otherwise."""
    label, seed, number = job.name.rpartition("-seed")
    return label if seed and number.isdigit() else ""


def _jobs(path: Path) -> list[RunFolder]:
    return [RunFolder(config.parent) for config in sorted((path / JOBS).glob("*/config.toml"))]
