"""The folder of a run.

::

    config.toml          all options, as given or by default; the same file repeats the run
    versions.json        Python, libraries, platform, threads, digest of the data
    diagnosis.json       with method=auto: the diagnosis that chose the method
    manifest.json        SHA-256 of all files that results depend on
    trials.jsonl         with clusters=auto: the results of finished trial runs
    initialization.json  findings of the initialisation, and the options that it set, if there are any
    asked.json           for private runs with remote clients: the rounds in which clients were asked
    records.jsonl        one line per round
    checkpoints/         the last few states of the server
    best/                with patience on validation samples: the states with the lowest validation loss so far
    models.safetensors   final models, "0/weight", "1/weight", ...
    extra.safetensors    extra arrays that predictions need, if there are any
    result.json          final figures, and one row for each client
    report.html
    .lock                while the run is unfinished

The order of writes makes a run resumable after a kill at any moment. Creation: versions.json, asked.json,
diagnosis.json, manifest.json, config.toml. Initialisation: initialization.json, then the checkpoint of round 0. A
round: asked.json, records.jsonl, then, if due, best/ and the checkpoint, whose header contains the digests of the
records so far, of initialization.json and of the best state. End: models.safetensors, manifest.json, result.json. A
folder with config.toml can be resumed, one with result.json is complete; anything in between is repeated with the same
result.
"""

from __future__ import annotations

import json
import platform
import tomllib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load as safetensors_load
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.state import ServerState
from coterie.diagnosis.values import Diagnosis
from coterie.errors import ConfigError, RunError
from coterie.files import json_bytes, write_atomically, write_json
from coterie.methods.settings import most_of
from coterie.training.records import RoundRecord
from coterie.training.runs.checkpoint import (
    Facts,
    accepted_in_oldest,
    drop_others,
    headers_in,
    newest_checkpoint,
    read_state,
    save_checkpoint,
)
from coterie.training.runs.files import (
    file_sha256,
    read_checked_json,
    sha256,
    tensor_bytes,
    toml_bytes,
    unreadable,
    writing,
)
from coterie.training.runs.journal import Journal, TrialLog, joined
from coterie.training.runs.ledger import LEDGER, check_ledger, read_ledger, write_ledger
from coterie.training.runs.locking import alone_in, claimed, is_empty, is_versions_file, names_in, remove_lock
from coterie.training.runs.manifest import FORMAT, MANIFEST, Manifest

CONFIG, VERSIONS, INITIALIZATION, RECORDS, TRIALS = (
    "config.toml",
    "versions.json",
    "initialization.json",
    "records.jsonl",
    "trials.jsonl",
)
DIAGNOSIS = "diagnosis.json"
MODELS, EXTRA_ARRAYS, RESULT = "models.safetensors", "extra.safetensors", "result.json"
CHECKPOINTS, BEST = "checkpoints", "best"
EARLIER_NAMES = {INITIALIZATION: "beginning.json", EXTRA_ARRAYS: "beside.safetensors"}
"""Names that these files have in folders of earlier versions."""
CREATED = (VERSIONS, CONFIG)
"""Files that never change after the creation, except for diagnosis.json, which few folders have."""
MADE_FIRST = {CONFIG, MANIFEST, LEDGER, VERSIONS, INITIALIZATION, CHECKPOINTS, DIAGNOSIS}
"""Possible content of a folder in which no round and no trial run was finished."""
SETTLED = "settled"
"""Key in initialization.json of the options that the initialisation set."""


class ResumePoint(NamedTuple):
    """The state from which an interrupted run continues."""

    state: ServerState | None
    """The state; None: the run starts with its initialisation."""
    records: list[RoundRecord]
    """Records of the rounds before the state."""
    best: ServerState | None
    """The state with the lowest validation loss among these rounds, if it is kept."""


