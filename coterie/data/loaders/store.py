"""Folder of stored data sets: NAME.npz, and NAME.json with its checksum, which is written last."""

from __future__ import annotations

import hashlib
import io
import json
import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coterie.core.arrays import first_line
from coterie.errors import InputError
from coterie.files import write_atomically, write_json


class Content(Protocol):
    """A data set in memory, images or rows."""

    @property
    def name(self) -> str: ...

    @property
    def arrays(self) -> dict[str, npt.NDArray[np.generic]]:
        """All arrays by their names in npz files."""
        ...

    @property
    def counts(self) -> dict[str, int]:
        """Counts of samples, clients and classes, for the file of facts."""
        ...

    @property
    def facts(self) -> dict[str, str]:
        """Facts about the content, for users."""
        ...

    def digest(self) -> str:
        """SHA-256 of the data, which does not depend on the format of the file."""
        ...


def data_folder() -> Path:
    """Return $COTERIE_DATA, or else coterie in $XDG_CACHE_HOME or in ~/.cache."""
    given = os.environ.get("COTERIE_DATA")
    if given:
        return Path(given).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache") / "coterie"


def npz_path(name: str) -> Path:
    """Return the path of the arrays of a data set."""
    return data_folder() / f"{name}.npz"


def is_here(name: str) -> bool:
    """Return whether a data set is stored completely."""
    return npz_path(name).is_file() and _facts_path(name).is_file()


def _facts_path(name: str) -> Path:
    return data_folder() / f"{name}.json"


def save(content: Content, origin: str) -> Path:
    """Store a data set atomically: other processes see the old one, none, or the new one."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **content.arrays)
    data = buffer.getvalue()
    path = npz_path(content.name)
    facts = {
        "name": content.name,
        "sha256": hashlib.sha256(data).hexdigest(),
        "origin": origin,
        "content_sha256": content.digest(),
        **content.counts,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _facts_path(content.name).unlink(missing_ok=True)  # old facts must never describe new arrays
        write_atomically(path, data)
        write_json(_facts_path(content.name), facts)
    except OSError as error:
        raise InputError(
            f"{path} cannot be written ({error.strerror or error}): set COTERIE_DATA to a folder"
        ) from None
    return path


def facts(name: str) -> dict[str, Any]:
    """Return the stored facts about a data set."""
    try:
        found = json.loads(_facts_path(name).read_bytes())
        return {"sha256": str(found["sha256"]), **found}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{_facts_path(name)} cannot be read ({error}): bring {name} again") from None


def verify(name: str) -> str:
    """Return the file after comparing it with its stored SHA-256; raise an error if they differ."""
    path = npz_path(name)
    expected = facts(name)["sha256"]
    try:
        with open(path, "rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror or error}): bring {name} again") from None
    if found != expected:
        raise InputError(f"{path} has sha256 {found}, expected {expected}: it is damaged, bring {name} again")
    return found


def read_npz(path: Path, keys: tuple[str, ...], optional: tuple[str, ...] = ()) -> dict[str, npt.NDArray[Any]]:
    """Return these arrays of an npz file, and the optional ones that it holds; nothing is ever unpickled."""
    try:
        with open(path, "rb") as stream:  # np.load would leave a broken file open
            return _arrays(np.load(stream, allow_pickle=False), keys, optional, path)
    except InputError:
        raise
    except Exception as error:  # a damaged file may break the reader in any way, memory included
        raise InputError(
            f"{path} is no whole npz file of plain arrays ({first_line(error)}): write or copy it again"
        ) from None


def _arrays(file: Any, keys: tuple[str, ...], optional: tuple[str, ...], path: Path) -> dict[str, npt.NDArray[Any]]:
    if not isinstance(file, np.lib.npyio.NpzFile):
        raise InputError(f"{path} holds a single array: expected an npz file with {', '.join(keys)}")
    absent = [key for key in keys if key not in file.files]
    if absent:
        found = ", ".join(file.files) or "nothing"
        raise InputError(f"{path} has no {absent[0]}: expected {', '.join(keys)}, got {found}")
    return {key: file[key] for key in (*keys, *optional) if key in file.files}
