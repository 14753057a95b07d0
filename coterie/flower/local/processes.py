"""SuperLink and SuperNodes on loopback, with TLS and node authentication, as one object.

::

    with LocalFederation(Path("myfed"), nodes=3, folder=Path("work")) as federation:
        run = federation.run({"rounds": 5, "out": "/data/run"})      # waits for the end of the run
        assert run.status().completed
        run = federation.submit({...})                                # returns at once
        federation.nodes[1].kill()
        federation.start_node(1)

All files are in the folder: certificates, keys, Flower's files, states of clients, and a log of each process.
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
"""Longest time for a process to become ready, in seconds; a busy machine needs long."""
OFFLINE = 90.0
"""Longest time until a SuperLink notices that a node was killed, in seconds; before that it refuses the node's key."""
GRACE = 3.0
"""Time for a process to end by itself, in seconds. A kill loses nothing, since all results are on the disk."""
READY_POLL = 0.2
"""Seconds between two checks of a process that is not ready yet."""
SECRET_BYTES = 32
SUPERLINK = "superlink"
POLL = 1.0
"""Seconds between two checks of the status of a run."""


@dataclass(frozen=True)
class Identity:
    """Credentials of a node."""

    key: Path | None
    """Private key that the node authenticates with; None: no authentication."""
    ca: Path
    """Certificate of the authority that the node trusts."""


@dataclass(frozen=True)
class LocalRun:
    """Submitted run."""

    number: int
    log: Path
    """File with the output of the server app."""
    control: Control

    def status(self) -> Status:
        """Return the status of the run."""
        return self.control.status(self.number)

    def stop(self) -> None:
        """Stop the run."""
        self.control.stop(self.number)

    def wait(self, timeout: float, watch: Callable[[], None] = lambda: None) -> Status:
        """Wait for the end of the run.

        Args:
            timeout: Longest time to wait, in seconds.
            watch: Function that is called about once a second, and may raise an error to stop waiting.

        Returns:
            The final status.

        Raises:
            RunError: if the run does not end in time, or the SuperLink does not respond.
        """
        limit = time.monotonic() + timeout
        while not (status := self._status(watch)).finished:
            watch()
            if time.monotonic() > limit:
                raise RunError(f"the run has not ended within {timeout:g} s: see {self.log}, or wait longer")
            time.sleep(POLL)
        return status

    def _status(self, watch: Callable[[], None]) -> Status:
        """Return the status; if the SuperLink does not respond, `watch` may raise a more helpful error."""
        try:
            return self.status()
        except RunError:
            time.sleep(READY_POLL)  # a killed process closes its connections a moment before it ends
            watch()
            raise

    def tail(self, lines: int = 5) -> str:
        """Return the last lines of the server app's output."""
        return tail(self.log, lines)

    def warnings(self) -> list[str]:
        """Return the warnings that the server app has logged so far."""
        return warnings_in(self.log)


