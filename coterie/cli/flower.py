"""`coterie flower`: an app for clients on other machines, and a federation of real processes on this one."""

from __future__ import annotations

import os
import signal
import sys
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import click

from coterie.cli.folders import free_folder
from coterie.cli.options import SuggestingGroup
from coterie.cli.terminal import Terminal
from coterie.errors import ConfigError, RunError, StorageError

if TYPE_CHECKING:
    from coterie.cli.progress import RunBar
    from coterie.flower.local.bundle import Setting
    from coterie.flower.local.processes import LocalFederation, LocalRun

out = Terminal()
err = Terminal(stderr=True)

PATIENCE = 120.0
"""Seconds that the server waits for nodes which are connected already, if nobody says otherwise."""
FOREVER = float("inf")
RAISED = "ServerApp failed with exception: "
"""Flower's words before the error of a server app."""
LARGEST = 2**63 - 1
MOST_NODES = 100
"""Every node is two processes and one more for each message."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Requests to end; Windows has no SIGHUP."""


@click.group(cls=SuggestingGroup)
def flower() -> None:
    """Clients on other machines, through Flower (pip install 'coterie[flower]').

    \b
    coterie flower init myfed
    coterie flower up myfed --nodes 4
    """


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--table", type=click.Path(path_type=Path), help="Table whose clients are dealt out to the nodes.")
@click.option("--client", metavar="COLUMN", help="With --table: column that names the client of each row.")
@click.option("--target", metavar="COLUMN", help="With --table: column to predict.")
@click.option("--features", metavar="COLUMNS", help="With --table: columns to predict from, separated by commas.")
@click.option("--drop", metavar="COLUMNS", help="With --table: columns to leave out, separated by commas.")
@click.option(
    "--task",
    type=click.Choice(["classification", "regression"]),
    help="With --table: kind of the prediction. [default: inferred from the target]",
)
def init(folder: Path, table: Path | None, client: str | None, target: str | None, **options: str | None) -> None:
    """Write a small app that runs as it is: edit one function, which loads your data.

    With --table the app is a trial of a federation whose nodes hold the rows of some clients each: they agree on one
    encoding of the columns before they train.

    \b
    coterie flower init myfed
    coterie flower init myfed --table visits.csv --client ward --target outcome
    """
    from coterie.flower.local.app import content_for_table, write_app

    subject = None
    if table is not None and client is not None and target is not None:
        subject = content_for_table(table, client, target, **options)
    elif table is not None or any((client, target, *options.values())):
        raise ConfigError(
            "an app about a table needs --table FILE, --client COLUMN and --target COLUMN: give all three"
        )
    for file in write_app(folder, subject):
        out.print(f"wrote   {file}", highlight=False, soft_wrap=True)
    out.print(f"try it  coterie flower up {folder} --nodes 4", highlight=False, soft_wrap=True)


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--nodes", type=click.IntRange(1, MOST_NODES), default=4, show_default=True, help="SuperNodes to start.")
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="A setting of the run in place of that in pyproject.toml; may be given several times.",
)
@click.option(
    "--out",
    "run_folder",
    type=click.Path(path_type=Path),
    help="Folder of the run; an existing unfinished run is resumed. [default: runs/...]",
)
def up(folder: Path, nodes: int, settings: tuple[str, ...], run_folder: Path | None) -> None:
    """Run an app on this machine with real processes: a SuperLink and SuperNodes, TLS, a key for every node.

    Keys, certificates, logs and Flower's own files go to RUN.flower beside the folder of the run. All settings are
    checked before anything is started. Everything that was started is ended with the run, also after Ctrl-C (exit code
    130) or SIGTERM (143); the same command with --out resumes the run.

    \b
    coterie flower up myfed --nodes 4
    coterie flower up myfed --nodes 4 --set method=ifca --set rounds=10
    """
    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed: pip install 'coterie[flower]'")
    from coterie.flower.local.bundle import make_bundle, read_project
    from coterie.flower.local.processes import LocalFederation

    project, changed = read_project(folder), dict(map(read_setting, settings))
    config = {**project["tool"]["flwr"]["app"].get("config", {}), **changed}
    run_folder = (run_folder or free_folder(f"{project['project']['name']}-{config.get('method', 'ifca')}")).resolve()
    told = {"wait": PATIENCE, **config, "nodes": nodes, "out": str(run_folder)}
    _check_run(folder, run_folder, told, changed)
    make_bundle(folder, told)
    work = run_folder.with_name(f"{run_folder.name}.flower")
    with (
        _interruptible(folder, nodes, run_folder),
        LocalFederation(folder, nodes, work, report=_say) as federation,
        _Following(run_folder, federation) as following,
    ):
        run = federation.submit(told)
        _say(f"run {run.number} submitted; logs in {federation.logs}")
        following.to_the_end_of(run)
    _conclude(run_folder, federation.logs)


