"""Reproductions of the papers' figures and tables, which live beside the package in the folder `papers`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import unknown_name
from coterie.experiments.checkout import CHECKOUT, import_from_checkout
from coterie.experiments.processes import leave_if_importing_main
from coterie.experiments.reproducing import OnCell, OnProgress, open_cells, run_cells
from coterie.experiments.reproduction import Cell, Claim, Paper, Reproduction, Table
from coterie.experiments.results import read

FOLDER = "papers"
RESULTS = CHECKOUT / FOLDER / "reproductions.jsonl"
"""The file of finished cells, which belongs to the checkout whatever the current folder is."""


def reproductions() -> Mapping[str, Reproduction]:
    """Return all reproductions by name.

    Raises:
        ConfigError: if the package does not run from a checkout of the repository.
    """
    found: Mapping[str, Reproduction] = import_from_checkout(FOLDER, "the reproductions are").REPRODUCTIONS
    return found


def papers() -> Sequence[Paper]:
    """Return all papers with their reproductions.

    Raises:
        ConfigError: if the package does not run from a checkout of the repository.
    """
    found: Sequence[Paper] = import_from_checkout(FOLDER, "the reproductions are").PAPERS
    return found


def find_reproduction(name: str) -> Reproduction:
    """Return the reproduction of this name; the error for an unknown name suggests the nearest one."""
    known = reproductions()
    if name not in known:
        raise unknown_name("reproduction", name, known)
    return known[name]


@dataclass(frozen=True)
class Findings:
    """Results of a reproduction, as far as it has been run."""

    tables: Sequence[Table]
    claims: Sequence[Claim]
    failed: Sequence[str]
    """Cells that could not be run, one line each."""


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: str | None = None,
    jobs: int | None = None,
    out: str | Path = "runs/reproduce",
    results: str | Path = RESULTS,
    on_start: Callable[[Sequence[Cell]], None] = lambda cells: None,
    on_progress: OnProgress = lambda cell, done: None,
    on_cell: OnCell = lambda cell, figures, seconds: None,
) -> Findings:
    """Run the missing cells of one of the papers' figures or tables, and judge its claims.

    Args:
        name: Name of the reproduction, as `coterie reproduce` lists it.
        quick: Run a small version that ends in a minute or two and leaves nothing behind.
        seeds: Number of seeds (trials) of each cell; by default as listed.
        only: Run only cells whose name contains this text.
        jobs: Number of worker processes; by default one for each core.
        out: Folder of the runs, from which an interrupted cell resumes.
        results: File to which finished cells are added; by default papers/reproductions.jsonl of the checkout.
        on_start: Called with the cells that will be run.
        on_progress: Called with a cell and the rounds it has done.
        on_cell: Called with each finished cell, its figures and its seconds.

    Returns:
        The tables, the claims and the cells that failed.

    Raises:
        ConfigError: if the name is unknown, or the package does not run from a checkout of the repository.
    """
    leave_if_importing_main()
    reproduction = find_reproduction(name)
    kept = reproduction.kept_as
    seeds = seeds or (reproduction.quick_seeds if quick else reproduction.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = (Path(scratch), Path(scratch) / "results.jsonl") if quick else (Path(out) / kept, Path(results))
        cells = open_cells(reproduction, read(file, kept), seeds, quick, only)
        on_start(cells)
        failed = run_cells(kept, cells, folder, file, jobs, on_progress, on_cell)
        found = read(file, kept)
    return Findings(reproduction.tables(found, quick), reproduction.claims(found, quick), failed)
