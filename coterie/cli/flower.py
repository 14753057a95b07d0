"""`coterie flower`: create an app for remote clients, and run a federation of real processes on this machine."""

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

NODE_WAIT = 120.0
"""Default of `wait` in seconds: the nodes are already connected when the server app starts."""
FOREVER = float("inf")
RAISED = "ServerApp failed with exception: "
"""Flower's text before the error of a server app."""
LARGEST = 2**63 - 1
"""Largest whole number in a Flower config."""
MOST_NODES = 100
"""Largest number of nodes; every node needs two processes, and one more for each message."""
SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Requests to end; Windows has no SIGHUP."""


@click.group(cls=SuggestingGroup)
def flower() -> None:
    """Run federations of remote clients with Flower (needs coterie[flower]).

    \b
    coterie flower init myfed
    coterie flower up myfed --nodes 4
    """


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--table", type=click.Path(path_type=Path), help="Table whose clients are divided among the nodes.")
@click.option("--client", metavar="COLUMN", help="With --table: column that names the client of each row.")
@click.option("--target", metavar="COLUMN", help="With --table: column to predict.")
@click.option("--features", metavar="COLUMNS", help="With --table: columns to predict from, separated by commas.")
@click.option("--drop", metavar="COLUMNS", help="With --table: columns to leave out, separated by commas.")
@click.option(
    "--task",
    type=click.Choice(["classification", "regression"]),
    help="With --table: kind of prediction. [default: inferred from the target]",
)
def init(folder: Path, table: Path | None, client: str | None, target: str | None, **options: str | None) -> None:
    """Write a small app that runs without changes.

    Edit one function of the app to load your own data.

    With --table the app divides the clients of a table among the nodes, which agree on one encoding of the columns
    before they train.

    \b
    coterie flower init myfed
    coterie flower init myfed --table visits.csv --client ward --target outcome
    """
    from coterie.flower.local.app import content_for_table, write_app

    content = None
    if table is not None and client is not None and target is not None:
        content = content_for_table(table, client, target, **options)
    elif table is not None or any((client, target, *options.values())):
        raise ConfigError("an app for a table needs --table FILE, --client COLUMN and --target COLUMN: give all three")
    for file in write_app(folder, content):
        out.print(f"wrote   {file}", highlight=False, soft_wrap=True)
    out.print(f"try it  coterie flower up {folder} --nodes 4", highlight=False, soft_wrap=True)


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option(
    "--nodes", type=click.IntRange(1, MOST_NODES), default=4, show_default=True, help="Number of SuperNodes to start."
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="NAME=VALUE",
    help="Setting of the run, which overrides pyproject.toml; may be given several times.",
)
@click.option(
    "--out",
    "run_folder",
    type=click.Path(path_type=Path),
    help="Folder of the run; an existing unfinished run is resumed. [default: runs/...]",
)
def up(folder: Path, nodes: int, settings: tuple[str, ...], run_folder: Path | None) -> None:
    """Run an app on this machine with a SuperLink and SuperNodes.

    The processes use TLS and a key for every node. Keys, certificates, logs and Flower's files are stored in RUN.flower
    next to the folder of the run. All settings are checked before any process starts. All processes end with the run,
    also after Ctrl-C (exit code 130) or SIGTERM (143); the same command with --out resumes the run.

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
    run_config = {"wait": NODE_WAIT, **config, "nodes": nodes, "out": str(run_folder)}
    _check_run(folder, run_folder, run_config, changed)
    make_bundle(folder, run_config)
    work = run_folder.with_name(f"{run_folder.name}.flower")
    with (
        _interruptible(folder, nodes, run_folder),
        LocalFederation(folder, nodes, work, report=_say) as federation,
        _RunMonitor(run_folder, federation) as monitor,
    ):
        run = federation.submit(run_config)
        _say(f"run {run.number} submitted; logs in {federation.logs}")
        monitor.wait_for(run)
    _conclude(run_folder, federation.logs)


def read_setting(text: str) -> tuple[str, Setting]:
    """Return name and value of NAME=VALUE; a value that is not valid TOML is a text.

    Raises:
        ConfigError: if the text has another form, or the value is not allowed.
    """
    if not text.isprintable():
        raise ConfigError(f"--set takes one line of printable characters; got {text!r}")
    name, equals, value = text.partition("=")
    name = name.strip()
    if not name or not equals:
        raise ConfigError(f"--set takes NAME=VALUE, such as rounds=10; got {text!r}")
    if name in ("nodes", "out"):
        raise ConfigError(f"--set {text}: {name} is an option of this command, use --{name} instead")
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        read = value
    if not isinstance(read, str | int | float):
        raise ConfigError(f"--set {name}: the value must be text, a number, true or false; got {value}")
    return name, read


