"""The papers' figures and tables, run again: theirs beside ours, and whether each claim holds."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from coterie.errors import unknown_name
from coterie.processes import leave_if_importing_main
from coterie.reproductions import (
    grouped_regression,
    hcfl_ablations,
    hcfl_appendix_b,
    hcfl_clusters,
    hcfl_comparisons,
    hcfl_full,
    hcfl_knobs,
    hcfl_reference,
    ifca_figure3,
    ifca_figure4,
    ifca_table1,
    ifca_table2,
    odcl_few_shot,
    odcl_rounds,
    odcl_synthetic,
    odcl_table2,
    su_mixed,
)
from coterie.reproductions.base import Cell, Claim, Figures, Found, Reproduction, Table
from coterie.reproductions.page import page
from coterie.reproductions.results import read
from coterie.reproductions.running import OnCell, OnProgress, open_cells, run_cells

__all__ = [
    "REPRODUCTIONS",
    "Cell",
    "Claim",
    "Figures",
    "Findings",
    "Found",
    "Reproduction",
    "Table",
    "find_reproduction",
    "open_cells",
    "page",
    "read",
    "reproduce",
    "run_cells",
]

REPRODUCTIONS: dict[str, Reproduction] = {
    reproduction.name: reproduction
    for reproduction in (
        ifca_figure3.REDUCED_SIZE,
        ifca_figure3.PAPER_SIZE,
        ifca_table1.REPRODUCTION,
        ifca_figure4.REPRODUCTION,
        ifca_table2.REPRODUCTION,
        *su_mixed.REPRODUCTIONS,
        *odcl_synthetic.REPRODUCTIONS,
        odcl_table2.REPRODUCTION,
        *odcl_rounds.REPRODUCTIONS,
        odcl_few_shot.REPRODUCTION,
        hcfl_reference.REPRODUCTION,
        hcfl_knobs.REPRODUCTION,
        hcfl_appendix_b.REPRODUCTION,
        *hcfl_full.REPRODUCTIONS,
        *hcfl_comparisons.REPRODUCTIONS,
        *hcfl_ablations.REPRODUCTIONS,
        *hcfl_clusters.REPRODUCTIONS,
        grouped_regression.REPRODUCTION,
    )
}


def find_reproduction(name: str) -> Reproduction:
    """By name, or an error that names the nearest one."""
    if name not in REPRODUCTIONS:
        raise unknown_name("reproduction", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]


@dataclass(frozen=True)
class Findings:
    """What a reproduction found, as far as it has been run."""

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
    results: str | Path = "reproductions.jsonl",
    on_start: Callable[[Sequence[Cell]], None] = lambda cells: None,
    on_progress: OnProgress = lambda cell, done: None,
    on_cell: OnCell = lambda cell, figures, seconds: None,
) -> Findings:
    """Run what is missing of one of the papers' figures or tables, and say what holds.

    quick: a small version that ends in a minute or two and leaves nothing behind.
    seeds: seeds (trials) for each cell; only: cells whose name contains this text; jobs: processes side by side.
    out: folder of the runs, from which an interrupted cell goes on. results: file to which finished cells are added.
    """
    leave_if_importing_main()
    reproduction = find_reproduction(name)
    kept = reproduction.kept_as
    seeds = seeds or (reproduction.quick_seeds if quick else reproduction.seeds)
    with tempfile.TemporaryDirectory() as scratch:
        folder, file = (Path(scratch), Path(scratch) / "results.jsonl") if quick else (Path(out) / kept, Path(results))
        cells = open_cells(reproduction, read(file, kept), seeds, quick, only)
        on_start(cells)
        failed = run_cells(reproduction, cells, folder, file, jobs, on_progress, on_cell)
        found = read(file, kept)
    return Findings(reproduction.tables(found, quick), reproduction.claims(found, quick), failed)