@dataclass
class RunFolder:
    """The folder of one run."""

    path: Path
    """Path of the folder."""

    def __post_init__(self) -> None:
        self._records = Journal(self.path / RECORDS)

    @classmethod
    @contextmanager
    def claim(
        cls,
        path: Path,
        config: Mapping[str, Any],
        fingerprint: str,
        ledger: bool = False,
        diagnosis: Diagnosis | None = None,
    ) -> Iterator[RunFolder]:
        """Create a folder for a new run and keep other processes out of it.

        A folder in which an earlier run was interrupted before it had finished anything is used again. A folder with
        other content is never changed.

        Args:
            path: The folder.
            config: All options of the run.
            fingerprint: Digest of the data.
            ledger: Whether the run must count its requests to clients in a ledger.
            diagnosis: The diagnosis that chose the method, if there was one.

        Raises:
            RunError: if the folder contains something, or another process has claimed it.
            StorageError: if the folder cannot be written.
        """
        with claimed(path, _is_unused, _clear):
            yield cls._create(path, config, fingerprint, ledger, diagnosis)

    @staticmethod
    def can_be_created(path: Path) -> bool:
        """Return whether `claim` would use this folder: it is empty, or contains only an interrupted creation."""
        return path.is_dir() and (is_empty(path) or _is_unused(path))

    @classmethod
    def create(cls, path: Path, config: Mapping[str, Any], fingerprint: str) -> RunFolder:
        """Create a folder as `claim` does, without keeping other processes out of it afterwards."""
        with cls.claim(path, config, fingerprint) as folder:
            remove_lock(path)
            return folder

    @classmethod
    def _create(
        cls,
        path: Path,
        config: Mapping[str, Any],
        fingerprint: str,
        ledger: bool,
        diagnosis: Diagnosis | None,
    ) -> RunFolder:
        facts = json_bytes(versions() | {"data_sha256": fingerprint, "folder_format": FORMAT})
        options = toml_bytes(config)
        with writing(path):
            write_atomically(path / VERSIONS, facts)
            if ledger:
                write_ledger(path, [])
            digests = {VERSIONS: sha256(facts), CONFIG: sha256(options)}
            if diagnosis is not None:
                found = diagnosis.to_json().encode()
                digests[DIAGNOSIS] = sha256(found)
                write_atomically(path / DIAGNOSIS, found)
            Manifest(digests, ledger).write(path)
            write_atomically(path / CONFIG, options)
        return cls(path)

    def abandon(self) -> None:
        """Remove the folder if nothing was finished in it; the caller holds its lock."""
        if _is_unused(self.path):
            _clear(self.path)

    @classmethod
    def open(cls, path: Path) -> RunFolder:
        """Return the folder of a run after verifying the files that never change.

        Raises:
            RunError: if it is not a run folder, or is damaged.
        """
        if not (path / CONFIG).is_file():
            if path.is_dir() and _is_unused(path):
                raise RunError(f"{path} contains a run that was interrupted while it was created: start it again")
            raise RunError(f"{path} is not a run folder: it has no {CONFIG}")
        folder = cls(path)
        manifest = folder.manifest
        if manifest is not None:
            manifest.verify(path, _created(manifest))
        return folder

    def alone(self) -> AbstractContextManager[None]:
        """Keep other processes out of the folder."""
        return alone_in(self.path)

    @property
    def manifest(self) -> Manifest | None:
        """The manifest; None for a folder of an earlier version without manifests."""
        manifest = Manifest.read(self.path)
        if manifest is None and "folder_format" in self.versions:
            raise RunError(
                f"{self.path / MANIFEST} is missing, so the files of the folder cannot be verified: restore it from a "
                "copy, or run it again"
            )
        return manifest

    def resumable(self) -> Manifest:
        """Return the manifest of a folder that this version can resume.

        Raises:
            RunError: if the run was started by an earlier version, whose options and checkpoints differ.
        """
        manifest = self.manifest
        if manifest is None or manifest.format != FORMAT:
            raise RunError(
                f"{self.path} was started by another version of Coterie and cannot be resumed: finish the run with "
                "that version, or run it again in another folder"
            )
        return manifest

    @property
    def diagnosis(self) -> Diagnosis | None:
        """The diagnosis that chose the method; None if the user named the method."""
        path = self.path / DIAGNOSIS
        try:
            return Diagnosis.from_json(path.read_text(encoding="utf-8")) if path.is_file() else None
        except (OSError, ValueError, ConfigError) as error:
            raise unreadable(path, error) from None

    @property
    def planned_rounds(self) -> int:
        """Number of rounds that the run was started with; 0 for a method without rounds."""
        return most_of(self.asked_config.get("rounds", 0))

    @property
    def asked_config(self) -> dict[str, Any]:
        """All options as in config.toml; options that depend on the data are `auto`."""
        return read_toml(self.path / CONFIG)

    @property
    def config(self) -> dict[str, Any]:
        """All options, with the values that were found for options that depend on the data, if known."""
        return self.asked_config | self.settled

    @property
    def fingerprint(self) -> str:
        """Digest of the data."""
        if "data_sha256" not in self.versions:
            raise RunError(f"{self.path / VERSIONS} has no digest of the data: the folder is damaged, run it again")
        return str(self.versions["data_sha256"])

    @property
    def versions(self) -> dict[str, Any]:
        """Content of versions.json."""
        return self._json(VERSIONS)

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / RESULT).is_file()

    @property
    def result(self) -> dict[str, Any]:
        """Content of result.json, after verifying the whole folder."""
        if not self.finished:
            raise RunError(f"{self.path} is not finished: continue it with 'coterie resume {self.path}'")
        manifest = self.manifest
        if manifest is None:
            warnings.warn(
                f"{self.path} was written by an earlier version, without {MANIFEST}: its files cannot be verified",
                stacklevel=3,
            )
        else:
            manifest.verify(self.path, sorted({*manifest.files, RESULT}))
        return self._json(RESULT)

    def _json(self, name: str) -> dict[str, Any]:
        try:
            facts = json.loads((self.path / name).read_bytes())
            if not isinstance(facts, dict):
                raise ValueError("it is not a JSON object")
        except (OSError, ValueError, RecursionError) as error:
            raise unreadable(self.path / name, error) from None
        return facts

    # ---- before the first round -----------------------------------------------------------------------------

    def trials(self) -> TrialLog:
        """Return the log of the run's finished trial runs."""
        return TrialLog(self.path / TRIALS, file_sha256(self.path / CONFIG))

    def initialize(self, found: Mapping[str, Any], settled: Mapping[str, Any], state: ServerState) -> None:
        """Store the findings of the initialisation, the options that it set, and the first state."""
        with writing(self.path / INITIALIZATION):
            if found or settled:
                write_json(self.path / INITIALIZATION, {**found, **({SETTLED: dict(settled)} if settled else {})})
            else:
                (self.path / INITIALIZATION).unlink(missing_ok=True)
        self.checkpoint(state)

    def initialize_again(self, found: Mapping[str, Any], settled: Mapping[str, Any], state: ServerState) -> None:
        """Discard all rounds and initialise the run again; see `initialize`."""
        self._records.cut(0)
        drop_others(self.path / CHECKPOINTS, None)
        drop_others(self.path / BEST, None)
        self.initialize(found, settled, state)

    @property
    def findings(self) -> dict[str, Any]:
        """Findings of the initialisation."""
        return {name: value for name, value in self._initialization().items() if name != SETTLED}

    @property
    def settled(self) -> dict[str, Any]:
        """Options that the initialisation set."""
        return dict(self._initialization().get(SETTLED, {}))

    def _initialization(self) -> dict[str, Any]:
        name = self._name_of(INITIALIZATION)
        return self._json(name) if (self.path / name).is_file() else {}

    def _name_of(self, name: str) -> str:
        """Return the name of a file in this folder, which an earlier version may have written."""
        earlier = EARLIER_NAMES[name]
        return earlier if (self.path / earlier).is_file() else name

    # ---- during the run -------------------------------------------------------------------------------------

    def append(self, record: RoundRecord) -> None:
        """Append a record; it is on the disk before the next checkpoint is."""
        self._records.append(json.dumps(record.to_json(), allow_nan=False).encode())

    def records(self) -> list[RoundRecord]:
        """Return all complete records from round 0 on, without an incomplete last line."""
        return _parsed(self._records.lines())

    def ask(self, round_: int) -> None:
        """Count a round in the ledger before the clients of a private run are asked; on the disk when it returns."""
        write_ledger(self.path, [*self.asked(), round_])

    def asked(self) -> list[int]:
        """Return the rounds of all calls of `ask`; repeated rounds appear several times."""
        return read_ledger(self.path)

    def checkpoint(self, state: ServerState, best: ServerState | None = None) -> None:
        """Write a checkpoint of the state, and before it one of `best`, the state with the final models, if given."""
        manifest = self.manifest
        facts: dict[str, Any] = {
            "records_sha256": self._records.digest,
            "initialization_sha256": self._digest_of_initialization(),
            "asked": len(self.asked()) if manifest is not None and manifest.ledger else 0,
        }
        with writing(self.path / CHECKPOINTS):
            if best is not None:
                facts["best"] = {"round": best.round, "sha256": save_checkpoint(self.path / BEST, best)}
            save_checkpoint(self.path / CHECKPOINTS, state, facts)

    def _digest_of_initialization(self) -> str | None:
        return file_sha256(self.path / INITIALIZATION) if (self.path / INITIALIZATION).is_file() else None

    def oldest_accepted(self) -> Tensor | None:
        """Return each client's last accepted round in the oldest checkpoint from which the run may resume, (m,).

        Returns None if there is no checkpoint.
        """
        return accepted_in_oldest(self.path / CHECKPOINTS)

    def last_state(self, warn: Callable[[str], None]) -> ResumePoint:
        """Return the newest checkpoint that fits the rest of the folder, and remove everything after it."""
        manifest = self.resumable()
        lines = self._records.lines()
        records = _parsed(lines)
        if manifest.ledger:
            check_ledger(self.path, self.asked(), len(records), self._counted())

        def check(facts: Facts) -> None:
            if facts["round"] > len(records) or sha256(joined(lines[: facts["round"]])) != facts["records_sha256"]:
                raise ValueError(f"{RECORDS} does not match it")
            if facts["initialization_sha256"] != self._digest_of_initialization():
                raise ValueError(f"{INITIALIZATION} does not match it")
            self._best_of(facts)

        found = newest_checkpoint(self.path / CHECKPOINTS, warn, check)
        state, facts = (None, {}) if found is None else found
        resume_point = ResumePoint(state, records[: 0 if state is None else state.round], self._best_of(facts))
        self._drop_after(resume_point, manifest)
        return resume_point

    def _counted(self) -> int:
        """Return the largest length of the ledger in a complete checkpoint."""
        counts = [0]
        for header in headers_in(self.path / CHECKPOINTS):
            with suppress(OSError, ValueError, KeyError):
                counts.append(int(read_checked_json(header)["asked"]))
        return max(counts)

    def _best_of(self, facts: Facts) -> ServerState | None:
        """Return the best state that a checkpoint names."""
        if "best" not in facts:
            return None
        header = self.path / BEST / f"round-{facts['best']['round']:06d}.json"
        try:
            found = read_checked_json(header)
            if found["sha256"] != facts["best"]["sha256"]:
                raise ValueError("it is not the one in the checkpoint")
            return read_state(header, found)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{BEST}/{header.name} is damaged: {error}") from None

    def _drop_after(self, resume_point: ResumePoint, manifest: Manifest) -> None:
        """Remove everything after the state from which the run continues."""
        with writing(self.path):
            replace(manifest, files={name: manifest.files[name] for name in _created(manifest)}).write(self.path)
        self._records.cut(len(resume_point.records))
        drop_others(self.path / CHECKPOINTS, resume_point.state)
        drop_others(self.path / BEST, resume_point.best)

    # ---- end of the run -------------------------------------------------------------------------------------

    def finish(self, models: Sequence[Params], result: Mapping[str, Any], extra: Params | None = None) -> None:
        """Write the final models and extra arrays, then the figures; a folder with result.json is complete."""
        arrays = {f"{k}/{name}": p for k, model in enumerate(models) for name, p in model.items()}
        last = {MODELS: tensor_bytes(arrays)} | ({EXTRA_ARRAYS: tensor_bytes(extra)} if extra else {})
        figures = json_bytes(result)
        manifest = self.manifest
        assert manifest is not None, "runs of earlier versions are never continued"
        with writing(self.path):
            for name, data in last.items():
                write_atomically(self.path / name, data)
            digests = {name: manifest.files[name] for name in _created(manifest)} | self._digests_so_far()
            digests |= {name: sha256(data) for name, data in (last | {RESULT: figures}).items()}
            replace(manifest, files=digests).write(self.path)
            write_atomically(self.path / RESULT, figures)
        remove_lock(self.path)

    def _digests_so_far(self) -> dict[str, str]:
        """Return the digests of the files that were written during the run."""
        paths = [self.path / name for name in (INITIALIZATION, LEDGER, RECORDS, "federation.json")]
        paths += [header for part in (CHECKPOINTS, BEST) for header in headers_in(self.path / part)]
        return {path.relative_to(self.path).as_posix(): file_sha256(path) for path in paths if path.is_file()}

    def extra_arrays(self) -> Params:
        """Return the extra arrays that `finish` received."""
        name = self._name_of(EXTRA_ARRAYS)
        return self._arrays(name) if (self.path / name).is_file() else {}

    def models(self) -> list[Params]:
        """Return the final models, one dict per cluster."""
        models: dict[int, Params] = {}
        for key, value in self._arrays(MODELS).items():
            index, _, name = key.partition("/")
            models.setdefault(int(index), {})[name] = value
        return [models[k] for k in sorted(models)]

    def _arrays(self, name: str) -> Params:
        try:
            arrays: Params = safetensors_load((self.path / name).read_bytes())
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise RunError(f"{self.path / name}: the final models cannot be read ({reason}); run it again") from None
        return arrays


