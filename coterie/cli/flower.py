"""`coterie flower`: an app for clients on other machines, and a federation of real processes on this one."""

from __future__ import annotations

import signal
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from coterie.cli.folders import free_folder
from coterie.cli.options import SuggestingGroup
from coterie.cli.terminal import Terminal
from coterie.errors import ConfigError, RunError

if TYPE_CHECKING:
    from coterie.federation.flower.local.processes import LocalFederation, LocalRun
    from coterie.runs.folder import Record

out = Terminal()
err = Terminal(stderr=True)

PATIENCE = 120.0
"""Seconds that the server waits for nodes which are connected already, if nobody says otherwise."""
FOREVER = float("inf")


@click.group(cls=SuggestingGroup)
def flower() -> None:
    """Clients on other machines, through Flower (pip install 'coterie[flower]').

    \b
    coterie flower init myfed
    coterie flower up myfed --nodes 4
    """


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path))
def init(folder: Path) -> None:
    """Write a small app that runs as it is: edit one function, which loads your data.

    \b
    coterie flower init myfed
    """
    from coterie.federation.flower.local.app import write_app

    for file in write_app(folder):
        out.print(f"wrote   {file}", highlight=False, soft_wrap=True)
    out.print(f"try it  coterie flower up {folder} --nodes 4", highlight=False, soft_wrap=True)


@flower.command()
@click.argument("folder", type=click.Path(path_type=Path), default=Path())
@click.option("--nodes", type=click.IntRange(min=1), default=4, show_default=True, help="SuperNodes to start.")
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
    help="Folder of the run; one that is there and unfinished is gone on with. [default: runs/...]",
)
def up(folder: Path, nodes: int, settings: tuple[str, ...], run_folder: Path | None) -> None:
    """Run an app on this machine with real processes: a SuperLink and SuperNodes, TLS, a key for every node.

    Keys, certificates, logs and Flower's own files go to RUN.flower beside the folder of the run. Everything that was
    started is ended with the run, also by Ctrl-C.

    \b
    coterie flower up myfed --nodes 4
    coterie flower up myfed --nodes 4 --set method=ifca --set rounds=10
    """
    if find_spec("flwr") is None:
        raise ConfigError("Flower is not installed: pip install 'coterie[flower]'")
    from coterie.federation.flower.local.bundle import read_project
    from coterie.federation.flower.local.processes import LocalFederation

    project = read_project(folder)
    config = {**project["tool"]["flwr"]["app"].get("config", {}), **dict(map(read_setting, settings))}
    run_folder = (run_folder or free_folder(f"{project['project']['name']}-{config.get('method', 'ifca')}")).resolve()
    if (run_folder / "result.json").is_file():
        raise RunError(f"{run_folder} is finished already: name another folder with --out")
    told = {"wait": PATIENCE, **config, "nodes": nodes, "out": str(run_folder)}
    work = run_folder.with_name(f"{run_folder.name}.flower")
    with (
        _resumable(folder, nodes, run_folder),
        LocalFederation(folder, nodes, work, say=_say) as federation,
        _Following(run_folder, federation) as following,
    ):
        run = federation.submit(told)
        _say(f"run {run.number} submitted; logs in {federation.logs}")
        following.to_the_end_of(run)
    _conclude(run_folder, federation.logs)


def read_setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as TOML has it; what is no TOML is text."""
    name, equals, value = text.partition("=")
    if not name.strip() or not equals:
        raise ConfigError(f"--set takes NAME=VALUE, such as rounds=10; got {text!r}")
    try:
        read = tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        read = value
    if name.strip() in ("nodes", "out"):
        raise ConfigError(f"--set {text}: use --{name.strip()}, which sets more than that")
    if not isinstance(read, str | int | float | bool):
        raise ConfigError(f"--set {name}: a run config of Flower's holds text, numbers, true and false; got {value}")
    return name.strip(), read


def _say(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True, markup=False)


class _Following:
    """Shows how a run goes on by reading its folder, and stops where processes have ended that it needs."""

    def __init__(self, folder: Path, federation: LocalFederation) -> None:
        self._folder, self._federation = folder, federation
        self._stack = ExitStack()
        self._show: Callable[[Record], None] | None = None
        self._shown = 0
        self._gone: set[str] = set()

    def __enter__(self) -> _Following:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def to_the_end_of(self, run: LocalRun) -> None:
        """Wait for the end; a run that did not complete is an error with the server's last words."""
        status = run.wait(FOREVER, self._look)
        self._look()
        self._stack.close()
        if not status.completed:
            _say(run.tail(15))
            why = " ".join(status.details.split()) or f"it was {status.outcome}"
            raise RunError(f"the run has not completed: {why} (see {self._federation.logs})")

    def _look(self) -> None:
        self._show_records()
        self._check_processes()

    def _show_records(self) -> None:
        from coterie.cli.progress import run_progress
        from coterie.runs.folder import RunFolder

        if not (self._folder / "config.toml").is_file():
            return
        run = RunFolder.open(self._folder)
        if self._show is None:
            rounds, method = int(run.config["rounds"]), str(run.config["method"])
            self._show = self._stack.enter_context(run_progress(err, rounds, method))
        for record in run.records()[self._shown :]:
            self._show(record)
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
def _resumable(folder: Path, nodes: int, run_folder: Path) -> Iterator[None]:
    """Ctrl-C and a request to end (SIGTERM) leave the way open to end all processes, and say how to go on."""

    def end(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    except KeyboardInterrupt:
        again = f"coterie flower up {folder} --nodes {nodes} --out {run_folder}"
        _say(f"interrupted, all processes have been ended; go on with '{again}'")
        sys.exit(130)
    finally:
        signal.signal(signal.SIGTERM, before)


def _conclude(run_folder: Path, logs: Path) -> None:
    from coterie.cli import show
    from coterie.result import load

    try:
        show.result(out, load(run_folder))
    except ConfigError as error:  # a learner of the app's own cannot be built here
        _say(f"the figures are in the report ({error})")
    for name, path in (("run", run_folder), ("report", run_folder / "report.html"), ("logs", logs)):
        out.print(f"{name:<7} {path}", highlight=False, soft_wrap=True)
