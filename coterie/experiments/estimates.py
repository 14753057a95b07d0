"""Estimates of the time that unfinished cells of a reproduction take, from finished ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from coterie.experiments.reproduction import Cell, Reproduction
from coterie.experiments.results import Finished, read_lines


@dataclass(frozen=True)
class OpenCell:
    """A cell without a result."""

    reproduction: Reproduction
    cell: Cell
    seconds: float | None
    """Estimate of the time it takes; None if no cell of its kind has been measured."""


def open_cells_of(reproductions: Iterable[Reproduction], results: Path) -> list[OpenCell]:
    """Return the unfinished cells of reproductions, each once, with estimates."""
    lines = read_lines(results)
    finished = {(line.reproduction, line.cell, line.seed) for line in lines}
    everything = [(each, each.cells(each.seeds, False)) for each in reproductions]
    work: dict[str, dict[str, int]] = {}
    for reproduction, cells in everything:
        work.setdefault(reproduction.kept_as, {}).update({cell.name: cell.work for cell in cells})
    found: dict[tuple[str, str, int], OpenCell] = {}
    for reproduction, cells in everything:
        pace = Pace.of(reproduction, work[reproduction.kept_as], lines)
        for cell in cells:
            key = (reproduction.kept_as, cell.name, cell.seed)
            if key not in finished:
                found.setdefault(key, OpenCell(reproduction, cell, pace.seconds(cell)))
    return list(found.values())


@dataclass(frozen=True)
class Pace:
    """Measured times of the finished cells of a reproduction."""

    by_cell: dict[str, float]
    """Seconds of the cells of this name, the median over seeds."""
    each: float | None
    """Seconds for a unit of work, the median over all cells."""
    declared: Mapping[str, float]
    """Seconds for a unit of work of cells whose name contains the key."""

    @classmethod
    def of(cls, reproduction: Reproduction, work: Mapping[str, int], lines: Sequence[Finished]) -> Pace:
        """Return the pace of a reproduction; times that cover only the last part of a run do not count.

        Args:
            reproduction: The reproduction.
            work: Work of the cells by name, including those of reproductions that share cells with this one.
            lines: All finished cells.
        """
        times: dict[str, list[float]] = {}
        for line in lines:
            if line.reproduction == reproduction.kept_as and line.cell in work and not line.resumed:
                times.setdefault(line.cell, []).append(line.seconds)
        by_cell = {name: median(seconds) for name, seconds in times.items()}
        units = [seconds / work[name] for name, seconds in by_cell.items()]
        return cls(by_cell, median(units) if units else None, reproduction.paces)

    def seconds(self, cell: Cell) -> float | None:
        """Return the estimate for a cell."""
        if cell.name in self.by_cell:
            return self.by_cell[cell.name]
        declared = (pace for fragment, pace in self.declared.items() if fragment in cell.name)
        each = next(declared, self.each)
        return None if each is None else each * cell.work


def in_words(seconds: float) -> str:
    """Return a duration as text, such as `40 minutes`, `3 hours` or `12 days`."""
    for name, length in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {name}"
    return f"{seconds:.0f} seconds"
