"""Reproductions of figures and tables of papers, which are in the folder `papers` of the repository."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import unknown_name
from coterie.experiments.checkout import CHECKOUT, import_from_checkout
from coterie.experiments.pools import chosen_pool
from coterie.experiments.processes import leave_if_importing_main
from coterie.experiments.reproducing import OnCell, OnProgress, open_cells, run_cells
from coterie.experiments.reproduction import Cell, Claim, Paper, Reproduction, Table
from coterie.experiments.results import read

FOLDER = "papers"
RESULTS = CHECKOUT / FOLDER / "reproductions.jsonl"
"""File of finished cells, which is in the checkout and independent of the current folder."""


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
    """Return the reproduction of this name.

    Raises:
        ConfigError: if the name is unknown; the message suggests the nearest one.
    """
    known = reproductions()
    if name not in known:
        raise unknown_name("reproduction", name, known)
    return known[name]


@dataclass(frozen=True)
class Findings:
    """Results of a reproduction so far."""

    tables: Sequence[Table]
    """Tables of the results next to those of the paper."""
    claims: Sequence[Claim]
    """Claims with their verdicts."""
    failed: Sequence[str]
    """One line for each cell that failed."""


def reproduce(
    name: str,
    *,
    quick: bool = False,
    seeds: int | None = None,
    only: str | None = None,
    jobs: int | None = None,
    workers: str | None = None,
    executor: Executor | None = None,
    out: str | Path = "runs/reproduce",
    results: str | Path = RESULTS,
    on_start: Callable[[Sequence[Cell]], None] = lambda cells: None,
    on_progress: OnProgress = lambda cell, done: None,
    on_cell: OnCell = lambda cell, figures, seconds: None,
) -> Findings:
    """Run the unfinished cells of the reproduction of a figure or table, and check its claims.

    Args:
        name: Name of the reproduction, as `coterie reproduce` lists it.
        quick: Whether to run a small version, which takes one or two minutes and stores nothing.
        seeds: Number of seeds (trials) of each cell; by default the number that `coterie reproduce` lists.
        only: Run only cells whose name contains this text.
        jobs: Number of worker processes on this machine; by default one for each core.
        workers: Workers that share the cells, as in `coterie.compare`.
        executor: As in `coterie.compare`.
        out: Folder of the runs, from which interrupted cells are resumed.
        results: File to which finished cells are added; by default papers/reproductions.jsonl of the checkout.
        on_start: Function that is called with the cells that will be run.
        on_progress: Function that is called repeatedly with a cell and its finished work.
        on_cell: Function that is called with each finished cell, its figures and its duration in seconds.

    Returns:
        The tables, the claims and the cells that failed.

    Raises:
        ConfigError: if the name is unknown, or the package does not run from a checkout of the repository.

    Example:
        >>> import coterie
        >>> findings = coterie.reproduce("ifca-figure3", quick=True)  # doctest: +SKIP
        >>> [claim.text for claim in findings.claims if claim.holds is False]  # doctest: +SKIP
    """
    leave_if_importing_main()
    pool = chosen_pool(jobs, workers, executor)
    reproduction = find_reproduction(name)
    key = reproduction.kept_as
    seeds = seeds or (reproduction.quick_seeds if quick else reproduction.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = (Path(scratch), Path(scratch) / "results.jsonl") if quick else (Path(out) / key, Path(results))
        cells = open_cells(reproduction, read(file, key), seeds, quick, only)
        on_start(cells)
        failed = run_cells(key, cells, folder, file, pool, on_progress, on_cell)
        found = read(file, key)
    return Findings(reproduction.tables(found, quick), reproduction.claims(found, quick), failed)
