"""How far rounding moves each family of results: the same cell with one thread and with two.

With two threads sums are added in another order. A difference in the last digit can grow over many rounds, most of all
where a client is between two clusters. Cells that were stored ran with one thread.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from coterie.experiments.reproduce import find_reproduction
from coterie.experiments.reproduction import AtOnce, Cell, Claim, Figures, Found, Reproduction, Table
from papers.differences import TOLERANCE, largest_difference

CELLS = (
    ("ifca-figure3", "(a) k=2 sigma=0.1 R=1 m=40 n=50 d=200"),
    ("su-theory", "d=20 m=40d l=25"),
    ("su-private", "sigma=0.1"),
    ("odcl-figure2", "n=300"),
    ("odcl-figure3", "n=1000"),
    ("odcl-figure4", "n=200"),
    ("odcl-table2", "digits iid IFCA-2, models"),
    ("odcl-table3", "K=4, D.2 models"),
    ("odcl-figure5", "n=400"),
    ("odcl-theorem2", "T=1000"),
    ("odcl-few-shot", "rotated-digits mlp, random starts"),
    ("hcfl-reference", "A FedSoft"),
    ("hcfl-reference", "C FedEM"),
    ("hcfl-knobs", "HCFL+(FedRC), as it is"),
    ("hcfl-appendix-b", "noise 1.0"),
    ("hcfl-table1", "CIFAR-10, beta 0.2, IFCA"),
    ("hcfl-table1", "CIFAR-10, beta 0.2, HCFL+(FedRC), rho 0.3"),
    ("grouped-regression", "grunfeld two-phase K=3"),
)
"""A cheap cell of each family, by reproduction and name."""
QUICK = 6
"""Number of cells in the quick version."""


@dataclass(frozen=True)
class Twice(AtOnce):
    """A cell: another cell, run with one thread and with two."""

    reproduction: str
    other: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.reproduction}: {self.other}"

    def measure(self, folder: Path) -> Figures:
        cells = find_reproduction(self.reproduction).cells(self.seed + 1, False)
        cell = next(each for each in cells if (each.name, each.seed) == (self.other, self.seed))
        before, figures = torch.get_num_threads(), []
        try:
            for threads in (1, 2):
                torch.set_num_threads(threads)
                figures.append(cell.measure(folder / f"{threads} threads"))
        finally:
            torch.set_num_threads(before)
        found = largest_difference(*figures)
        relative = found.relative if math.isfinite(found.relative) else None
        return {"figure": found.figure, "one": found.stored, "two": found.now, "relative": relative}


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells of all families."""
    return [Twice(name, cell, seed) for seed in range(seeds) for name, cell in (CELLS[:QUICK] if quick else CELLS)]


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a row for each cell: the figure that moves most."""
    rows = []
    for cell in cells(1, quick):
        for _, figures in sorted(found.get(cell.name, {}).items()):
            relative = figures["relative"]
            size = "another value" if relative is None else f"{relative:.1e}" if relative else "0"
            moved = [figures["figure"], str(figures["one"]), str(figures["two"])] if relative != 0 else ["none", "", ""]
            rows.append([cell.name, *moved, size])
        if cell.name not in found:
            rows.append([cell.name, "not run", "", "", ""])
    header = ["reproduction and cell", "figure that moves most", "one thread", "two threads", "relative difference"]
    return [Table("The same cell with one thread and with two", header, rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return for each cell the claim that it does not move."""
    made = []
    for cell in cells(1, quick):
        runs = [figures["relative"] for figures in found.get(cell.name, {}).values()]
        same = all(relative is not None and relative <= TOLERANCE for relative in runs) if runs else None
        shown = ", ".join("another value" if relative is None else f"{relative:.1e}" for relative in runs)
        made.append(Claim(f"{cell.name}: no figure moves by more than {TOLERANCE:g}", same, shown or "not run"))
    return made


REPRODUCTION = Reproduction(
    "rounding",
    "How far rounding moves the results",
    "all families of results",
    "One cheap cell of each family. `hcfl-rounding` has more runs of HCFL's tables, which move most. A cell that does "
    "not move can still do so on another machine, whose products add in another order.",
    ("mnist", "fashion-mnist", "cifar10"),
    cells,
    seeds=1,
    quick_seeds=1,
    tables=tables,
    claims=claims,
)