class LocalFederation:
    """Context manager that runs a SuperLink and SuperNodes, and ends all processes at its end."""

    def __init__(
        self,
        app: Path,
        nodes: int,
        folder: Path,
        *,
        start: Collection[int] | None = None,
        node_config: Mapping[str, Setting] | None = None,
        report: Callable[[str], None] = lambda text: None,
    ) -> None:
        """Create the folder and its certificates, but start no process.

        Args:
            app: Folder of a Flower app.
            nodes: Number of nodes, whose keys are created and registered; nodes are numbered from 0.
            folder: Folder for all files; an existing one keeps its keys, node ids and states of clients.
            start: Numbers of the nodes to start at the beginning; by default all.
            node_config: Settings in the config of every node, in addition to `partition-id`, `num-partitions` and
                `state-folder`.
            report: Function that is called with one line of text for every process that has become ready.

        Raises:
            ConfigError: if there is no node.
            StorageError: if the folder cannot be written.
        """
        if nodes < 1:
            raise ConfigError(f"a federation needs at least one node, got {nodes}")
        self.app, self.count, self.folder = app, nodes, folder.resolve()
        self.logs = self.folder / "logs"
        self.nodes: dict[int, Child] = {}
        self.node_ids: dict[int, int] = {}
        self.runs: list[LocalRun] = []
        self._start = range(nodes) if start is None else start
        self._config = dict(node_config or {})
        self._report = report
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
        """Address of the SuperLink."""
        return f"{HOST}:{self._port}"

    # ---- start and end --------------------------------------------------------------------------------------

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
        """Start SuperLink, SuperExec and nodes, and wait until the nodes are connected."""
        self.start_superlink()
        self.start_superexec()
        for number in range(self.count):
            self.node_ids[number] = self.control.register(self.key(number).public)
        for number in self._start:
            self.start_node(number, wait=0)
        for number in self._start:
            self.wait_for_node(number)

    def stop(self) -> None:
        """Stop all runs and end all processes; the SuperLink ends last, since nodes disconnect from it."""
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
            self.control.close()  # a SuperLink waits for open connections
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
        """Start or restart the SuperLink with the same address and database, and wait until it responds."""
        files, database = self.certificates, self.folder / "superlink.db"
        restrict(database)  # an earlier version may have created it with the usual mode
        command: list[str | Path] = [
            *("flower-superlink", "--host", HOST, "--port", str(self._port)),
            *("--ssl-ca-certfile", files.ca, "--ssl-certfile", files.certificate, "--ssl-keyfile", files.key),
            *("--enable-supernode-auth", "--isolation", "process", "--database", database),
            *("--superexec-auth-secret-file", self._secret()),
            "--disable-runtime-dependency-installation",
        ]
        self.superlink = self._child(SUPERLINK, command)
        self._wait("the SuperLink", self.superlink, self.control.answers)
        self._report(f"SuperLink is ready at {self.address}, with TLS and node authentication")
        return self.superlink

    def start_superexec(self) -> Child:
        """Start the SuperExec, which starts one process of the server app for every run."""
        command: list[str | Path] = [
            *("flower-superexec", "--runtime-api-address", self.address, "--root-certificates", self.certificates.ca),
            *("--superexec-auth-secret-file", self._secret()),
        ]
        self.superexec = self._child("superexec", command, umask=-1)  # the run folder has the user's own mode
        return self.superexec

    def _secret(self) -> Path:
        """Return the file with the secret of the SuperExec for the SuperLink; it is created if it does not exist."""
        path = self.folder / "keys" / "superexec.secret"
        if not path.is_file():
            write_private(path, os.urandom(SECRET_BYTES))
        return path

    def key(self, number: int) -> NodeKey:
        """Return the key of a node."""
        return NodeKey.at(self.folder / "keys" / f"node-{number}")

    def identity(self, number: int) -> Identity:
        """Return the credentials that a node uses by default."""
        return Identity(self.key(number).private, self.certificates.ca)

    def states(self, number: int) -> Path:
        """Return the folder with the states of a node's clients."""
        return self.folder / "states" / f"node-{number}"

    def start_node(self, number: int, identity: Identity | None = None, *, wait: float = READY) -> Child:
        """Start or restart a node, and wait until it is connected.

        The SuperLink refuses a killed node until it has noticed the kill, so this waits for that first.

        Args:
            number: Number of the node.
            identity: Credentials; by default those of the node.
            wait: Longest time to wait for the connection, in seconds; 0: do not wait.

        Returns:
            The process of the node.
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
        """Wait until a node is connected.

        Raises:
            RunError: if the node ends or is not connected in time; the message has the reason from its log.
        """
        self._wait(f"node {number}", self.nodes[number], lambda: number in self.online(), timeout)
        self._report(f"node {number} is connected (id {self.node_ids[number]})")

    def online(self) -> set[int]:
        """Return the numbers of the nodes that the SuperLink lists as online, which killed nodes are for a minute."""
        states = self.control.nodes()
        return {number for number, node in self.node_ids.items() if states.get(node) == "online"}

    def server_apps(self) -> list[int]:
        """Return the ids of the processes of the server app, one for each run (Linux)."""
        return [pid for pid, command in self.superexec.members().items() if "flwr-serverapp" in command]

    def ended(self) -> list[Child]:
        """Return the processes that have ended, but should still run."""
        current = [self.superlink, self.superexec, *self.nodes.values()]
        return [child for child in current if child.exit_code() is not None]

    def _wait_until_offline(self, number: int) -> None:
        limit = time.monotonic() + OFFLINE
        while number in self.online() and time.monotonic() < limit:
            time.sleep(READY_POLL)

    def _node_port(self, number: int) -> int:
        """Return the port of a node, which differs from the ports of all other nodes, started or not."""
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
        """Return the environment of all processes, which keeps them apart from the user's Flower and from the network.

        Flower finds its programs by PATH. Several processes share the cores, so each uses one thread.
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
                raise RunError(
                    f"{what} ended before it was ready: {reason(child.log)} (exit code {code}, see {child.log})"
                )
            if time.monotonic() > limit:
                raise RunError(f"{what} was not ready after {timeout:g} s: see {child.log}")
            time.sleep(READY_POLL)

    # ---- runs -----------------------------------------------------------------------------------------------

    def submit(self, config: Mapping[str, Setting] | None = None) -> LocalRun:
        """Start a run of the app with these settings, and write the output of its server app to a file."""
        number = self.control.start(make_bundle(self.app, dict(config or {})))
        run = LocalRun(number, self._new_log(), self.control)
        keeper = threading.Thread(target=self._keep_log, args=(run,), daemon=True)
        keeper.start()
        self._log_keepers.append(keeper)
        self.runs.append(run)
        return run

    def _new_log(self) -> Path:
        """Return a new file for the output of the server app, next to those of earlier runs."""
        number = len(self.runs)
        while (path := self.logs / f"run-{number}.log").exists():
            number += 1
        return path

    def run(self, config: Mapping[str, Setting] | None = None, timeout: float = 600.0) -> LocalRun:
        """Submit a run and wait for its end; its status shows whether it completed."""
        run = self.submit(config)
        run.wait(timeout)
        return run

    def _keep_log(self, run: LocalRun) -> None:
        """Copy the output of the server app from the SuperLink, its only destination, to the log file."""
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
    """Return different free ports of this machine, since Flower's programs do not accept port 0."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind((HOST, 0))
        return [int(each.getsockname()[1]) for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _program(name: str) -> str:
    """Return the path of a program of Flower, from the installation of this Python if possible."""
    installed = Path(sys.executable).parent / name
    found = str(installed) if installed.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} was not found: install Flower with pip install 'coterie[flower]'")
    return found


def _toml(value: Setting) -> str:
    """Return a value as Flower reads it in a config on the command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)
