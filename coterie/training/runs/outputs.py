"""Output files that a user names, such as a report or a drawing: checked beforehand, then written completely or not."""

from __future__ import annotations

import os
from pathlib import Path

from coterie.errors import StorageError, from_system
from coterie.files import write_atomically
from coterie.training.runs.files import reason_of


def check_output(path: Path) -> None:
    """Check that a path can be written, before any work is done for it.

    Raises:
        StorageError: if its folder does not exist or cannot be written, or if it is a folder itself.
    """
    try:
        target = path.resolve()
        if target.is_dir():
            raise StorageError(f"{path} is a folder: give the name of a file")
        if not target.parent.is_dir():
            raise StorageError(f"{path} cannot be written, because its folder does not exist: create the folder first")
        allowed = os.access(target if _is_special(target) else target.parent, os.W_OK)
    except (OSError, ValueError, RuntimeError) as error:  # too long, a NUL byte, a loop of links
        raise StorageError(f"{str(path)!r} cannot be written ({reason_of(error)}): choose another name") from None
    if not allowed:
        raise StorageError(f"{path} cannot be written, because its folder is read-only: choose another folder")


def write_output(path: Path, text: str) -> None:
    """Write a file atomically; devices and pipes are written directly.

    Raises:
        StorageError: if it cannot be written.
    """
    write_binary_output(path, text.encode("utf-8", "backslashreplace"))


def write_binary_output(path: Path, data: bytes) -> None:
    """Write a binary file in the same way as `write_output`.

    Raises:
        StorageError: if it cannot be written.
    """
    check_output(path)
    target = path.resolve()  # the file behind a link, not the link
    try:
        if _is_special(target):
            target.write_bytes(data)
        else:
            write_atomically(target, data)
    except OSError as error:
        raise from_system(error) or error from error


def _is_special(path: Path) -> bool:
    """Return whether the path is a device or a pipe, which must not be replaced by a file."""
    return path.exists() and not path.is_file()
