"""The server's half: an app that reads everything from Flower's run config, and leaves an ordinary run folder.

::

    from coterie.flower.server import make_server_app

    app = make_server_app()

    [tool.flwr.app.config]        # pyproject.toml of the app; `flwr run . --run-config "rounds=5"` overrules it
    method = "ifca"
    clusters = 4
    nodes = 3
    out = "/srv/runs/first"
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from coterie.errors import ConfigError
from coterie.flower.client_registry import LOG
from coterie.flower.clients import FILE, clients_of
from coterie.flower.engine import CHANGE_FACTOR
from coterie.flower.preflight import check_run_options
from coterie.flower.wire import MOST_CLIENTS, MOST_SAMPLES
from coterie.learners import LearnerChoice
from coterie.options import Option, check_all
from coterie.report.page import write_report
from coterie.report.reading import read_runs
from coterie.training.fitting import fit, resume
from coterie.training.result import Result, load
from coterie.training.runs.folder import Record, RunFolder

OPTIONS = (
    Option("method", str, "a name from `coterie methods`", "ifca"),
    Option("out", str, "folder of the run, from the root; one that is there and unfinished is gone on with"),
    Option("nodes", int, "nodes to wait for before the first round", 1, low=1),
    Option("wait", float, "seconds to wait for them", 600.0, above=0),
    Option(
        "deadline", float, "seconds that an exchange may take; who has not answered by then is missing", 600.0, above=0
    ),
    Option("quorum", float, "share of the asked clients below which a round is no update", 0.0, low=0, high=1),
    Option("most_change", float, "answers whose change of a model is longer are refused", above=0),
    Option(
        "change_factor",
        float,
        "answers whose change of a model is more than so many times as long as the median over the nodes are refused; "
        "0: any length",
        CHANGE_FACTOR,
        low=0,
    ),
    Option("allowed", str, "TOML file with the clients that each node may bring, from the root"),
    Option("schema", str, "expected form of the data, a JSON file or a JSON text; nodes that differ are refused"),
    Option("most_clients", int, "largest number of clients of one node", MOST_CLIENTS, low=1),
    Option("most_samples", int, "largest number of samples of one client", MOST_SAMPLES, low=1),
    Option("expected", str, "ids of clients that may come later, separated by commas", ""),
)
"""What the run config says besides the options of the method."""


@dataclass(frozen=True)
class Settings:
    """A run config, read."""

    method: str
    out: Path | None
    exchange: Mapping[str, Any]
    """What `clients_of` is told."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Of the run."""

    @classmethod
    def read(cls, config: Mapping[str, Any]) -> Settings:
        """Names with a hyphen are as good as those with an underscore; an empty text says nothing."""
        given = {name.replace("-", "_"): value for name, value in config.items() if value != ""}
        own = {option.name for option in OPTIONS}
        said = {option.name: option.default for option in OPTIONS}
        said |= check_all({name: value for name, value in given.items() if name in own}, OPTIONS, "the run config")
        method, out, expected = (said.pop(name) for name in ("method", "out", "expected"))
        announced = tuple(name.strip() for name in str(expected).split(",") if name.strip())
        options = {name: value for name, value in given.items() if name not in own}
        said["change_factor"] = said["change_factor"] or None
        return cls(str(method), _folder(out), {**said, "expected": announced}, options)


def _folder(out: object) -> Path | None:
    if out is None:
        return None
    folder = Path(str(out)).expanduser()
    if not folder.is_absolute():
        raise ConfigError(
            f"out={out!r}: the app runs wherever Flower starts it, so name the folder from the root: /srv/runs/a"
        )
    return folder


def make_server_app(*, learner: LearnerChoice | None = None) -> ServerApp:
    """The app of the server.

    learner: only for learners that a text in the run config cannot name, see `make_client_app`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        conduct(grid, Settings.read(context.run_config), learner)

    return app


def conduct(grid: Grid, settings: Settings, learner: LearnerChoice | None = None) -> Result:
    """Run, or go on with the run in `out`, and write the report."""
    out = settings.out
    if out is None or not (out / "config.toml").is_file():
        check_run_options(settings.method, settings.options)
        clients = clients_of(grid, **settings.exchange)
        LOG.info("%d clients at %d nodes", len(clients.clients), len(set(clients.registry.bound.values())))
        options = {"learner": learner, **settings.options} if learner is not None else settings.options
        result = fit(clients, settings.method, out=out, on_round=_told(), **options)
    elif RunFolder.open(out).finished:
        LOG.info("%s is finished already", out)
        return load(out, learner=learner)
    else:
        LOG.info("going on with %s, with the options of its config.toml", out)
        known = {**settings.exchange, "again": out} if (out / FILE).is_file() else settings.exchange
        result = resume(out, clients_of(grid, **known), learner=learner, on_round=_told(), warn=LOG.warning)
    if out is not None:
        write_report(read_runs(out), out / "report.html")
        LOG.info("run %s, report %s", out, out / "report.html")
    return result


def _told() -> Callable[[Record], None]:
    """Say what a round brought in one line, and what went wrong in one each."""

    def on_round(record: Record) -> None:
        figures = {name: record[name] for name in ("loss", "accuracy", "rmse") if record.get(name) is not None}
        said = "  ".join(f"{name} {value:.4g}" for name, value in figures.items())
        heard = f"{record['answered']} answered, {len(record['missing'])} missing, {len(record['rejected'])} refused"
        LOG.info("round %d: %s  %s  %.1f s", record["round"] + 1, said, heard, record["seconds"])
        for note in record.get("notes", ()):
            LOG.warning("%s", note["reason"])

    return on_round
