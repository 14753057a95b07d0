"""Locks that let one process at a time use a folder, and new folders that exactly one process can claim."""

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
"""Folder inside that of a comparison or a sweep that contains its runs."""

LOCK = ".lock"
"""Lock file of a folder. It remains while a run is unfinished; only the operating system's lock on it counts."""


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Keep all other processes out of a folder until the end of the context or of this process.

    The operating system releases the lock if the process is killed. On disks without locks, no process is kept out.
    Temporary files of killed processes are removed.

    Raises:
        RunError: if another process has locked the folder.
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
    """Remove the lock file of a finished folder; the caller holds the lock."""
    with suppress(OSError):
        (path / LOCK).unlink()


@contextmanager
def claimed(path: Path, is_unused: Callable[[Path], bool], clear: Callable[[Path], None]) -> Iterator[None]:
    """Create a folder, or use an empty one, and keep other processes out of it.

    Args:
        path: The folder; missing parents are created too.
        is_unused: Returns whether a folder that is not empty contains only an interrupted creation.
        clear: Removes the files of such a creation.

    Raises:
        RunError: if the folder contains something else, or another process has locked it.
        StorageError: if the folder cannot be created.
    """
    new = not path.exists()
    if not new and not path.is_dir():
        raise _taken(path)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{path} cannot be created: {error.strerror or error}") from None
    if not new and not is_empty(path) and not is_unused(path):
        raise _taken(path)  # before a lock file is added to other files
    with alone_in(path):
        if not is_empty(path):
            if not is_unused(path):
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
    """Create the folder of several runs: an empty folder jobs/, then a TOML file with the settings.

    A folder from an interrupted creation is used again.
    """

    def is_unused(path: Path) -> bool:
        return names_in(path) == {JOBS} and (path / JOBS).is_dir() and is_empty(path / JOBS)

    with claimed(path, is_unused, lambda path: None), writing(path):
        (path / JOBS).mkdir(exist_ok=True)
        write_toml(path / name, content)
        remove_lock(path)


def is_empty(path: Path) -> bool:
    """Return whether a folder contains nothing except a lock and our own temporary files."""
    return not names_in(path)


def names_in(path: Path) -> set[str]:
    """Return the names in a folder, without the lock and our own temporary files."""
    with writing(path):
        return {entry.name for entry in path.iterdir() if entry.name != LOCK and not TEMPORARY.search(entry.name)}


def is_versions_file(path: Path) -> bool:
    """Return whether this is a versions.json that Coterie has written."""
    try:
        facts = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(facts, dict) and {"coterie", "torch", "data_sha256"} <= facts.keys()


def _taken(path: Path) -> RunError:
    return RunError(
        f"{path} exists already and is not empty: choose another folder, or resume the run in it with "
        f"'coterie resume {path}'"
    )
