"""Child processes with a log file, which are ended together with all processes that they have started."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path

LAUNCHER = Path(__file__).with_name("end_with_parent.py")
COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class Child:
    """Child process in a new session, which Ctrl-C does not reach, and which ends with all processes it has started.

    On Linux it is killed when the thread that created this object ends for any reason.
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str], umask: int = -1
    ) -> None:
        """Start the program.

        Args:
            name: Name of the process.
            command: Program and arguments.
            log: Log file, which only the current user can read.
            environment: Environment variables.
            umask: File mode creation mask of the process; -1: that of this process.
        """
        self.name = name
        self.log = log
        launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(os.getpid())]
        with open(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as file:
            self._process = subprocess.Popen(
                [*launcher, *map(str, command)],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=dict(environment),
                start_new_session=True,
                umask=umask,
            )
        self.pid = self._process.pid
        self._code: int | None = None

    def exit_code(self) -> int | None:
        """Return the exit code, which is negative if a signal ended the process; None while it runs."""
        if self._code is None and self._has_ended():
            self.kill()  # ends the processes that it has started
        return self._code

    def kill(self) -> None:
        """Kill the process and all processes that it has started."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._code = self._process.wait()

    def end(self, grace: float) -> None:
        """Ask the process to end, wait for `grace` seconds, and then kill what is left."""
        self.ask_to_end()
        limit = time.monotonic() + grace
        while self.exit_code() is None and time.monotonic() < limit:
            time.sleep(0.02)
        self.kill()

    def ask_to_end(self) -> None:
        """Ask the process to end, but not those that it has started, which it may have to end itself."""
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGTERM)

    def members(self) -> dict[int, str]:
        """Return the running processes of its session, itself included: {pid: command} (Linux)."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # the process may end meanwhile
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def _has_ended(self) -> bool:
        # the process stays a zombie, so that its id, which is also the id of its session, is not reused
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def tail(log: Path, lines: int) -> str:
    """Return the last lines of a log that are not empty, without colours."""
    text = COLOURS.sub("", log.read_text(errors="replace")) if log.is_file() else ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def warnings_in(log: Path) -> list[str]:
    """Return the warnings in a log of Flower; an incomplete last line is left out."""
    text = COLOURS.sub("", log.read_text(errors="replace")) if log.is_file() else ""
    lines = [line.partition(":") for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [text.strip() for level, _, text in lines if level.strip() == "WARNING"]


def reason(log: Path) -> str:
    """Return why a program of Flower ended: the text next to its exit code, or else its last error or last line."""
    lines = tail(log, 60).splitlines()
    codes = [i for i, line in enumerate(lines) if "Exit Code:" in line]
    if codes:
        return " ".join(takewhile(lambda line: not line.startswith("For more information"), lines[codes[-1] + 1 :]))
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["its log is empty"])[-1]