def read_setting(text: str) -> tuple[str, Setting]:
    """Return name and value of NAME=VALUE; the value is TOML, and anything that is no TOML is text."""
    if not text.isprintable():
        raise ConfigError(f"--set takes one line of printable characters; got {text!r}")
    name, equals, value = text.partition("=")
    name = name.strip()
    if not name or not equals:
        raise ConfigError(f"--set takes NAME=VALUE, such as rounds=10; got {text!r}")
    if name in ("nodes", "out"):
        raise ConfigError(f"--set {text}: use --{name}, which sets more than that")
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        read = value
    if not isinstance(read, str | int | float):
        raise ConfigError(f"--set {name}: the value must be text, a number, true or false; got {value}")
    return name, read


def _check_run(app: Path, run_folder: Path, told: Mapping[str, Setting], changed: Mapping[str, Setting]) -> None:
    """Refuse everything that would end the run anyway, before any process is started."""
    from coterie.flower.clients import admission_of
    from coterie.flower.preflight import check_run_options
    from coterie.flower.server import Settings

    for name, value in told.items():
        if not f"{name}{value}".isprintable():
            raise ConfigError(f"setting {name!r} must be one line of printable characters, got {value!r}")
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise ConfigError(f"setting {name} must be a number of at most 64 bits, which is what Flower can carry")
    settings = Settings.read(told, [app])
    admission_of(settings.exchange["allowed"], settings.exchange["schema"])
    if (run_folder / "result.json").is_file():
        raise RunError(f"{run_folder} is finished already: name another folder with --out")
    if (run_folder / "config.toml").is_file():
        _check_resumable(run_folder, changed)
        return
    _check_new(run_folder)
    check_run_options(settings.method, settings.options)


def _check_new(folder: Path) -> None:
    """Refuse a folder that holds something else, or that cannot be written."""
    from coterie.training.runs.folder import RunFolder

    if folder.exists() and not RunFolder.can_be_created(folder):
        raise RunError(f"{folder} exists already and is no run folder: name another folder with --out")
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(f"{folder} cannot be written: {there} is no folder that you may write to; use --out")


def _check_resumable(folder: Path, changed: Mapping[str, Setting]) -> None:
    """Refuse a run that is in use, damaged, or was started with other options."""
    from coterie.flower.clients import FILE
    from coterie.training.runs.folder import RunFolder
    from coterie.training.runs.locking import alone_in

    run = RunFolder.open(folder)
    config = run.config
    for name, value in changed.items():
        if _differs(config.get(name.replace("-", "_")), value, name):
            raise ConfigError(
                f"--set {name}={value}: the run in {folder} was started with {name}={config[name.replace('-', '_')]}, "
                "and a resumed run keeps its options: leave the setting out, or name a new folder with --out"
            )
    with alone_in(folder):
        if not (folder / FILE).is_file() and run.records():
            raise RunError(f"{folder} is a run with data of its own: go on with 'coterie resume {folder}'")


