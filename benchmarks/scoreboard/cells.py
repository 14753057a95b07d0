"""The cells of the scoreboard: one method on one scenario with one seed."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

import coterie
from benchmarks.scoreboard.drawing import Drawn
from benchmarks.scoreboard.entries import ENTRIES, Entry
from benchmarks.scoreboard.files import Files
from benchmarks.scoreboard.scenarios import Scenario, scenarios
from coterie.core.threads import one_thread
from coterie.errors import CoterieError, RunError, unknown_name
from coterie.experiments.checkout import code_version
from coterie.experiments.reproduction import AtOnce, Figures
from coterie.training.result import Result

FIRST_SEED = 2000
SEPARATOR = ": "
"""Between scenario and method in the name of a cell."""


@dataclass(frozen=True)
class ScoreCell(AtOnce):
    """One run with a method's defaults, and its figures."""

    scenario: str
    method: str
    seed: int
    version: str
    """Version of the code."""
    folder: Path | None = None
    """The user's folder of data."""

    @property
    def name(self) -> str:
        """Scenario and method."""
        return f"{self.scenario}{SEPARATOR}{self.method}"

    def measure(self, folder: Path) -> Figures:
        """Run it and return the figures; a method that cannot be used on the data says why in `refused`.

        Raises:
            RunError: if the run fails by an error that is no refusal, which is a bug.
        """
        drawn = _drawn(self.scenario, self.seed, self.folder)
        entry, scenario = ENTRIES[self.method], scenarios(self.folder)[self.scenario]
        try:
            with one_thread(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found = measured(entry, scenario, drawn, self.seed)
        except CoterieError as error:
            found = {"refused": str(error)}
        except Exception as error:
            raise RunError(f"a bug: {type(error).__name__}: {error}") from error
        return {**found, "version": self.version}


@lru_cache(maxsize=1)
def _drawn(scenario: str, seed: int, folder: Path | None) -> Drawn:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return scenarios(folder)[scenario].draw(seed)


def measured(entry: Entry, scenario: Scenario, drawn: Drawn, seed: int) -> Figures:
    """Return the figures of one run."""
    options = dict(entry.run_options(drawn.groups))
    learner = entry.learner or scenario.learner
    if learner is not None:
        options["learner"] = learner
    began = time.process_time()
    result = coterie.fit(drawn.data, entry.method or entry.name, seed=seed, **options)
    seconds = time.process_time() - began
    unit = "rmse" if drawn.data.profile.classes is None else "accuracy"
    found: Figures = {
        "unit": unit,
        "score": _rounded(result.metrics.get(unit)),
        "worst": _rounded(result.metrics.get("worst_tenth")),
        "newcomers": _rounded(_newcomers(result, drawn, unit)),
        "groups": drawn.groups,
        "rounds": len(result.records),
        "bytes": result.metrics.bytes_up + result.metrics.bytes_down,
        "cpu": round(seconds, 2),
    }
    if not result.method.groups.personal:
        found |= {"clusters": result.metrics.clusters, "ari": _rounded(result.metrics.get("ari"))}
    if result.metrics.diverged:
        found["diverged"] = True
    if result.diagnosis is not None:
        found["chosen"] = result.config["method"]
    return found


def _newcomers(result: Result, drawn: Drawn, unit: str) -> float | None:
    """Return the score of all newcomers' samples; None if the method cannot serve new clients."""
    right: list[Any] = []
    try:
        for newcomer in drawn.newcomers:
            predicted = result.predict(newcomer.x, support=newcomer.support)
            right.append(predicted == newcomer.y if unit == "accuracy" else (predicted - newcomer.y) ** 2)
    except CoterieError:
        return None
    mean = float(np.concatenate(right).mean())
    return mean if unit == "accuracy" else mean**0.5


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def chosen_cells(
    folder: Path | None,
    seeds: int | None = None,
    only: str | None = None,
    methods: str | None = None,
    small: bool = False,
) -> Sequence[ScoreCell]:
    """Return the cells of the scenarios whose data is here, one scenario and seed after the other.

    Args:
        folder: The user's folder of data.
        seeds: Number of seeds; by default 3, or 1 in the small version.
        only: Text that the name of a scenario must contain.
        methods: Names of rows separated by commas; by default all.
        small: Whether to keep to the small version.
    """
    known, files, version = scenarios(folder), Files(folder), code_version()
    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    for name in names or ():
        if name not in ENTRIES:
            raise unknown_name("row of the scoreboard", name, ENTRIES)
    cells = []
    for number in range(seeds or (1 if small else 3)):
        for scenario in known.values():
            absent = scenario.needs is not None and not files.has(scenario.needs)
            if absent or not scenario.is_chosen(only, small):
                continue
            for entry in ENTRIES.values():
                wanted = entry.name in names if names is not None else entry.small or not small
                if wanted and entry.runs_in(scenario.family):
                    cells.append(ScoreCell(scenario.name, entry.name, FIRST_SEED + number, version, folder))
    return cells
