"""Tracking with MLflow."""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeVar

from coterie.core.registry import register
from coterie.training.callbacks.base import TrainingRun
from coterie.training.callbacks.tracking import Identity, Outcome, Session, Tracker, flat_settings, run_name

if TYPE_CHECKING:
    from mlflow.tracking import MlflowClient

LONGEST_VALUE = 6000
"""Number of characters of a parameter that MLflow stores."""
LONGEST_NAME = 250
"""Number of characters of a name that MLflow stores."""
PARAMETERS_PER_CALL = 100
METRICS_PER_CALL = 1000
FORBIDDEN = re.compile(r"[^\w.\- :/]")
"""Characters that MLflow does not allow in names."""
STATUS = {"finished": "FINISHED", "stopped early": "FINISHED", "failed": "FAILED"}
SQLITE = "sqlite:///"


@register("mlflow")
@dataclass
class MLflow(Tracker):
    """Record a run with MLflow: settings as parameters, figures as metrics, the outcome as status and tags.

    By default everything stays on this machine. MLflow's own usage statistics are switched off, unless the environment
    variable MLFLOW_DISABLE_TELEMETRY is set otherwise.

    Args:
        uri: Tracking URI, such as `sqlite:///mlflow.db` or `http://server:5000`. By default the environment variable
            MLFLOW_TRACKING_URI, or, if it is not set, the database mlflow.db in the current folder.
        experiment: Name of the experiment; it is created if it does not exist.
        run_name: Name of the run. By default the name of the run folder, or the method and the data.

    Raises:
        ConfigError: if MLflow is not installed.

    Example:
        >>> import coterie
        >>> from coterie.callbacks import MLflow
        >>> tracker = MLflow(experiment="hospitals")
    """

    packages: ClassVar[tuple[str, ...]] = ("mlflow", "sqlalchemy", "alembic")

    uri: str | None = None
    experiment: str = "coterie"
    run_name: str | None = None

    def open(self, run: TrainingRun, known: Identity | None) -> Session:
        """Start an MLflow run, or continue the known one."""
        uri = self.uri or (known or {}).get("uri") or os.environ.get("MLFLOW_TRACKING_URI") or _default_uri()
        _check_database(uri)
        client = _client(uri)
        if known is not None:
            client.update_run(known["run_id"], status="RUNNING")
            return MLflowSession(client, uri, known["run_id"], _last_step(client, known["run_id"]))
        run_id: str = client.create_run(
            self._experiment_id(client), run_name=self.run_name or run_name(run)
        ).info.run_id
        _log_parameters(client, run_id, run)
        return MLflowSession(client, uri, run_id)

    def _experiment_id(self, client: MlflowClient) -> str:
        found = client.get_experiment_by_name(self.experiment)
        return str(client.create_experiment(self.experiment) if found is None else found.experiment_id)


class MLflowSession(Session):
    """An open MLflow run."""

    def __init__(self, client: MlflowClient, uri: str, run_id: str, last_step: int = -1) -> None:
        self.client = client
        self.uri = uri
        self.run_id = run_id
        self.last_step = last_step
        """Last round that MLflow already has; a resumed run repeats the rounds since its last checkpoint."""

    @property
    def identity(self) -> Identity:
        return {"run_id": self.run_id, "uri": self.uri}

    def log(self, figures: Mapping[str, float], step: int) -> None:
        if step > self.last_step:
            self._log(figures, step)

    def close(self, outcome: Outcome) -> None:
        if outcome.figures is not None:
            self._log(outcome.figures, outcome.step)
        self.client.set_tag(self.run_id, "coterie.status", outcome.status)
        if outcome.reason:
            self.client.set_tag(self.run_id, "coterie.reason", outcome.reason)
        self.client.set_terminated(self.run_id, STATUS[outcome.status])

    def _log(self, figures: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(_allowed(name), value, now, step) for name, value in figures.items()]
        for batch in _batches(metrics, METRICS_PER_CALL):
            self.client.log_batch(self.run_id, metrics=batch)


def _default_uri() -> str:
    """Return the URI of a database in the current folder, where `mlflow ui` looks for it."""
    return f"{SQLITE}{(Path.cwd() / 'mlflow.db').as_posix()}"


def _check_database(uri: str) -> None:
    """Raise an OSError if the file of a database cannot be written; MLflow itself would retry for minutes."""
    if uri.startswith(SQLITE):
        path = Path(uri.removeprefix(SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()


def _client(uri: str) -> MlflowClient:
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read when mlflow is imported
    from mlflow.tracking import MlflowClient

    logging.getLogger("mlflow.store.db.utils").setLevel(logging.WARNING)  # it announces every new database
    return MlflowClient(tracking_uri=uri)


def _log_parameters(client: MlflowClient, run_id: str, run: TrainingRun) -> None:
    from mlflow.entities import Param

    settings = flat_settings(run.config, LONGEST_VALUE)
    for batch in _batches([Param(_allowed(name), str(value)) for name, value in settings.items()], PARAMETERS_PER_CALL):
        client.log_batch(run_id, params=batch)


def _last_step(client: MlflowClient, run_id: str) -> int:
    """Return the last round in an MLflow run, or -1 if it has none."""
    names = client.get_run(run_id).data.metrics
    return max((metric.step for name in names for metric in client.get_metric_history(run_id, name)), default=-1)


def _allowed(name: str) -> str:
    """Return a name in which characters that MLflow does not allow are replaced."""
    return FORBIDDEN.sub("_", name)[:LONGEST_NAME]


T = TypeVar("T")


def _batches(values: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (values[start : start + size] for start in range(0, len(values), size))
