"""A program that runs beside us, with its log in a file, and that is ended with everything it has started."""

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
    """A program in a session of its own: Ctrl-C at our terminal does not reach it, and it is ended with all it started.

    It is killed when the thread that made this object ends, however that happens (on Linux).
    """

    def __init__(
        self, name: str, command: Sequence[str | Path], log: Path, environment: Mapping[str, str], umask: int = -1
    ) -> None:
        """Start the program.

        umask: for the files that it makes; -1 for that of this process. Nobody else can read its log.
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
        """None while it runs; below 0 the signal that ended it."""
        if self._code is None and self._has_ended():
            self.kill()  # what it has started
        return self._code

    def kill(self) -> None:
        """End it and all that it has started at once, as when the machine goes dark."""
        if self._code is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._code = self._process.wait()

    def end(self, grace: float) -> None:
        """Ask it to end, wait for that so many seconds, then end what is left by force."""
        self.ask_to_end()
        limit = time.monotonic() + grace
        while self.exit_code() is None and time.monotonic() < limit:
            time.sleep(0.02)
        self.kill()

    def ask_to_end(self) -> None:
        """Ask it alone: it may have to tell others, and what it has started watches it."""
        if self.exit_code() is None:
            os.kill(self.pid, signal.SIGTERM)

    def members(self) -> dict[int, str]:
        """Processes of its session that run, itself included: {pid: command} (Linux)."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):  # it may end while we look
                state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
                if int(session) == self.pid and state != "Z":
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ").strip()
        return found

    def _has_ended(self) -> bool:
        # it stays a zombie, so that its number, which is that of its session, is not given to another
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def tail(log: Path, lines: int) -> str:
    """The last lines of a log that say something, without colours."""
    text = COLOURS.sub("", log.read_text(errors="replace")) if log.is_file() else ""
    return "\n".join([line for line in text.splitlines() if line.strip()][-lines:])


def warnings_in(log: Path) -> list[str]:
    """Return the warnings in a log of Flower's; a last line without an end is not read yet."""
    text = COLOURS.sub("", log.read_text(errors="replace")) if log.is_file() else ""
    lines = [line.partition(":") for line in text.splitlines(keepends=True) if line.endswith("\n")]
    return [said.strip() for level, _, said in lines if level.strip() == "WARNING"]


def reason(log: Path) -> str:
    """Why a program of Flower's ended: what it says with its exit code, else its last error, else its last line."""
    lines = tail(log, 60).splitlines()
    codes = [i for i, line in enumerate(lines) if "Exit Code:" in line]
    if codes:
        return " ".join(takewhile(lambda line: not line.startswith("For more information"), lines[codes[-1] + 1 :]))
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or ["it said nothing"])[-1]
