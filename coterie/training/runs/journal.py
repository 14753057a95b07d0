"""Files to which lines are appended: the records of a run, and the results of its trial runs."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.files import append_line, write_atomically
from coterie.training.runs.files import CHECKSUM, sha256, unreadable, writing


class Journal:
    """A file of lines with the SHA-256 of its whole content.

    An incomplete line, which a killed process left without an end, does not count.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._digest = hashlib.sha256()
        self._known = False

    def lines(self) -> list[bytes]:
        """Return all complete lines; an empty list if there is no file.

        Raises:
            RunError: if the file cannot be read.
        """
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise unreadable(self.path, error) from None
        return data.split(b"\n")[:-1]

    def append(self, line: bytes) -> None:
        """Append a line; it is on the disk when this method returns."""
        self._read()
        with writing(self.path):
            append_line(self.path, line)
        self._digest.update(line + b"\n")

    def cut(self, count: int) -> None:
        """Keep the first `count` lines and remove all others."""
        text = joined(self.lines()[:count])
        with writing(self.path):
            write_atomically(self.path, text)
        self._digest, self._known = hashlib.sha256(text), True

    @property
    def digest(self) -> str:
        """SHA-256 of all lines."""
        self._read()
        return self._digest.hexdigest()

    def _read(self) -> None:
        if not self._known:
            self._digest, self._known = hashlib.sha256(joined(self.lines())), True


def joined(lines: list[bytes]) -> bytes:
    """Return the content of a file with these lines."""
    return b"".join(line + b"\n" for line in lines)


class TrialLog:
    """The results of finished trial runs, so that an interrupted choice of the number of clusters can be continued.

    Each line contains a checksum that also covers the previous line. Trial runs from the first damaged line on are
    repeated. `run` is a digest of the run's options, which the first checksum covers: lines of another run do not
    count.
    """

    def __init__(self, path: Path, run: str) -> None:
        self._journal = Journal(path)
        self._run = self._last = run

    def read(self) -> list[dict[str, Any]]:
        """Return the results in the order of `append` up to the first damaged line, and remove everything after it."""
        found: list[dict[str, Any]] = []
        before = self._run
        lines = self._journal.lines()
        for line in lines:
            try:
                value = json.loads(line)
                mark = value.pop(CHECKSUM)
            except (ValueError, RecursionError, AttributeError, KeyError, TypeError):
                break
            if mark != _chained(before, value):
                break
            found.append(value)
            before = mark
        if lines or self._journal.path.is_file():
            self._journal.cut(len(found))
        self._last = before
        return found

    def append(self, value: Mapping[str, Any]) -> None:
        """Append the next result."""
        mark = _chained(self._last, value)
        self._journal.append(json.dumps({**value, CHECKSUM: mark}, allow_nan=False).encode())
        self._last = mark


def _chained(before: str, value: Mapping[str, Any]) -> str:
    return sha256(before.encode() + json.dumps(value, sort_keys=True, allow_nan=False).encode())
