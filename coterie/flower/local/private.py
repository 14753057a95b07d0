"""Files and folders that other accounts of the machine cannot read at any moment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.errors import StorageError

UMASK = 0o077
"""File mode creation mask of processes that write secrets."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an error while writing a file into a StorageError."""
    try:
        yield
    except OSError as error:
        raise StorageError(f"{error.filename or path} cannot be written: {error.strerror or error}") from None


def make_private_folder(path: Path) -> None:
    """Create a folder with mode 0700, or restrict an existing one; parents are created with the usual mode."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
        path.chmod(0o700)


def write_private(path: Path, content: bytes) -> None:
    """Write a file atomically with mode 0600 in a private folder."""
    make_private_folder(path.parent)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with writing(path):
        try:
            with open(unfinished, "xb", opener=private_opener) as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)


def restrict(path: Path) -> None:
    """Make an existing file unreadable for all other accounts."""
    if path.exists():
        with writing(path):
            path.chmod(0o600)


def private_opener(path: str, flags: int) -> int:
    """Opener for `open` that creates files with mode 0600."""
    return os.open(path, flags, 0o600)
