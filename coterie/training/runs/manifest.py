"""The manifest of a run folder: the SHA-256 of every file that results depend on.

It is written before the file that completes a step: before config.toml, which completes the creation, and before
result.json, which completes the run. A kill between the two therefore leaves a step that is repeated, and never a file
that does not match.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.errors import RunError
from coterie.training.runs.files import file_sha256, read_checked_json, unreadable, write_checked_json

MANIFEST = "manifest.json"
FORMAT = 4
"""Version of the layout of a run folder. Folders of format 1 have no manifest; those of formats 2 and 3
have other names of files, options or arrays, so finished runs can be read but unfinished ones cannot be resumed."""


@dataclass(frozen=True)
class Manifest:
    """Names and digests of the files of a run folder."""

    files: Mapping[str, str]
    """SHA-256 of each file by its name relative to the folder."""
    ledger: bool = False
    """Whether the run must have a privacy ledger."""
    format: int = field(default=FORMAT)
    """Version of the layout."""

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """Return the manifest of a folder; None if it has none.

        Raises:
            RunError: if the manifest cannot be read.
        """
        path = folder / MANIFEST
        if not path.exists():
            return None
        try:
            facts = read_checked_json(path)
            return cls(dict(facts["files"]), bool(facts["ledger"]), int(facts["format"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise unreadable(path, error) from None

    def write(self, folder: Path) -> None:
        """Write manifest.json."""
        facts = {"format": self.format, "ledger": self.ledger, "files": dict(sorted(self.files.items()))}
        write_checked_json(folder / MANIFEST, facts)

    def verify(self, folder: Path, names: Iterable[str] | None = None) -> None:
        """Compare files with their digests; by default all files.

        Checkpoints may be missing, because a finished run does not need them.

        Raises:
            RunError: if a file is missing or damaged; the message names it.
        """
        for name in self.files if names is None else names:
            try:
                found = file_sha256(folder / name)
            except FileNotFoundError:
                if "/" in name:
                    continue
                raise RunError(f"{folder / name} is missing: restore it from a copy, or run it again") from None
            except OSError as error:
                raise unreadable(folder / name, error) from None
            if found != self.files.get(name):
                raise RunError(
                    f"{folder / name} is damaged and does not match {MANIFEST}: restore it from a copy, or run it again"
                )
