"""Writing so that a file is either whole or absent; reading arrays that a user brings."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli_w
from safetensors import SafetensorError
from safetensors.torch import load as safetensors_load
from safetensors.torch import save as safetensors_bytes
from torch import Tensor

from coterie.errors import ConfigError


def write_atomically(path: Path, data: bytes) -> None:
    """Temporary file, fsync, rename, fsync of the folder."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_json(path: Path, value: object) -> None:
    """JSON that any reader accepts: a NaN in it is an error."""
    write_atomically(path, json.dumps(value, indent=1, allow_nan=False).encode() + b"\n")


def write_toml(path: Path, value: Mapping[str, Any]) -> None:
    """TOML, as the standard library reads it."""
    write_atomically(path, tomli_w.dumps(value).encode())


def tensor_bytes(arrays: Mapping[str, Tensor]) -> bytes:
    """Named tensors in the safetensors format."""
    return safetensors_bytes({name: a.detach().cpu().contiguous() for name, a in arrays.items()})


def read_tensors(source: str) -> dict[str, Tensor]:
    """Named tensors from a safetensors file that a user names."""
    try:
        arrays: dict[str, Tensor] = safetensors_load(Path(source).expanduser().read_bytes())
    except (OSError, SafetensorError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error).splitlines()[0]
        raise ConfigError(
            f"{source!r} must be a safetensors file, but it cannot be read ({reason}): write one with "
            "safetensors.torch.save_file(model.state_dict(), path)"
        ) from None
    return arrays
