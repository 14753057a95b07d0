"""Arithmetic of the scoreboard: means over seeds, ranks, shares of the oracle's gain, errors in K."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, isfinite
from statistics import fmean

from benchmarks.scoreboard.cells import SEPARATOR
from benchmarks.scoreboard.entries import ENTRIES, Entry, Knows
from benchmarks.scoreboard.scenarios import Scenario
from coterie.experiments.reproduction import Figures, Found

CLEAR = {"accuracy": 0.02, "rmse": 0.05}
"""Least gain of the oracle over fedavg for which shares are computed: two points of accuracy, 5 % of the RMSE."""
LEAST_SHARE = -1.0
"""A share counts at least this much in a mean over scenarios, so that one failure does not decide it."""
NEARLY_ALL = 0.95


def ranks(values: Mapping[str, float]) -> dict[str, float]:
    """Return the rank of each name, 1 for the highest value; equal values share the mean of their ranks."""
    return {
        name: 1 + sum(other > value for other in values.values()) + (list(values.values()).count(value) - 1) / 2
        for name, value in values.items()
    }


def share_of_gain(value: float, low: float, high: float) -> float:
    """Return how much of the way from low (fedavg) to high (the oracle) a value is; it may be negative or above 1."""
    return (value - low) / (high - low)


def mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are known, None if there is none."""
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


@dataclass(frozen=True)
class Standing:
    """All finished cells of a board."""

    found: Found
    """Figures by cell name, then by seed."""
    scenarios: Mapping[str, Scenario]

    @cached_property
    def runs(self) -> dict[tuple[str, str], list[Figures]]:
        """Figures of the runs by scenario and row; refusals are left out."""
        runs = {}
        for name, seeds in self.found.items():
            scenario, _, method = name.partition(SEPARATOR)
            sound = [figures for _, figures in sorted(seeds.items()) if "refused" not in figures]
            if scenario in self.scenarios and method in ENTRIES and sound:
                runs[scenario, method] = sound
        return runs

    @property
    def entries(self) -> list[Entry]:
        """The rows that were run anywhere, yardsticks first and then by mean rank."""
        there = [entry for name, entry in ENTRIES.items() if any(method == name for _, method in self.runs)]
        return sorted(there, key=lambda entry: (entry.knows is not Knows.TRUTH, self.mean_rank(entry.name) or inf))

    @property
    def names(self) -> list[str]:
        """Scenarios in which anything was run, in the order of the board."""
        return [name for name in self.scenarios if any(scenario == name for scenario, _ in self.runs)]

    @property
    def versions(self) -> Mapping[str, Sequence[str]]:
        """Rows by the version of the code that made their cells; a row may be in several."""
        made: dict[str, set[str]] = {}
        for (_, method), runs in self.runs.items():
            for figures in runs:
                made.setdefault(str(figures["version"]), set()).add(method)
        return {version: [name for name in ENTRIES if name in made[version]] for version in sorted(made)}

    @property
    def seeds(self) -> list[int]:
        """Seeds of all cells."""
        return sorted({seed for seeds in self.found.values() for seed in seeds})

    def refusals(self) -> int:
        """Return the number of cells in which the method could not be used on the data."""
        return sum("refused" in figures for seeds in self.found.values() for figures in seeds.values())

    def mean_of(self, scenario: str, method: str, figure: str) -> float | None:
        """Return the mean of a figure over seeds."""
        return mean(figures.get(figure) for figures in self.runs.get((scenario, method), []))

    def diverged(self, scenario: str, method: str) -> bool:
        """Whether the training diverged with any seed."""
        return any(run.get("diverged") or run["score"] is None for run in self.runs.get((scenario, method), []))

    def value(self, scenario: str, method: str, figure: str = "score") -> float | None:
        """Return what is ranked: the mean accuracy, or the negative mean RMSE; -inf if the training diverged."""
        runs = self.runs.get((scenario, method))
        if runs is None:
            return None
        if self.diverged(scenario, method):
            return -inf
        found = self.mean_of(scenario, method, figure)
        return -found if found is not None and runs[0]["unit"] == "rmse" else found

    @cached_property
    def ranking(self) -> dict[str, dict[str, float]]:
        """Ranks by scenario and row, among all rows that do not know the true groups."""
        found = {}
        for scenario in self.names:
            values = {
                name: value
                for name, entry in ENTRIES.items()
                if entry.knows is not Knows.TRUTH and (value := self.value(scenario, name)) is not None
            }
            found[scenario] = ranks(values)
        return found

    def mean_rank(self, method: str, family: str | None = None) -> float | None:
        """Return the mean rank of a row over the scenarios (of a family) in which it was run."""
        return mean(of.get(method) for name, of in self.ranking.items() if self._is_in(name, family))

    def share(self, scenario: str, method: str, figure: str = "score") -> float | None:
        """Return the share of the oracle's gain over fedavg; None where the oracle gains little or nothing."""
        low, high = self.value(scenario, "fedavg"), self.value(scenario, "oracle")
        if low is None or high is None or not isfinite(low) or not isfinite(high):
            return None
        rmse = self.runs[scenario, "fedavg"][0]["unit"] == "rmse"
        if high - low < (CLEAR["rmse"] * -low if rmse else CLEAR["accuracy"]):
            return None
        ends = self.value(scenario, "fedavg", figure), self.value(scenario, "oracle", figure)
        own = self.value(scenario, method, figure)
        if own is None or ends[0] is None or ends[1] is None or ends[1] <= ends[0]:
            return None
        return share_of_gain(own, ends[0], ends[1]) if isfinite(own) else LEAST_SHARE

    def shares(self, method: str, family: str | None = None, figure: str = "score") -> list[float]:
        """Return the shares over all scenarios with clear groups, each at least `LEAST_SHARE`."""
        found = [self.share(name, method, figure) for name in self.names if self._is_in(name, family)]
        return [max(share, LEAST_SHARE) for share in found if share is not None]

    def count_error(self, method: str) -> float | None:
        """Return the mean of |K - true K| over the runs on two groups or more."""
        return mean(
            abs(run["clusters"] - run["groups"])
            for run in self._runs_of(method)
            if (run["groups"] or 0) > 1 and run.get("clusters") is not None
        )

    def split_alike(self, method: str) -> tuple[int, int] | None:
        """Return in how many of the runs on clients that are all alike there was more than one cluster."""
        alike = [name for name in self.names if self.scenarios[name].alike]
        counts = [run["clusters"] for name in alike for run in self.runs.get((name, method), []) if "clusters" in run]
        return (sum(count > 1 for count in counts), len(counts)) if counts else None

    def mean_over(self, method: str, figure: str, family: str | None = None) -> float | None:
        """Return the mean of a figure over all runs (of a family)."""
        return mean(run.get(figure) for run in self._runs_of(method, family))

    def _runs_of(self, method: str, family: str | None = None) -> Sequence[Figures]:
        names = [name for name in self.names if self._is_in(name, family)]
        return [run for name in names for run in self.runs.get((name, method), [])]

    def _is_in(self, scenario: str, family: str | None) -> bool:
        return family is None or self.scenarios[scenario].family == family
