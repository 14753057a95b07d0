"""What a reproduction is made of: cells that are measured, tables beside the paper's, claims that hold or do not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.errors import RunError
from coterie.options import plain_options
from coterie.training.fitting import carry_out, resume
from coterie.training.planning import prepare
from coterie.training.result import Result, load
from coterie.training.runs.folder import RunFolder

Figures = dict[str, Any]
"""What one cell found, ready for JSON."""


class Cell(Protocol):
    """One measurement with one seed, small enough to be repeated when it was interrupted. Must survive pickling."""

    @property
    def name(self) -> str:
        """What is measured, the same for all seeds."""
        ...

    @property
    def seed(self) -> int: ...

    @property
    def work(self) -> int:
        """How long it takes, in units that are alike within one reproduction."""
        ...

    def done(self, folder: Path) -> int:
        """How much of `work` a folder shows as done."""
        ...

    def measure(self, folder: Path) -> Figures:
        """Do it, or go on with it; `folder` is its own and may not exist yet."""
        ...


class AtOnce:
    """A cell that is done at once or not at all, and takes about as long as the others."""

    @property
    def work(self) -> int:
        return 1

    def done(self, folder: Path) -> int:
        return 0


Measure = Callable[["RunCell", FederatedDataset, Result], Figures]


@dataclass(frozen=True)
class RunCell:
    """A cell that is one run of one method on one scenario, and figures taken from its result."""

    name: str
    seed: int
    scenario: str
    scenario_options: Mapping[str, Any]
    method: str
    options: Mapping[str, Any]
    take: Measure
    """From the result to the figures; a function at the top of a module."""

    @property
    def work(self) -> int:
        return int(self.options["rounds"])

    def done(self, folder: Path) -> int:
        records = folder / "records.jsonl"
        return records.read_bytes().count(b"\n") if records.is_file() else 0

    def measure(self, folder: Path) -> Figures:
        """Run, or go on with the run in `folder`, or take a run that is finished there."""
        data = scenario(self.scenario, seed=self.seed, **self.scenario_options)
        return self.take(self, data, self._result(data, folder))

    def _result(self, data: FederatedDataset, folder: Path) -> Result:
        plan = prepare(data, self.method, None, {**self.options, "seed": self.seed})
        if not (folder / "config.toml").is_file():
            return carry_out(plan, folder)
        run = RunFolder.open(folder)
        # an option that is younger than the run had its default there
        defaults = {option.name: option.default for option in plan.method.options()} | type(plan.method)().to_options()
        before = plain_options(defaults) | run.asked_config
        other = [name for name, value in plan.config.items() if before.get(name) != value]
        if other:
            raise RunError(f"{folder} holds another run ({', '.join(other)} differ): move it away")
        return load(folder) if run.finished else resume(folder, data, warn=lambda text: None)


@dataclass(frozen=True)
class Table:
    """Text cells, the first column names the row."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Claim:
    """Something the paper says, or that should hold, and what was found."""

    text: str
    holds: bool | None
    """None: not enough has been run to tell."""
    evidence: str


Found = Mapping[str, Mapping[int, Figures]]
"""Figures by cell name, then by seed."""


@dataclass(frozen=True)
class Reproduction:
    """One figure or table of a paper."""

    name: str
    title: str
    paper: str
    notes: str
    """How the paper was read, and what differs from it."""
    needs: Sequence[str]
    """Data sets that must be at hand."""
    cells: Callable[[int, bool], Sequence[Cell]]
    """The cells for so many seeds; the flag asks for the quick version."""
    seeds: int
    """How many seeds by default."""
    quick_seeds: int
    tables: Callable[[Found, bool], Sequence[Table]]
    claims: Callable[[Found, bool], Sequence[Claim]]
    family: str = ""
    """Reproductions of one family have cells in common: what one of them has run, the others need not run."""

    @property
    def kept_as(self) -> str:
        """The name under which cells and runs are kept."""
        return self.family or self.name


@dataclass(frozen=True)
class Paper:
    """A paper and the reproductions of its figures and tables."""

    name: str
    """Name of its page."""
    title: str
    citation: str
    """Authors, title and year, as a sentence."""
    reproductions: tuple[Reproduction, ...]


NOT_RUN = "not run"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """`95.12 ± 0.03 (2)`: mean, standard deviation (n - 1) and the number of seeds."""
    if not values:
        return NOT_RUN
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f} (1)"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} ± {deviation:.{digits}f} ({len(values)})"


def values_of(found: Found, cell: str, figure: str) -> list[float]:
    """One figure of a cell over its seeds, in their order; empty if it was not run."""
    return [figures[figure] for _, figures in sorted(found.get(cell, {}).items()) if figure in figures]


def mean_of(found: Found, cell: str, figure: str) -> float | None:
    """The mean over seeds, None if it was not run."""
    values = values_of(found, cell, figure)
    return sum(values) / len(values) if values else None
