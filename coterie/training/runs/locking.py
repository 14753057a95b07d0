"""One process at a time in a folder, and new folders that exactly one process can claim."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from coterie.errors import RunError
from coterie.files import TEMPORARY, remove_leftovers
from coterie.training.runs.files import write_toml, writing

JOBS = "jobs"
"""The folder inside a comparison or a sweep that holds its runs."""

LOCK = ".lock"
"""The lock file of a folder. It stays while a run is unfinished; only the lock that the system holds on it counts."""


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Keep every other process out of a folder until the end of the context or of this process.

    The system releases the lock of a process that is killed. On disks without locks nobody is kept out. Temporary files
    of killed processes are removed.
    """
    lock = FileLock(path / LOCK)
    with writing(path / LOCK):
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise RunError(
                f"{path} is being written to by another process: wait until it has ended, or end it"
            ) from None
        except NotImplementedError:
            pass
    try:
        with writing(path):
            for folder in (path, *(entry for entry in path.iterdir() if entry.is_dir())):
                remove_leftovers(folder)
        yield
    finally:
        lock.release()


def remove_lock(path: Path) -> None:
    """Remove the lock file of a folder in which nothing is left to do; the caller holds the lock."""
    with suppress(OSError):
        (path / LOCK).unlink()


@contextmanager
def claimed(path: Path, is_unbegun: Callable[[Path], bool], clear: Callable[[Path], None]) -> Iterator[None]:
    """Make a folder, or take an empty one, and keep other processes out of it.

    Args:
        path: The folder; its parents are made, too.
        is_unbegun: Says whether a folder that is not empty holds nothing but an interrupted creation of our own.
        clear: Removes the files of such a creation.

    Raises:
        RunError: The folder holds something else, or another process has it.
        StorageError: The folder cannot be made.
    """
    new = not path.exists()
    if not new and not path.is_dir():
        raise _taken(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be made: {error.strerror or error}") from None
    if not new and not is_empty(path) and not is_unbegun(path):
        raise _taken(path)  # before a lock file is put beside the files of somebody else
    with alone_in(path):
        if not is_empty(path):
            if not is_unbegun(path):
                raise _taken(path)
            clear(path)
        try:
            yield
        finally:
            if is_empty(path):
                remove_lock(path)
                if new:
                    with suppress(OSError):
                        path.rmdir()


def create_for_jobs(path: Path, name: str, content: Mapping[str, object]) -> None:
    """Create the folder of several runs: an empty folder jobs/, then the TOML file that says what was asked.

    A folder that an interrupted creation left behind is used again.
    """

    def is_unbegun(path: Path) -> bool:
        return names_in(path) == {JOBS} and (path / JOBS).is_dir() and is_empty(path / JOBS)

    with claimed(path, is_unbegun, lambda path: None), writing(path):
        (path / JOBS).mkdir(exist_ok=True)
        write_toml(path / name, content)
        remove_lock(path)


def is_empty(path: Path) -> bool:
    """Whether a folder has nothing in it but a lock and temporary files of our own."""
    return not names_in(path)


def names_in(path: Path) -> set[str]:
    """The names in a folder, without the lock and temporary files of our own."""
    with writing(path):
        return {entry.name for entry in path.iterdir() if entry.name != LOCK and not TEMPORARY.search(entry.name)}


def is_versions_file(path: Path) -> bool:
    """Whether this is a versions.json that Coterie has written."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and {"coterie", "torch", "data_sha256"} <= facts.keys()


def _taken(path: Path) -> RunError:
    return RunError(f"{path} exists already: choose another folder with out, or go on with 'coterie resume {path}'")
