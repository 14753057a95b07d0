"""Files that are written atomically: whoever reads one sees the old content or the new content, never a part."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp$")
"""How the name of a temporary file ends; no other file is called like that."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a temporary file with a unique name, fsync it, rename it to `path`, fsync the folder.

    An OSError names `path` and leaves no temporary file behind; `path` is then the old file or the new one.
    """
    temporary = path.with_name(f"{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None:
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def sync_folder(path: Path) -> None:
    """Make the names of new files in a folder survive a power failure, where the system can do that."""
    if sys.platform == "win32":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a file; it is on the disk when this returns."""
    with open(path, "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder; the caller holds its lock."""
    for path in folder.glob("*.tmp"):
        if TEMPORARY.search(path.name):
            with suppress(OSError):
                path.unlink()


def json_bytes(value: object) -> bytes:
    """JSON that any reader accepts: a NaN in it is an error."""
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json_bytes(value))
