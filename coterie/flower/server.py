"""The server side of a federation: an app that reads its settings from Flower's run config and writes a run folder.

::

    from coterie.flower.server import make_server_app

    app = make_server_app()

    [tool.flwr.app.config]        # pyproject.toml of the app; `flwr run . --run-config "rounds=5"` overrides it
    method = "ifca"
    clusters = 4
    nodes = 3
    out = "/srv/runs/first"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.errors import ConfigError
from coterie.flower.client_registry import LOG
from coterie.flower.clients import FILE, clients_of
from coterie.flower.engine import CHANGE_FACTOR
from coterie.flower.plugins import load_plugins
from coterie.flower.preflight import check_run_options
from coterie.flower.untrusted import one_line
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES
from coterie.learners import LearnerChoice
from coterie.options import Option, check_all
from coterie.plugins.loading import load_installed
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.training.callbacks import Tracker
from coterie.training.fitting import Callbacks, fit, resume
from coterie.training.planning import MethodChoice
from coterie.training.records import RoundRecord
from coterie.training.result import Result, load
from coterie.training.runs.folder import RunFolder

OPTIONS = (
    Option("method", str, "name of the method, see `coterie methods`", "ifca"),
    Option("out", str, "folder of the run, as an absolute path; an existing unfinished run is resumed"),
    Option("nodes", int, "number of nodes to wait for before the first round", 1, low=1),
    Option("wait", float, "longest time to wait for the nodes, in seconds", 600.0, above=0),
    Option(
        "deadline",
        float,
        "longest duration of an exchange, in seconds; clients that have not answered by then are missing",
        600.0,
        above=0,
    ),
    Option(
        "quorum",
        float,
        "smallest share of the asked clients that must answer; with fewer answers a round changes nothing",
        0.0,
        low=0,
        high=1,
    ),
    Option("most_change", float, "largest norm of a change of a model; larger ones are refused", above=0),
    Option(
        "change_factor",
        float,
        "largest ratio of the norm of a change of a model to the median over the nodes; larger ones are refused; "
        "0: no limit",
        CHANGE_FACTOR,
        low=0,
    ),
    Option("allowed", str, "TOML file with the clients that each node may register, as an absolute path"),
    Option(
        "schema",
        str,
        "expected form of the data, or the table schema that nodes encode their tables by, as a JSON file or a JSON "
        "text; nodes that differ are refused",
    ),
    Option("most_clients", int, "largest number of clients of one node", MOST_CLIENTS, low=1),
    Option("most_samples", int, "largest number of samples of one client", MOST_SAMPLES, low=1),
    Option(
        "plugins",
        str,
        "Python files or modules that register methods, tier members or tasks, separated by commas; a relative path is "
        "searched in the app's folder",
        "",
    ),
    Option(
        "track",
        Tracker,
        "trackers that also record the run, such as mlflow:experiment=wards; several are joined by ' + '",
        (),
        several=True,
    ),
    Option("expected", str, "ids of clients that may join later, separated by commas", ""),
)
"""Settings of the run config besides the options of the method."""


@dataclass(frozen=True)
class Settings:
    """Checked settings of a run config."""

    method: MethodChoice
    out: Path | None
    """Folder of the run; None: nothing is stored."""
    exchange: Mapping[str, Any]
    """Arguments of `clients_of`."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of the method and of the run."""
    trackers: Sequence[Tracker] = ()
    """Trackers that record the run."""

    @classmethod
    def read(cls, config: Mapping[str, Any], folders: Sequence[str | Path] | None = None) -> Settings:
        """Load the plugins of a run config, and return its settings.

        Args:
            config: The run config. Names may have hyphens or underscores; a setting with an empty text is ignored.
            folders: Folders that are searched for plugin files with a relative path; by default those that Python
                imports from.

        Raises:
            ConfigError: if a value is not allowed, or a plugin cannot be imported.
        """
        given = {name.replace("-", "_"): value for name, value in config.items() if value != ""}
        load_installed()
        load_plugins(_listed(given.get("plugins", "")), folders)
        own = {option.name for option in OPTIONS}
        values = {option.name: option.default for option in OPTIONS}
        values |= check_all({name: value for name, value in given.items() if name in own}, OPTIONS, "the run config")
        method, out, expected, track, _ = (
            values.pop(name) for name in ("method", "out", "expected", "track", "plugins")
        )
        options = {name: value for name, value in given.items() if name not in own}
        values["change_factor"] = values["change_factor"] or None
        assert isinstance(track, tuple), "the option track takes several trackers"
        return cls(str(method), _folder(out), {**values, "expected": _listed(expected)}, options, track)


