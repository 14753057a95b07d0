"""Where commands put their runs, and what they say when they are interrupted."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2, -3, ... if that is taken."""
    folder, number = Path("runs") / name, 1
    while folder.exists():
        number += 1
        folder = Path("runs") / f"{name}-{number}"
    return folder


@contextmanager
def kept(folder: Path, console: Console) -> Iterator[None]:
    """An interruption says how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        console.print(f"interrupted; go on with 'coterie resume {folder}'", highlight=False, soft_wrap=True)
        sys.exit(130)