def _created(manifest: Manifest) -> tuple[str, ...]:
    """Return the names of the files that never change after the creation."""
    return (*CREATED, DIAGNOSIS) if DIAGNOSIS in manifest.files else CREATED


def _parsed(lines: Sequence[bytes]) -> list[RoundRecord]:
    """Return the records from round 0 on, up to the first invalid line."""
    found: list[RoundRecord] = []
    for line in lines:
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            break
        if not isinstance(record, dict) or record.get("round") != len(found):
            break
        found.append(RoundRecord.from_json(record))
    return found


def _is_unused(path: Path) -> bool:
    """Return whether a folder contains only the creation of a run in which nothing was finished.

    versions.json is written first, so a folder with other files but without it is not a run folder.
    """
    names = names_in(path)
    if not names <= MADE_FIRST or not is_versions_file(path / VERSIONS):
        return False
    if LEDGER in names:
        try:
            if read_ledger(path):
                return False
        except RunError:
            return False
    return CHECKPOINTS not in names or all(name.endswith(".safetensors") for name in names_in(path / CHECKPOINTS))


def _clear(path: Path) -> None:
    """Remove the files of a creation; versions.json goes last, because it marks the others as ours."""
    with writing(path):
        if (path / CHECKPOINTS).is_dir():
            for arrays in (path / CHECKPOINTS).glob("round-*.safetensors"):
                arrays.unlink()
            (path / CHECKPOINTS).rmdir()
        for name in (CONFIG, MANIFEST, DIAGNOSIS, LEDGER, INITIALIZATION, VERSIONS):
            (path / name).unlink(missing_ok=True)


def read_toml(path: Path) -> dict[str, Any]:
    """Return the content of a TOML file.

    Raises:
        RunError: if it cannot be read; the message names the file.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RunError(f"{path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path} is not valid TOML: {' '.join(str(error).split())}") from None


def versions() -> dict[str, Any]:
    """Return the versions and settings that must be the same for a bit-identical repetition."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "threads": torch.get_num_threads(),
        **_package_versions(),
    }


@cache
def _package_versions() -> Mapping[str, str]:
    """Return the versions of the packages that results depend on; reading them takes milliseconds."""
    names = ("coterie", "torch", "numpy", "scipy", "scikit-learn", "safetensors")
    return {name: version(name) for name in names}
