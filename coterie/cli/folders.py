"""Where commands put their runs, and what they say when they are interrupted."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coterie.cli.terminal import Terminal, on_one_line
from coterie.errors import CoterieError, StorageError, from_system


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, ... if that is taken."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


@contextmanager
def kept(folder: Path, console: Terminal) -> Iterator[None]:
    """Say how to continue after an interruption."""
    try:
        yield
    except KeyboardInterrupt:
        again = f"continue with '{command('resume', folder)}'" if folder.exists() else "nothing was written yet"
        console.print(f"interrupted; {again}", soft_wrap=True)
        sys.exit(130)


@contextmanager
def complete(folder: Path) -> Iterator[None]:
    """Say in any failure to show or store a result that the runs themselves are complete, and where."""
    try:
        yield
    except Exception as error:
        cause = from_system(error)
        if cause is None:
            raise
        kind = type(cause) if isinstance(error, CoterieError) else StorageError
        raise kind(f"{cause}; nothing is lost: the finished runs are in {on_one_line(folder)}") from error


def command(name: str, folder: Path) -> str:
    """Return the command for a folder, as a shell takes it."""
    return f"coterie {name} {on_one_line(shlex.quote(str(folder)))}"
