"""Folders in which the processes of a cluster look for the modules of jobs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from distributed import Worker, WorkerPlugin


def module_folders() -> tuple[str, ...]:
    """Return the folders in which this process finds modules."""
    return tuple(str(Path(folder).absolute()) for folder in sys.path)


def search_also(folders: Sequence[str]) -> None:
    """Look for modules in these folders, too."""
    sys.path += [folder for folder in folders if folder not in sys.path]


@dataclass
class ModuleFolders(WorkerPlugin):
    """Plugin of Dask by which workers, also those that join later, find modules in further folders."""

    folders: tuple[str, ...]

    def setup(self, worker: Worker) -> None:
        """Add the folders in a worker that starts."""
        search_also(self.folders)
