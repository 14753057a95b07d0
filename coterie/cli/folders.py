"""Default folders of runs, and messages after interruptions and failures."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import CoterieError, StorageError, from_system


def free_folder(name: str) -> Path:
    """Return runs/NAME, or runs/NAME-2, -3, ... if that folder exists."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


@contextmanager
def resumable(folder: Path, console: Terminal) -> Iterator[None]:
    """After an interruption print how to continue, and exit with code 130."""
    try:
        yield
    except KeyboardInterrupt:
        again = f"continue with '{command('resume', folder)}'" if folder.exists() else "nothing has been written yet"
        console.print(f"interrupted; {again}", soft_wrap=True)
        sys.exit(130)


@contextmanager
def runs_complete(folder: Path) -> Iterator[None]:
    """Add to every error while a result is printed or stored that the runs are complete, and their folder."""
    try:
        yield
    except Exception as error:
        cause = from_system(error)
        if cause is None:
            raise
        kind = type(cause) if isinstance(error, CoterieError) else StorageError
        raise kind(f"{cause}; no result is lost: the finished runs are in {on_one_line(folder)}") from error


def command(name: str, folder: Path) -> str:
    """Return a command for a folder, quoted for a shell."""
    return f"coterie {name} {on_one_line(shlex.quote(str(folder)))}"
