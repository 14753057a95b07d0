"""SuperLink and SuperNodes on loopback, with TLS and node authentication, as one object.

::

    with LocalFederation(Path("myfed"), nodes=3, folder=Path("work")) as federation:
        run = federation.run({"rounds": 5, "out": "/data/run"})      # to its end
        assert run.status().completed
        run = federation.submit({...})                                # or do something meanwhile
        federation.nodes[1].kill()
        federation.start_node(1)

Everything lies in the folder: certificates, keys, Flower's own files, what clients keep, and a log of each process.
"""

from __future__ import annotations

import os
import shutil
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import httpx

from coterie.errors import ConfigError, RunError
from coterie.flower.local.bundle import Setting, make_bundle
from coterie.flower.local.certificates import Certificates, NodeKey
from coterie.flower.local.child import Child, reason, tail, warnings_in
from coterie.flower.local.control import Control, Status, never_proxied
from coterie.flower.local.private import UMASK, make_private_folder, private_opener, restrict, write_private

HOST = "127.0.0.1"
READY = 60.0
"""Seconds for a process to become ready, on a machine that has other things to do."""
OFFLINE = 90.0
"""Seconds until a SuperLink takes a node that was killed for offline; before that its key is refused."""
GRACE = 3.0
"""Seconds for a process to end by itself; nothing is lost by force, since what counts is on the disk at any moment."""
LOOK = 0.2
"""Seconds between two looks at a process that is not ready yet."""
SECRET_BYTES = 32
SUPERLINK = "superlink"
POLL = 1.0
"""Seconds between two questions after a run."""


@dataclass(frozen=True)
class Identity:
    """What a node shows to the SuperLink, and whom it trusts."""

    key: Path | None
    ca: Path


@dataclass(frozen=True)
class LocalRun:
    """A run that was submitted."""

    number: int
    log: Path
    """What the server's app prints."""
    control: Control

    def status(self) -> Status:
        """How it is."""
        return self.control.status(self.number)

    def stop(self) -> None:
        """End it."""
        self.control.stop(self.number)

    def wait(self, timeout: float, watch: Callable[[], None] = lambda: None) -> Status:
        """Wait for its end; `watch` is called now and then, and may raise to stop waiting."""
        limit = time.monotonic() + timeout
        while not (status := self._status(watch)).finished:
            watch()
            if time.monotonic() > limit:
                raise RunError(f"the run has not ended within {timeout:g} s: see {self.log}, or wait longer")
            time.sleep(POLL)
        return status

    def _status(self, watch: Callable[[], None]) -> Status:
        """Return the status; `watch` may know better why the SuperLink does not answer."""
        try:
            return self.status()
        except RunError:
            time.sleep(LOOK)  # a process that was killed closes its connections before it is gone
            watch()
            raise

    def tail(self, lines: int = 5) -> str:
        """The last lines that the server's app printed."""
        return tail(self.log, lines)

    def warnings(self) -> list[str]:
        """Return the warnings that the server's app has logged so far."""
        return warnings_in(self.log)


