"""Work for the worker processes of the tests, with few imports, so that processes start quickly."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import ConfigError


@dataclass(frozen=True)
class Dies:
    """Work whose process is killed a number of times: job `name:count` succeeds at attempt count + 1."""

    folder: Path
    how: signal.Signals = signal.SIGKILL

    def __call__(self, job: str) -> str:
        name, _, count = job.partition(":")
        attempts = self.folder / name
        with open(attempts, "a") as file:
            file.write("x")
        if len(attempts.read_text()) <= int(count):
            os.kill(os.getpid(), self.how)
            time.sleep(60)
        return name.upper()


class Leaves:
    def __call__(self, code: int) -> None:
        os._exit(code)


@dataclass(frozen=True)
class Raises:
    def __call__(self, name: str) -> None:
        raise {
            "memory": MemoryError(),
            "torch": RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to ..."),
            "full": OSError(28, "No space left on device", "/runs/x"),
            "awkward": AwkwardError(1, 2),
        }[name]


class AwkwardError(Exception):
    """An error that cannot be pickled."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("awkward")


class Pid:
    def __call__(self, job: int) -> tuple[int, str | None, str | None]:
        return os.getpid(), os.environ.get("OMP_NUM_THREADS"), os.environ.get("COTERIE_WORKER")


@dataclass(frozen=True)
class Square:
    """Work that raises a ConfigError for 3 and has a bug for 4."""

    def __call__(self, number: int) -> int:
        if number == 3:
            raise ConfigError("three is not allowed")
        if number == 4:
            raise ZeroDivisionError("a bug")
        return number**2
