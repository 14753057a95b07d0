"""Formats, checksums and errors of the files in a run folder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from coterie.errors import RunError, StorageError
from coterie.files import write_atomically, write_json

CHECKSUM = "checksum"
"""Key of the field of a JSON object that contains the SHA-256 of all its other fields."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError while writing `path` into a StorageError that says what to do."""
    try:
        yield
    except OSError as error:
        name, reason = error.filename or path, error.strerror or str(error)
        raise StorageError(
            f"{name} cannot be written ({reason}): solve this problem and resume the run, which keeps all finished "
            "rounds"
        ) from None


def reason_of(error: Exception) -> str:
    """Return the reason of a failure, without the number and the path in the message of an OSError."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)


def unreadable(path: Path, error: Exception) -> RunError:
    """Return the error for a file of a run folder that is not as it was written."""
    return RunError(
        f"{path} cannot be read ({reason_of(error)}): the folder is damaged, restore the file or run it again"
    )


def toml_bytes(value: Mapping[str, Any]) -> bytes:
    """Return a TOML document that the standard library can read."""
    return tomli_w.dumps(value).encode()


def write_toml(path: Path, value: Mapping[str, Any]) -> None:
    """Write a TOML file atomically."""
    write_atomically(path, toml_bytes(value))


def write_checked_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a JSON object together with its own checksum."""
    write_json(path, {**value, CHECKSUM: checksum(value)})


def read_checked_json(path: Path) -> dict[str, Any]:
    """Return the content of a file of `write_checked_json`.

    Raises:
        OSError: if the file cannot be read.
        ValueError: if its content does not match its checksum.
    """
    try:
        value = json.loads(path.read_bytes())
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if not isinstance(value, dict) or value.pop(CHECKSUM, None) != checksum(value):
        raise ValueError("it does not match its checksum")
    return value


def checksum(value: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a JSON object; the order of its fields does not matter."""
    return sha256(json.dumps(value, sort_keys=True, allow_nan=False).encode())


def sha256(data: bytes) -> str:
    """Return the SHA-256 in hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_bytes(arrays: Mapping[str, Tensor]) -> bytes:
    """Return named tensors in the safetensors format."""
    return safetensors_bytes({name: a.detach().cpu().contiguous().clone() for name, a in arrays.items()})
