"""Atomic file writes (a reader sees either the old or the new content), and files of tensors that a user names."""

from __future__ import annotations

import json
import os
import re
import secrets
import sys
from contextlib import suppress
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from torch import Tensor

from coterie.errors import ConfigError

TEMPORARY = re.compile(r"\.[0-9a-f]{16}\.tmp$")
"""Pattern of the names of temporary files; no other file matches it."""


def write_atomically(path: Path, data: bytes) -> None:
    """Write a file atomically.

    The data is written to a temporary file with a unique name and synced to disk. The temporary file is then renamed
    to `path`, and the folder is synced.

    Args:
        path: File to create or replace.
        data: Content of the file.

    Raises:
        OSError: if writing fails. The error names `path`, which then holds the old or the new content; the temporary
            file is removed.
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
    """Sync a folder to disk, so that new file names survive a power failure; does nothing on Windows."""
    if sys.platform == "win32":
        return
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def append_line(path: Path, line: bytes) -> None:
    """Append one line to a file and sync it to disk before returning."""
    with open(path, "ab") as file:
        file.write(line + b"\n")
        file.flush()
        os.fsync(file.fileno())


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files that killed processes left in a folder; the caller must hold the lock of the folder."""
    for path in folder.glob("*.tmp"):
        if TEMPORARY.search(path.name):
            with suppress(OSError):
                path.unlink()


def json_bytes(value: object) -> bytes:
    """Return a value as standard JSON.

    Raises:
        ValueError: if the value contains NaN or an infinite number.
    """
    return json.dumps(value, indent=1, allow_nan=False).encode() + b"\n"


def write_json(path: Path, value: object) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json_bytes(value))


def read_tensors(source: str) -> dict[str, Tensor]:
    """Return named tensors from a safetensors file that a user names.

    Raises:
        ConfigError: if it cannot be read.
    """
    try:
        arrays: dict[str, Tensor] = safetensors_load(Path(source).expanduser().read_bytes())
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ConfigError(
            f"{source!r} must be a safetensors file, but it cannot be read ({reason}): write one with "
            "safetensors.torch.save_file(model.state_dict(), path)"
        ) from None
    return arrays