def _listed(text: object) -> tuple[str, ...]:
    """Return the parts of a text that are separated by commas."""
    return tuple(part.strip() for part in str(text).split(",") if part.strip())


def _folder(out: object) -> Path | None:
    if out is None:
        return None
    folder = Path(str(out)).expanduser()
    if not folder.is_absolute():
        raise ConfigError(
            f"out={out!r} is a relative path, but Flower starts the app in a folder of its choice: give an absolute "
            "path, such as /srv/runs/a"
        )
    return folder


def make_server_app(*, learner: LearnerChoice | None = None, callbacks: Callbacks = ()) -> ServerApp:
    """Return the server app of a federation.

    Args:
        learner: A learner that the run config cannot name by a text; `make_client_app` needs the same one. By default
            the run config names the learner.
        callbacks: Callbacks, or functions that are called with the record of each round, as in `coterie.fit`. Trackers
            can also be named in the run config (`track`).

    Returns:
        The app, which Flower runs on the server.

    Example:
        >>> from coterie.flower.server import make_server_app
        >>> app = make_server_app()
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        run_federation(grid, Settings.read(context.run_config), learner, callbacks)

    return app


def run_federation(
    grid: Grid, settings: Settings, learner: LearnerChoice | None = None, callbacks: Callbacks = ()
) -> Result:
    """Start a run, or resume the run in the folder `out`, and write the report.

    Args:
        grid: Grid that Flower passes to a server app.
        settings: Settings of the run config.
        learner: A learner that the run config cannot name by a text.
        callbacks: Callbacks of the user, in addition to the trackers of the run config.

    Returns:
        The result of the run.
    """
    out, callbacks = settings.out, (_log_round, *settings.trackers, *callbacks)
    if out is None or not (out / "config.toml").is_file():
        check_run_options(settings.method, settings.options)
        private = settings.options.get("privacy") is not None
        clients = clients_of(grid, **settings.exchange, summaries=not private)
        for note in clients.column_notes:
            LOG.info("column %s: %s: %s", one_line(note.column), note.action, one_line(note.detail))
        LOG.info("%d clients at %d nodes", len(clients.clients), len(set(clients.registry.bound.values())))
        options = {"learner": learner, **settings.options} if learner is not None else settings.options
        result = fit(clients, settings.method, out=out, callbacks=callbacks, **options)
    elif RunFolder.open(out).finished:
        LOG.info("the run in %s is already finished", out)
        return load(out, learner=learner)
    else:
        LOG.info("resuming %s with the options of its config.toml", out)
        known = {**settings.exchange, "again": out} if (out / FILE).is_file() else settings.exchange
        result = resume(out, clients_of(grid, **known), learner=learner, callbacks=callbacks, warn=LOG.warning)
    if out is not None:
        write_report(read_runs(out), out / "report.html")
        LOG.info("run %s, report %s", out, out / "report.html")
    return result


def _log_round(record: RoundRecord) -> None:
    """Log the figures of a round in one line, and each problem with clients in another."""
    figures = {name: record[name] for name in ("loss", "accuracy", "rmse") if record.get(name) is not None}
    text = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
    answers = f"{record.answered} answered, {len(record.missing)} missing, {len(record.rejected)} refused"
    LOG.info("round %d: %s  %s  %.1f s", record.round + 1, text, answers, record.seconds)
    for note in record.notes:
        LOG.warning("%s", note["reason"])