class LocalFederation:
    """A SuperLink and its SuperNodes; a context that ends all that it has started."""

    def __init__(
        self,
        app: Path,
        nodes: int,
        folder: Path,
        *,
        start: Collection[int] | None = None,
        node_config: Mapping[str, Setting] | None = None,
        say: Callable[[str], None] = lambda text: None,
    ) -> None:
        """The federation as it will be; the folder and its certificates are made, nothing is started yet.

        app: folder of a Flower app.
        nodes: how many keys are made and registered; nodes are numbered from 0.
        folder: for all files; a folder used before keeps its keys, node ids and clients' states.
        start: numbers of the nodes that begin at once [all].
        node_config: for every node, beside `partition-id`, `num-partitions` and `state-folder`.
        say: told what is started.
        """
        if nodes < 1:
            raise ConfigError(f"a federation has at least one node, got {nodes}")
        self.app, self.count, self.folder = app, nodes, folder.resolve()
        self.logs = self.folder / "logs"
        self.nodes: dict[int, Child] = {}
        self.node_ids: dict[int, int] = {}
        self.runs: list[LocalRun] = []
        self._start = range(nodes) if start is None else start
        self._config = dict(node_config or {})
        self._say = say
        self._port, *ports = free_ports(1 + nodes)
        self._node_ports = dict(enumerate(ports))
        self._others: list[Child] = []
        self._log_keepers: list[threading.Thread] = []
        for part in (self.folder, self.logs):
            make_private_folder(part)
        self.certificates = Certificates.at(self.folder / "certificates")
        self.control = Control(self.address, self.certificates.ca)

    @property
    def address(self) -> str:
        """Of the SuperLink."""
        return f"{HOST}:{self._port}"

    # ---- begin and end --------------------------------------------------------------------------------------

    def __enter__(self) -> LocalFederation:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start SuperLink, SuperExec and the nodes, and wait until they are connected."""
        self.start_superlink()
        self.start_superexec()
        for number in range(self.count):
            self.node_ids[number] = self.control.register(self.key(number).public)
        for number in self._start:
            self.start_node(number, wait=0)
        for number in self._start:
            self.wait_for_node(number)

    def stop(self) -> None:
        """End the runs and every process, the SuperLink last: nodes sign off from it."""
        first = [*self.nodes.values(), *(child for child in self._others if child.name != SUPERLINK)]
        try:
            for run in self.runs:
                with suppress(RunError, httpx.HTTPError):
                    if not run.status().finished:
                        run.stop()
            for child in first:
                child.ask_to_end()
            for child in first:
                child.end(GRACE)
            self.control.close()  # a SuperLink waits for connections that are open
            for child in self._others:
                child.end(GRACE)
        finally:
            for child in [*self.nodes.values(), *self._others]:
                child.kill()
            for keeper in self._log_keepers:
                keeper.join(GRACE)
            self.control.close()

    # ---- processes ------------------------------------------------------------------------------------------

    def start_superlink(self) -> Child:
        """Start the SuperLink, or start it again with the same address and database, and wait for its answer."""
        files, database = self.certificates, self.folder / "superlink.db"
        restrict(database)  # one that an earlier version has made
        command: list[str | Path] = [
            *("flower-superlink", "--host", HOST, "--port", str(self._port)),
            *("--ssl-ca-certfile", files.ca, "--ssl-certfile", files.certificate, "--ssl-keyfile", files.key),
            *("--enable-supernode-auth", "--isolation", "process", "--database", database),
            *("--superexec-auth-secret-file", self._secret()),
            "--disable-runtime-dependency-installation",
        ]
        self.superlink = self._child(SUPERLINK, command)
        self._wait("the SuperLink", self.superlink, self.control.answers)
        self._say(f"SuperLink at {self.address}, with TLS and node authentication")
        return self.superlink

    def start_superexec(self) -> Child:
        """Start what starts the server's app, once for every run."""
        command: list[str | Path] = [
            *("flower-superexec", "--runtime-api-address", self.address, "--root-certificates", self.certificates.ca),
            *("--superexec-auth-secret-file", self._secret()),
        ]
        self.superexec = self._child("superexec", command, umask=-1)  # the run folder has the user's own mode
        return self.superexec

    def _secret(self) -> Path:
        """Return the file with the secret by which the SuperLink knows its SuperExec, made when it is first needed."""
        path = self.folder / "keys" / "superexec.secret"
        if not path.is_file():
            write_private(path, os.urandom(SECRET_BYTES))
        return path

    def key(self, number: int) -> NodeKey:
        """A node's own key."""
        return NodeKey.at(self.folder / "keys" / f"node-{number}")

    def identity(self, number: int) -> Identity:
        """What a node shows if it is not told otherwise."""
        return Identity(self.key(number).private, self.certificates.ca)

    def states(self, number: int) -> Path:
        """The folder in which clients of a node keep what they keep for themselves."""
        return self.folder / "states" / f"node-{number}"

    def start_node(self, number: int, identity: Identity | None = None, *, wait: float = READY) -> Child:
        """Start a node, or start it again, and wait until it is connected; with `wait` 0 do not.

        A node that was killed is refused until the SuperLink has found out, so that is waited for first.
        """
        identity = identity or self.identity(number)
        if number in self.nodes:
            self.nodes[number].kill()
        self._wait_until_offline(number)
        command: list[str | Path] = [
            *("flower-supernode", "--superlink", self.address, "--root-certificates", identity.ca),
            *("--host", HOST, "--port", str(self._node_port(number)), "--node-config", self._node_config(number)),
            *(("--auth-supernode-private-key", identity.key) if identity.key else ()),
        ]
        self.nodes[number] = self._child(f"node-{number}", command)
        if wait:
            self.wait_for_node(number, wait)
        return self.nodes[number]

    def wait_for_node(self, number: int, timeout: float = READY) -> None:
        """Wait until a node is connected; one that ends instead is an error with its last words."""
        self._wait(f"node {number}", self.nodes[number], lambda: number in self.online(), timeout)
        self._say(f"node {number} is connected (id {self.node_ids[number]})")

    def online(self) -> set[int]:
        """The numbers of the nodes that the SuperLink takes for connected; of a killed one for up to a minute."""
        states = self.control.nodes()
        return {number for number, node in self.node_ids.items() if states.get(node) == "online"}

    def server_apps(self) -> list[int]:
        """The processes in which the server's app runs, one for each run (Linux)."""
        return [pid for pid, command in self.superexec.members().items() if "flwr-serverapp" in command]

    def ended(self) -> list[Child]:
        """Processes that should run and do not."""
        current = [self.superlink, self.superexec, *self.nodes.values()]
        return [child for child in current if child.exit_code() is not None]

    def _wait_until_offline(self, number: int) -> None:
        limit = time.monotonic() + OFFLINE
        while number in self.online() and time.monotonic() < limit:
            time.sleep(LOOK)

    def _node_port(self, number: int) -> int:
        """Of its own, also for a node that nobody counted on; no port of a node that is not started yet."""
        while number not in self._node_ports:
            port = free_ports(1)[0]
            if port not in self._node_ports.values():
                self._node_ports[number] = port
        return self._node_ports[number]

    def _node_config(self, number: int) -> str:
        own: dict[str, Setting] = {"partition-id": number, "num-partitions": self.count}
        own["state-folder"] = str(self.states(number))
        return " ".join(f"{name}={_toml(value)}" for name, value in {**own, **self._config}.items())

    def _child(self, name: str, command: Sequence[str | Path], umask: int = UMASK) -> Child:
        program = [_program(str(command[0])), *command[1:]]
        child = Child(name, program, self.logs / f"{name}.log", self._environment(), umask)
        if not name.startswith("node-"):
            self._others.append(child)
        return child

    def _environment(self) -> dict[str, str]:
        """Of every process: nothing of the user's Flower is touched, nothing leaves this machine.

        Flower finds its own programs by PATH. Several processes share the cores, so each uses one thread.
        """
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        return never_proxied(os.environ) | {
            "PATH": path,
            "FLWR_HOME": str(self.folder / "flower"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def _wait(self, what: str, child: Child, ready: Callable[[], bool], timeout: float = READY) -> None:
        limit = time.monotonic() + timeout
        while not ready():
            if (code := child.exit_code()) is not None:
                raise RunError(f"{what} has ended before it was ready: {reason(child.log)} (code {code}, {child.log})")
            if time.monotonic() > limit:
                raise RunError(f"{what} was not ready after {timeout:g} s: see {child.log}")
            time.sleep(LOOK)

    # ---- runs -----------------------------------------------------------------------------------------------

    def submit(self, config: Mapping[str, Setting] | None = None) -> LocalRun:
        """Start a run of the app with these settings; what its server prints goes to a file."""
        number = self.control.start(make_bundle(self.app, dict(config or {})))
        run = LocalRun(number, self._new_log(), self.control)
        keeper = threading.Thread(target=self._keep_log, args=(run,), daemon=True)
        keeper.start()
        self._log_keepers.append(keeper)
        self.runs.append(run)
        return run

    def _new_log(self) -> Path:
        """Return a file for what the server's app prints; those of earlier runs in the same folder stay."""
        number = len(self.runs)
        while (path := self.logs / f"run-{number}.log").exists():
            number += 1
        return path

    def run(self, config: Mapping[str, Setting] | None = None, timeout: float = 600.0) -> LocalRun:
        """Submit a run and wait for its end, which may be a failure: ask its status."""
        run = self.submit(config)
        run.wait(timeout)
        return run

    def _keep_log(self, run: LocalRun) -> None:
        """Flower sends what the server's app prints to the SuperLink and nowhere else."""
        control = Control(self.address, self.certificates.ca)
        with (
            suppress(httpx.HTTPError),
            open(run.log, "a", opener=private_opener) as file,
        ):  # the SuperLink may end first
            for text in control.log(run.number):
                file.write(text)
                file.flush()
        control.close()


def free_ports(count: int) -> list[int]:
    """Different ports of this machine that nobody uses; Flower's programs take no port 0."""
    with_ports = [socket.socket() for _ in range(count)]
    try:
        for one in with_ports:
            one.bind((HOST, 0))
        return [int(one.getsockname()[1]) for one in with_ports]
    finally:
        for one in with_ports:
            one.close()


def _program(name: str) -> str:
    """A program of Flower's, of the same installation as this Python."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} was not found: install Flower with pip install 'coterie[flower]'")
    return found


def _toml(value: Setting) -> str:
    """As Flower reads it in a config on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
