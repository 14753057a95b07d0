"""One run's folder.

::

    config.toml          all options as settled; the same file runs it again
    versions.json        Python, libraries, platform, threads, digest of the data
    beginning.json       what was found out before the first round, if anything was
    records.jsonl        one line a round
    checkpoints/         the last few states of the server
    best/                with patience on validation samples: the states with the least validation loss so far
    models.safetensors   final models, "0/weight", "1/weight", ...
    result.json          final figures and one row for each client
    report.html
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load as safetensors_load
from torch import Tensor

from coterie.core.clusters import Params
from coterie.errors import RunError
from coterie.runs.checkpoint import accepted_in_oldest, newest_checkpoint, save_checkpoint
from coterie.runs.files import tensor_bytes, write_atomically, write_json, write_toml
from coterie.server.loop import ServerState

Record = dict[str, Any]


@dataclass(frozen=True)
class RunFolder:
    """A folder that belongs to one run."""

    path: Path

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], fingerprint: str) -> RunFolder:
        """A new folder; one that is there already is never touched."""
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise RunError(
                f"{path} exists already: choose another folder with out, or go on with 'coterie resume {path}'"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RunError(f"{path} cannot be made: {error.strerror or error}") from None
        folder = cls(path)
        write_json(path / "versions.json", versions() | {"data_sha256": fingerprint})
        write_toml(path / "config.toml", config)
        return folder

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """A folder made by `create`."""
        if not (path / "config.toml").is_file():
            raise RunError(f"{path} is no run folder: it has no config.toml")
        return cls(path)

    @property
    def config(self) -> dict[str, Any]:
        return read_toml(self.path / "config.toml")

    @property
    def fingerprint(self) -> str:
        if "data_sha256" not in self.versions:
            raise RunError(
                f"{self.path / 'versions.json'} has no digest of the data: the folder is damaged, run it again"
            )
        return str(self.versions["data_sha256"])

    @property
    def versions(self) -> dict[str, Any]:
        facts: dict[str, Any] = self._json("versions.json")
        return facts

    @property
    def finished(self) -> bool:
        return (self.path / "result.json").is_file()

    @property
    def result(self) -> dict[str, Any]:
        if not self.finished:
            raise RunError(f"{self.path} is not finished: go on with 'coterie resume {self.path}'")
        facts: dict[str, Any] = self._json("result.json")
        return facts

    def _json(self, name: str) -> Any:
        try:
            return json.loads((self.path / name).read_bytes())
        except (OSError, ValueError) as error:
            raise RunError(
                f"{self.path / name} cannot be read ({error}): the folder is damaged, run it again"
            ) from None

    def begin(self, told: Mapping[str, Any]) -> None:
        """Keep what was found out before the first round."""
        if told:
            write_json(self.path / "beginning.json", told)

    @property
    def beginning(self) -> dict[str, Any]:
        """What `begin` was given."""
        told: dict[str, Any] = self._json("beginning.json") if (self.path / "beginning.json").is_file() else {}
        return told

    # ---- while the run goes on ------------------------------------------------------------------------------

    def append(self, record: Record) -> None:
        """Add a record; it is on the disk before the next checkpoint is."""
        with open(self.path / "records.jsonl", "ab") as file:
            file.write(json.dumps(record, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def records(self) -> list[Record]:
        """All whole records from round 0 on; a half-written last line is left out."""
        path = self.path / "records.jsonl"
        found: list[Record] = []
        for line in path.read_bytes().splitlines() if path.is_file() else []:
            try:
                record = json.loads(line)
            except ValueError:
                break
            if not isinstance(record, dict) or record.get("round") != len(found):
                break
            found.append(record)
        return found

    def ask(self, round_: int) -> None:
        """Note that the clients of a private run are about to be asked in this round; on the disk when it returns."""
        with open(self.path / "asked.txt", "ab") as file:
            file.write(f"{round_}\n".encode())
            file.flush()
            os.fsync(file.fileno())

    def asked(self) -> list[int]:
        """The rounds of all calls of `ask`, those that were done again several times."""
        path = self.path / "asked.txt"
        return [int(line) for line in path.read_text().split()] if path.is_file() else []

    def checkpoint(self, state: ServerState, best: ServerState | None = None) -> None:
        """Write the state; before it `best`, the state whose models are kept, if that is another one."""
        if best is not None:
            save_checkpoint(self.path / "best", best)
        save_checkpoint(self.path / "checkpoints", state)

    def oldest_accepted(self) -> Tensor | None:
        """(m,) the last rounds of the clients' that counted in the oldest checkpoint that the run may go on from.

        None where there is no checkpoint.
        """
        return accepted_in_oldest(self.path / "checkpoints")

    def best_state(self, warn: Callable[[str], None], before: int) -> ServerState | None:
        """The best state as it was known after `before` rounds."""
        return newest_checkpoint(self.path / "best", warn, before)

    def last_state(self, warn: Callable[[str], None]) -> tuple[ServerState | None, list[Record]]:
        """Where to go on: the newest whole checkpoint, and the records up to it. Later records are dropped."""
        records = self.records()
        state = newest_checkpoint(self.path / "checkpoints", warn, before=len(records))
        records = records[: state.round if state else 0]
        text = b"".join(json.dumps(r, allow_nan=False).encode() + b"\n" for r in records)
        write_atomically(self.path / "records.jsonl", text)
        return state, records

    # ---- when it is done ------------------------------------------------------------------------------------

    def finish(self, models: Sequence[Params], result: Mapping[str, Any], beside: Params | None = None) -> None:
        """Write the final models and what else predicts, then the figures; a folder with result.json is complete."""
        if beside:
            write_atomically(self.path / "beside.safetensors", tensor_bytes(beside))
        arrays = {f"{k}/{name}": p for k, model in enumerate(models) for name, p in model.items()}
        write_atomically(self.path / "models.safetensors", tensor_bytes(arrays))
        write_json(self.path / "result.json", result)

    def beside(self) -> Params:
        """What `finish` was given besides the models."""
        return self._arrays("beside.safetensors") if (self.path / "beside.safetensors").is_file() else {}

    def models(self) -> list[Params]:
        """The final models, one dict a cluster."""
        models: dict[int, Params] = {}
        for key, value in self._arrays("models.safetensors").items():
            index, _, name = key.partition("/")
            models.setdefault(int(index), {})[name] = value
        return [models[k] for k in sorted(models)]

    def _arrays(self, name: str) -> Params:
        try:
            arrays: Params = safetensors_load((self.path / name).read_bytes())
        except Exception as error:
            raise RunError(f"{self.path}: the final models cannot be read ({error}); resume or run it again") from None
        return arrays


@contextmanager
def alone_in(path: Path) -> Iterator[None]:
    """Keep out every other process that asks for the same run folder, until the end of the context or of this process.

    The system holds the lock, on the folder itself, so that a process that is killed leaves none behind. On Windows and
    on disks without locks nobody is kept out.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl  # there is none on Windows

    folder = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{path} is being written to by another process: wait until it has ended, or end it"
            ) from None
        except OSError:
            pass  # some network disks know no locks
        yield
    finally:
        os.close(folder)


def read_toml(path: Path) -> dict[str, Any]:
    """A TOML file, with an error that names the file."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is no valid TOML: {' '.join(str(error).split())}") from None


def versions() -> dict[str, Any]:
    """What a bit-identical repetition needs to be the same."""
    names = ("torch", "numpy", "scipy", "scikit-learn", "safetensors")
    return {
        "coterie": version("coterie"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        **{name: version(name) for name in names},
    }
