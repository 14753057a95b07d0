"""Faults at a chosen step of input and output: a killed process, or a full disk.

A step is every operation that changes a folder: opening a file for writing, a write (before it, and after half of it),
fsync, rename, mkdir, unlink and rmdir. Steps outside the watched folder are not counted. fsync does nothing, since only
a power failure would show the difference.
"""

from __future__ import annotations

import builtins
import errno
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

KILLED = 77
FAILED = 78


class Steps:
    """Counter of the steps below a folder, which calls `fault` at each step."""

    def __init__(self, root: Path, fault: Callable[[int, str], None] = lambda number, kind: None) -> None:
        self.root = str(root)
        self.fault = fault
        self.kinds: list[str] = []

    def take(self, kind: str, path: object) -> None:
        if str(path).startswith(self.root):
            self.kinds.append(kind)
            self.fault(len(self.kinds) - 1, kind)

    @contextmanager
    def watched(self) -> Iterator[Steps]:
        """Count the steps within the context."""
        real_open, real_os_open = builtins.open, os.open

        def open_(file: Any, mode: str = "r", *args: Any, **options: Any) -> Any:
            if not set(mode) & set("wax+") or not str(file).startswith(self.root):
                return real_open(file, mode, *args, **options)
            self.take(f"open {Path(file).name}", file)
            return _File(real_open(file, mode, *args, **options), self, file)

        def os_open(path: Any, flags: int, *args: Any, **options: Any) -> int:
            if flags & os.O_CREAT and not Path(path).exists():
                self.take("create", path)
            return real_os_open(path, flags, *args, **options)

        def synced(number: int) -> None:
            self.take("fsync", self.root)

        def stepping(name: str) -> Any:
            real = getattr(os, name)

            def call(path: Any, *args: Any, **options: Any) -> Any:
                self.take(name, path)
                return real(path, *args, **options)

            return mock.patch.object(os, name, call)

        with (
            mock.patch.object(builtins, "open", open_),
            mock.patch.object(os, "open", os_open),
            mock.patch.object(os, "fsync", synced),
            stepping("replace"),
            stepping("rename"),
            stepping("mkdir"),
            stepping("unlink"),
            stepping("rmdir"),
        ):
            yield self


class _File:
    """A file whose writes have two steps: one before anything is written, one after the first half."""

    def __init__(self, file: Any, steps: Steps, path: object) -> None:
        self._file, self._steps, self._path = file, steps, path

    def write(self, data: bytes) -> int:
        self._steps.take("write", self._path)
        half = len(data) // 2
        self._file.write(data[:half])
        self._file.flush()
        self._steps.take("half a write", self._path)
        self._file.write(data[half:])
        return len(data)

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def kinds_of_steps(root: Path, call: Callable[[], object]) -> list[str]:
    """Return the steps of a call."""
    with Steps(root).watched() as steps:
        call()
    return steps.kinds


def killed_at(step: int, root: Path, call: Callable[[], object]) -> bool:
    """Run the call in a child process that is killed at this step; return whether it reached the step."""

    def die(number: int, kind: str) -> None:
        if number == step:
            os._exit(KILLED)

    def dying() -> None:
        with Steps(root, die).watched():
            call()

    code = exit_code(started_child(dying))
    assert code in (0, KILLED), f"the call failed before step {step}"
    return code == KILLED


def started_child(call: Callable[[], object]) -> int:
    """Run the call in a forked process and return the process id; the child process does not return."""
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            call()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child


def exit_code(child: int) -> int:
    """Wait for the end of a child process and return its exit code."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


FULL = ("open", "create", "write", "half a write", "fsync", "mkdir", "replace")
"""Steps that need space on the disk."""


@contextmanager
def full_disk_from(step: int, root: Path, number: int = errno.ENOSPC) -> Iterator[None]:
    """Let all steps that need space on the disk fail from this step on; files can still be removed."""

    def fail(at: int, kind: str) -> None:
        if at >= step and kind.startswith(FULL):
            raise OSError(number, os.strerror(number))

    with Steps(root, fail).watched():
        yield
