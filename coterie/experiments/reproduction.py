"""Parts of a reproduction: cells, which are measured, tables of the results, and claims, which hold or fail."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.errors import RunError
from coterie.options import plain_options
from coterie.training.fitting import carry_out, resume
from coterie.training.planning import prepare
from coterie.training.result import Result, load
from coterie.training.runs.folder import RunFolder

Figures = dict[str, Any]
"""Results of one cell as JSON values."""


class Cell(Protocol):
    """One measurement with one seed, small enough to be repeated after an interruption. Cells must be picklable."""

    @property
    def name(self) -> str:
        """Name of the measurement, which is the same for all seeds."""
        ...

    @property
    def seed(self) -> int:
        """Seed of the measurement."""
        ...

    @property
    def work(self) -> int:
        """Amount of work, in a unit that all cells of a reproduction share."""
        ...

    def done(self, folder: Path) -> int:
        """Return the finished part of `work`, from the files in a folder."""
        ...

    def measure(self, folder: Path) -> Figures:
        """Start or resume the measurement in a folder, which may not exist yet, and return its results."""
        ...


class AtOnce:
    """Base class of cells that store no partial results, and take about as long as each other."""

    @property
    def work(self) -> int:
        """One unit of work."""
        return 1

    def done(self, folder: Path) -> int:
        """Return 0: there are no partial results."""
        return 0


Measure = Callable[["RunCell", FederatedDataset, Result], Figures]
"""Function that returns the figures of a cell from its data and its result."""


@dataclass(frozen=True)
class RunCell:
    """A cell that is one run of a method on a scenario, and returns figures of its result."""

    name: str
    seed: int
    scenario: str
    scenario_options: Mapping[str, Any]
    method: str
    options: Mapping[str, Any]
    take: Measure
    """Function that returns the figures; it must be defined at the top level of a module."""

    @property
    def work(self) -> int:
        """Number of rounds."""
        return int(self.options["rounds"])

    def done(self, folder: Path) -> int:
        """Return the number of finished rounds."""
        records = folder / "records.jsonl"
        return records.read_bytes().count(b"\n") if records.is_file() else 0

    def measure(self, folder: Path) -> Figures:
        """Run, resume or load the run in `folder`, and return its figures."""
        data = scenario(self.scenario, seed=self.seed, **self.scenario_options)
        return self.take(self, data, self._result(data, folder))

    def _result(self, data: FederatedDataset, folder: Path) -> Result:
        plan = prepare(data, self.method, None, {**self.options, "seed": self.seed})
        if not (folder / "config.toml").is_file():
            return carry_out(plan, folder)
        run = RunFolder.open(folder)
        # an option that was added after the run was started had its default value
        defaults = {option.name: option.default for option in plan.method.options()} | type(plan.method)().to_options()
        before = plain_options(defaults) | run.asked_config
        other = [name for name, value in plan.config.items() if before.get(name) != value]
        if other:
            raise RunError(f"{folder} has a run with other options ({', '.join(other)}): move or delete the folder")
        return load(folder) if run.finished else resume(folder, data, warn=lambda text: None)


@dataclass(frozen=True)
class Table:
    """A table of texts, whose first column has the names of the rows."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]


Verdict = Literal["holds", "does not hold", "undecided", "not run"]
"""Verdict on a claim; it is undecided if the figures differ by no more than two runs of the same method may."""


@dataclass(frozen=True)
class Claim:
    """A claim of a paper or an expected property, and whether the results confirm it."""

    text: str
    """The claim."""
    holds: bool | None
    """Whether the figures agree with the claim; None if too few cells have been run."""
    evidence: str
    """Figures that the verdict is based on."""
    decided: bool = True
    """Whether the difference is larger than that between two runs of the same method."""

    @property
    def verdict(self) -> Verdict:
        """Verdict in words."""
        if self.holds is None:
            return "not run"
        if not self.decided:
            return "undecided"
        return "holds" if self.holds else "does not hold"


@dataclass(frozen=True)
class Explanation:
    """Reason why claims do not hold, or the statement of the paper that they are readings of."""

    fragment: str
    """Text that the claims contain; of several explanations of a claim the first one counts."""
    reason: str = ""
    """Probable reason if they do not hold, as a sentence."""
    statement: str = ""
    """Statement of the paper of which each of the claims is one reading; empty if each claim is a statement."""


Found = Mapping[str, Mapping[int, Figures]]
"""Figures by cell name, then by seed."""


Picture = str
"""Text of an SVG file."""


@dataclass(frozen=True)
class Reproduction:
    """Reproduction of one figure or table of a paper."""

    name: str
    title: str
    paper: str
    notes: str
    """Interpretation of the paper, and differences from it."""
    needs: Sequence[str]
    """Data sets that must be stored on this machine."""
    cells: Callable[[int, bool], Sequence[Cell]]
    """Function of the number of seeds, and whether the version is quick, that returns the cells."""
    seeds: int
    """Default number of seeds."""
    quick_seeds: int
    """Number of seeds of the quick version."""
    tables: Callable[[Found, bool], Sequence[Table]]
    """Function of the results, and whether the version is quick, that returns the tables."""
    claims: Callable[[Found, bool], Sequence[Claim]]
    """Function of the results, and whether the version is quick, that returns the claims."""
    family: str = ""
    """Name of a family of reproductions that share cells, so that each cell is run only once for all of them."""
    explanations: tuple[Explanation, ...] = ()
    """Explanations of claims that do not hold or are readings of the same statement."""
    paces: Mapping[str, float] = field(default_factory=dict)
    """Measured seconds for one unit of work of cells whose name contains the key, where none has been finished."""
    picture: Callable[[Found], Picture] | None = None
    """Function of the results that returns a picture, as SVG, next to the paper's figures where it has numbers."""

    @property
    def kept_as(self) -> str:
        """Name under which cells and runs are stored."""
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
    """Return mean, standard deviation (n - 1) and number of values as text, such as `95.12 ± 0.03 (2)`."""
    if not values:
        return NOT_RUN
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f} (1)"
    deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} ± {deviation:.{digits}f} ({len(values)})"


def values_of(found: Found, cell: str, figure: str) -> list[float]:
    """Return a figure of a cell for all its seeds, in their order; empty if the cell was not run."""
    return [figures[figure] for _, figures in sorted(found.get(cell, {}).items()) if figure in figures]


def mean_of(found: Found, cell: str, figure: str) -> float | None:
    """Return the mean of a figure over seeds; None if the cell was not run."""
    values = values_of(found, cell, figure)
    return sum(values) / len(values) if values else None