def _check_run(app: Path, run_folder: Path, run_config: Mapping[str, Setting], changed: Mapping[str, Setting]) -> None:
    """Raise the errors that would end the run, before any process is started."""
    from coterie.flower.clients import admission_of
    from coterie.flower.preflight import check_run_options
    from coterie.flower.server import Settings

    for name, value in run_config.items():
        if not f"{name}{value}".isprintable():
            raise ConfigError(f"setting {name!r} must be one line of printable characters, got {value!r}")
        if isinstance(value, int) and not -LARGEST <= value <= LARGEST:
            raise ConfigError(f"setting {name} must fit into 64 bits, because Flower cannot send larger numbers")
    settings = Settings.read(run_config, [app])
    admission_of(settings.exchange["allowed"], settings.exchange["schema"])
    if (run_folder / "result.json").is_file():
        raise RunError(f"the run in {run_folder} is already finished: name another folder with --out")
    if (run_folder / "config.toml").is_file():
        _check_resumable(run_folder, changed)
        return
    _check_new(run_folder)
    check_run_options(settings.method, settings.options)


def _check_new(folder: Path) -> None:
    """Raise an error if the folder has other files or cannot be written."""
    from coterie.training.runs.folder import RunFolder

    if folder.exists() and not RunFolder.can_be_created(folder):
        raise RunError(f"{folder} already exists and is not a run folder: name another folder with --out")
    there = next(parent for parent in (folder, *folder.parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise StorageError(
            f"{folder} cannot be created, because you cannot write to {there}: name another folder with --out"
        )


def _check_resumable(folder: Path, changed: Mapping[str, Setting]) -> None:
    """Raise an error if the run is in use, damaged, or was started with other options."""
    from coterie.flower.clients import FILE
    from coterie.training.runs.folder import RunFolder
    from coterie.training.runs.locking import alone_in

    run = RunFolder.open(folder)
    config = run.config
    for name, value in changed.items():
        if _differs(config.get(name.replace("-", "_")), value, name):
            raise ConfigError(
                f"--set {name}={value}: the run in {folder} was started with {name}={config[name.replace('-', '_')]}, "
                "and a resumed run keeps its options: leave out the setting, or name a new folder with --out"
            )
    with alone_in(folder):
        if not (folder / FILE).is_file() and run.records():
            raise RunError(f"the run in {folder} is not a run with remote clients: use 'coterie resume {folder}'")


def _differs(before: object, now: Setting, name: str) -> bool:
    """Return whether a setting has certainly changed; most texts are stored in another form, with all defaults."""
    if name == "method":
        return before != now
    return isinstance(before, int | float) and isinstance(now, int | float) and before != now


def _say(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True, markup=False)


class _RunMonitor:
    """Context manager that shows the progress of a run from its folder, and fails if a needed process ends."""

    def __init__(self, folder: Path, federation: LocalFederation) -> None:
        self._folder, self._federation = folder, federation
        self._stack = ExitStack()
        self._bar: RunBar | None = None
        self._records_shown = 0
        self._ended: set[str] = set()
        self._warnings_shown = 0

    def __enter__(self) -> _RunMonitor:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def wait_for(self, run: LocalRun) -> None:
        """Wait for the end of a run.

        Raises:
            RunError: if the run fails; the message has the server's reason.
        """

        def update() -> None:
            self._show_warnings(run)
            self._show_records()
            self._check_processes()

        status = run.wait(FOREVER, update)
        update()
        self._stack.close()
        if not status.completed:
            why = " ".join(status.details.split()).removeprefix(RAISED) or f"it was {status.outcome}"
            raise RunError(f"the run failed: {self._numbered(why)} (see the logs in {self._federation.logs})")

    def _show_warnings(self, run: LocalRun) -> None:
        """Show new warnings of the server app, such as the reason why a node cannot answer."""
        warnings = run.warnings()
        for text in warnings[self._warnings_shown :]:
            _say(self._numbered(text))
        self._warnings_shown = len(warnings)

    def _numbered(self, text: str) -> str:
        """Replace node ids by the numbers of the nodes, which are also the names of their logs."""
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
        for record in run.records()[self._records_shown :]:
            self._bar.show(record)
            self._records_shown += 1

    def _check_processes(self) -> None:
        nodes = {child.name for child in self._federation.nodes.values()}
        for child in self._federation.ended():
            if child.name not in nodes:
                raise RunError(f"{child.name} has ended with exit code {child.exit_code()}: see {child.log}")
            if child.name not in self._ended:
                self._ended.add(child.name)
                _say(f"{child.name} has ended with exit code {child.exit_code()}: see {child.log}")
        if self._ended == nodes:
            raise RunError(f"all nodes have ended: see {self._federation.logs}")


@contextmanager
def _interruptible(folder: Path, nodes: int, run_folder: Path) -> Iterator[None]:
    """After Ctrl-C, SIGTERM or a closed terminal end all processes, print how to resume, and exit with 128 + signal.

    Further signals are ignored while processes are being ended, which takes seconds, so that none is left running.
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
    except ConfigError as error:  # a learner that only the app defines cannot be built here
        _say(f"the figures are in the report ({error})")
    for name, path in (("run", run_folder), ("report", run_folder / "report.html"), ("logs", logs)):
        out.print(f"{name:<7} {path}", highlight=False, soft_wrap=True)