def _differs(before: object, now: Setting, name: str) -> bool:
    """Return whether a setting is certainly another one; most texts are stored with their defaults written out."""
    if name == "method":
        return before != now
    return isinstance(before, int | float) and isinstance(now, int | float) and before != now


def _say(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True, markup=False)


class _Following:
    """Shows how a run goes on by reading its folder, and stops where processes have ended that it needs."""

    def __init__(self, folder: Path, federation: LocalFederation) -> None:
        self._folder, self._federation = folder, federation
        self._stack = ExitStack()
        self._bar: RunBar | None = None
        self._shown = 0
        self._gone: set[str] = set()
        self._warned = 0

    def __enter__(self) -> _Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def to_the_end_of(self, run: LocalRun) -> None:
        """Wait for the end; a run that did not complete is an error with the server's reason."""

        def look() -> None:
            self._show_warnings(run)
            self._show_records()
            self._check_processes()

        status = run.wait(FOREVER, look)
        look()
        self._stack.close()
        if not status.completed:
            why = " ".join(status.details.split()).removeprefix(RAISED) or f"it was {status.outcome}"
            raise RunError(f"the run has not completed: {self._numbered(why)} (see {self._federation.logs})")

    def _show_warnings(self, run: LocalRun) -> None:
        """Show what the server's app has warned of since the last look, such as the reason why a node cannot answer."""
        warnings = run.warnings()
        for text in warnings[self._warned :]:
            _say(self._numbered(text))
        self._warned = len(warnings)

    def _numbered(self, text: str) -> str:
        """Name nodes by their numbers, as their logs are."""
        for number, node in self._federation.node_ids.items():
            text = text.replace(f"node {node}", f"node {number}")
        return text

    def _show_records(self) -> None:
        from coterie.cli.progress import run_progress
        from coterie.training.runs.folder import RunFolder

        if not (self._folder / "config.toml").is_file():
            return
        run = RunFolder.open(self._folder)
        if self._bar is None:
            rounds, method = run.planned_rounds, str(run.config["method"])
            self._bar = self._stack.enter_context(run_progress(err, rounds, method))
        for record in run.records()[self._shown :]:
            self._bar.show(record)
            self._shown += 1

    def _check_processes(self) -> None:
        nodes = {child.name for child in self._federation.nodes.values()}
        for child in self._federation.ended():
            if child.name not in nodes:
                raise RunError(f"{child.name} has ended with code {child.exit_code()}: see {child.log}")
            if child.name not in self._gone:
                self._gone.add(child.name)
                _say(f"{child.name} has ended with code {child.exit_code()}: see {child.log}")
        if self._gone == nodes:
            raise RunError(f"all nodes have ended: see {self._federation.logs}")


@contextmanager
def _interruptible(folder: Path, nodes: int, run_folder: Path) -> Iterator[None]:
    """End everything after Ctrl-C, SIGTERM or a closed terminal, say how to resume, and exit with 128 + signal.

    Later signals are ignored while processes are being ended: that takes seconds, and none may be left behind.
    """
    received: list[int] = []

    def end(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt

    before = {number: signal.signal(number, end) for number in SIGNALS}
    try:
        yield
    except KeyboardInterrupt:
        before = dict.fromkeys(SIGNALS, signal.SIG_IGN)  # this process is about to end
        again = f"coterie flower up {folder} --nodes {nodes} --out {run_folder}"
        _say(f"interrupted, all processes have been ended; resume with '{again}'")
        sys.exit(128 + (received or [signal.SIGINT])[0])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _conclude(run_folder: Path, logs: Path) -> None:
    from coterie.cli import show
    from coterie.training.result import load

    try:
        show.result(out, load(run_folder))
    except ConfigError as error:  # a learner of the app's own cannot be built here
        _say(f"the figures are in the report ({error})")
    for name, path in (("run", run_folder), ("report", run_folder / "report.html"), ("logs", logs)):
        out.print(f"{name:<7} {path}", highlight=False, soft_wrap=True)
