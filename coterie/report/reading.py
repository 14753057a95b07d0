"""Finished runs as the page needs them: options, records, final figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coterie.errors import RunError
from coterie.training.measures import MEASURES
from coterie.training.records import ClientResult, Metrics, RoundRecord
from coterie.training.runs.folder import RunFolder

JOBS = "jobs"
"""The folder inside a comparison that holds its runs."""


@dataclass(frozen=True)
class RunData:
    """One finished run: its options, the figures of each round, the final figures, the figures of each client."""

    config: Mapping[str, Any]
    records: list[RoundRecord]
    metrics: Metrics
    clients: list[ClientResult]

    @property
    def method(self) -> str:
        return str(self.config.get("method", "unknown"))

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


def run_from_parts(
    config: Mapping[str, Any], records: Iterable[Mapping[str, Any]], summary: Mapping[str, Any]
) -> RunData:
    """Return a run from plain values; `summary` is what result.json holds."""
    return RunData(
        dict(config),
        [RoundRecord.from_json(record) for record in records],
        Metrics.from_json(summary["metrics"]),
        [ClientResult.from_json(client) for client in summary["clients"]],
    )


def read_run(path: Path) -> RunData:
    """Return the run in a finished run folder."""
    run = RunFolder.open(path)
    return run_from_parts(run.config, run.records(), run.result)


def read_runs(path: Path) -> list[RunData]:
    """The finished runs of a run folder (one) or of a comparison (those under jobs/), by name of their folder."""
    if (path / "config.toml").is_file():
        return [read_run(path)]
    jobs = _jobs(path)
    if not jobs:
        raise RunError(f"{path} is neither a run nor a comparison: it has no config.toml and no runs under {JOBS}/")
    finished = [job for job in jobs if job.finished]
    if not finished:
        raise RunError(f"{path} holds no finished run ({len(jobs)} begun): go on with 'coterie resume {path}'")
    return [read_run(job.path) for job in finished]


def count_unfinished(path: Path) -> int:
    """How many runs of a comparison have begun and are not finished; 0 for a single run."""
    return sum(not job.finished for job in _jobs(path))


def _jobs(path: Path) -> list[RunFolder]:
    return [RunFolder(config.parent) for config in sorted((path / JOBS).glob("*/config.toml"))]
