"""Comparison of runs in numbers: means over seeds, the main method of the page, the gain of each client."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from coterie.core.numbers import finite
from coterie.errors import RunError
from coterie.methods.groups import FoundGroups
from coterie.report.formats import natural
from coterie.report.reading import RunData

ORDER = ("self", "one", "found", "truth")
"""Sources of clusters in the order of tables: local models first, known groups last."""
SAME = 1e-9
"""Difference below which scores count as equal."""


@dataclass(frozen=True)
class Spread:
    """Values of one figure over seeds."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return mean(self.values)

    @property
    def sd(self) -> float | None:
        """Sample standard deviation (divided by the number of seeds less one); None with one seed or on overflow."""
        with np.errstate(over="ignore", invalid="ignore"):
            return finite(np.std(self.values, ddof=1)) if len(self.values) > 1 else None


def mean(values: Sequence[float]) -> float:
    """Return the mean of finite numbers, which is finite even where their sum is not."""
    with np.errstate(over="ignore"):
        found = float(np.mean(values))
    return found if math.isfinite(found) else sum(value / len(values) for value in values)


def spread(values: Iterable[Any]) -> Spread | None:
    """Return the numbers among the values; None without any."""
    kept = tuple(float(v) for v in values if isinstance(v, int | float) and math.isfinite(v))
    return Spread(kept) if kept else None


@dataclass(frozen=True)
class MethodRuns:
    """All runs of one method, or of one variant of it, by seed."""

    name: str
    """Name of the method, or label of the variant."""
    runs: tuple[RunData, ...]

    @property
    def first(self) -> RunData:
        return self.runs[0]

    @property
    def seeds(self) -> list[int]:
        return [run.seed for run in self.runs]

    @property
    def groups(self) -> str:
        """Source of its clusters: found, one, truth or self; `found` for an unknown method."""
        kind = self.first.method_class
        return (FoundGroups() if kind is None else kind.groups).kind

    @property
    def exchanges(self) -> bool:
        """Whether its clients send anything; a method with one model for each client may."""
        kind = self.first.method_class
        return kind is None or kind.exchanges

    @property
    def diverged(self) -> list[RunData]:
        """Runs whose training diverged."""
        return [run for run in self.runs if run.diverged]

    def over_seeds(self, metric: str) -> Spread | None:
        return spread(run.metrics.get(metric) for run in self.runs)


@dataclass(frozen=True)
class Comparison:
    """Runs of a page by method, with the main method."""

    methods: tuple[MethodRuns, ...]
    """Methods in order: local models first, known groups last, then methods that are unknown here."""
    main: MethodRuns
    """Method in the headline: the best one of those that find groups."""

    @property
    def score_name(self) -> str:
        return self.main.first.score_name

    @property
    def higher_is_better(self) -> bool:
        return self.main.first.higher_is_better

    def of(self, groups: str) -> MethodRuns | None:
        """Return the first method of this kind that did not diverge, other than the main one."""
        others = (m for m in self.methods if self._is_like(m, groups) and m.name != self.main.name)
        return next((m for m in others if not m.diverged), None)

    @property
    def baselines(self) -> list[MethodRuns]:
        """The global model and local models, if they were run."""
        return [base for base in (self.of("one"), self.of("self")) if base is not None]

    def _is_like(self, method: MethodRuns, groups: str) -> bool:
        """Return whether the clusters have this source; models of single clients are local only if nothing is sent."""
        return method.groups == groups and not (groups == "self" and method.exchanges)


def compare(runs: Sequence[RunData]) -> Comparison:
    """Group runs by method and choose the main one."""
    if not runs:
        raise RunError("a report needs at least one finished run, got none")
    names = dict.fromkeys(run.name for run in runs)
    found = [
        MethodRuns(name, tuple(sorted((r for r in runs if r.name == name), key=lambda r: r.seed))) for name in names
    ]
    methods = tuple(sorted(found, key=lambda method: (method.first.method_class is None, ORDER.index(method.groups))))
    return Comparison(methods, _main(methods))


def _main(methods: Sequence[MethodRuns]) -> MethodRuns:
    """Return the best method of the most interesting kind; one that diverged only if all did."""
    methods = [method for method in methods if not method.diverged] or methods
    for kind in ("found", "truth", "one", "self"):
        candidates = [m for m in methods if m.groups == kind]
        if candidates:
            return max(candidates, key=_quality)
    return methods[0]


def _quality(method: MethodRuns) -> float:
    found = method.over_seeds(method.first.score_name)
    if found is None:
        return -math.inf
    return found.mean if method.first.higher_is_better else -found.mean


# ---- differences ---------------------------------------------------------------------------------------------


def pairs(main: MethodRuns, base: MethodRuns) -> list[tuple[RunData, RunData]]:
    """Return the runs of both methods with the same seed, which had the same data."""
    others = {run.seed: run for run in base.runs}
    return [(run, others[run.seed]) for run in main.runs if run.seed in others]


def advantages(main: MethodRuns, base: MethodRuns) -> Spread | None:
    """Return the advantage of the main method in the score, one value for each shared seed.

    Accuracy: the difference as a share of one. RMSE: by which share of the baseline's RMSE it is lower.
    """
    values = []
    for mine, other in pairs(main, base):
        if mine.score is None or other.score is None:
            continue
        if mine.higher_is_better:
            values.append(mine.score - other.score)
        elif other.score > 0:
            values.append((other.score - mine.score) / other.score)
    return spread(values)


@dataclass(frozen=True)
class Gain:
    """Scores of a client with two methods, averaged over the seeds in which it has both."""

    client: str
    mine: float
    other: float
    gain: float
    """Advantage of the main method for the client, positive for any score if it is better."""


def gains(main: MethodRuns, base: MethodRuns) -> list[Gain]:
    """Return the gain of each client, from the largest gain to the largest loss."""
    seen: dict[str, list[tuple[float, float]]] = {}
    for mine, other in pairs(main, base):
        theirs = {row.id: row.score for row in other.clients}
        for row in mine.clients:
            a, b = row.score, theirs.get(row.id)
            if a is not None and b is not None:
                seen.setdefault(row.id, []).append((a, b))
    sign = 1.0 if main.first.higher_is_better else -1.0
    found = []
    for client, scores in seen.items():
        a, b = (mean(values) for values in zip(*scores, strict=True))
        found.append(Gain(client, a, b, sign * (a - b)))
    return sorted(found, key=lambda g: -g.gain)


def tally(found: Sequence[Gain]) -> tuple[int, int, int]:
    """Return the numbers of clients that gain, lose and stay the same."""
    up = sum(g.gain > SAME for g in found)
    down = sum(g.gain < -SAME for g in found)
    return up, down, len(found) - up - down


def mean_scores(method: MethodRuns, name: str = "score") -> dict[str, float]:
    """Return each client's score, or another figure of its row, averaged over seeds."""
    seen: dict[str, list[float]] = {}
    for run in method.runs:
        for row in run.clients:
            if row.get(name) is not None:
                seen.setdefault(row.id, []).append(float(row[name]))
    return {client: mean(values) for client, values in seen.items()}


# ---- curves --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Curve:
    """Figure of the records by round, over the seeds of a method."""

    rounds: tuple[int, ...]
    """Round after which the figure was measured, counted from one."""
    mean: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def curve(method: MethodRuns, key: str) -> Curve | None:
    """Return mean, smallest and largest value over seeds; rounds without a number are left out."""
    found: dict[int, list[float]] = {}
    for run in method.runs:
        for record in run.records:
            kept = spread([record.get(key)])
            if kept is not None:
                found.setdefault(record.round + 1, []).append(kept.mean)
    if not found:
        return None
    rounds = tuple(sorted(found))
    return Curve(
        rounds,
        tuple(mean(found[r]) for r in rounds),
        tuple(min(found[r]) for r in rounds),
        tuple(max(found[r]) for r in rounds),
    )


# ---- certainty and agreement ---------------------------------------------------------------------------------


def contingency(run: RunData) -> tuple[list[str], list[int], list[list[int]]] | None:
    """Return true groups, clusters, and the number of clients in each pair; None if the truth is unknown."""
    rows = [(str(row["truth"]), row.cluster) for row in run.clients if row.get("truth") is not None]
    if not rows:
        return None
    truths = sorted({t for t, _ in rows}, key=natural)
    clusters = sorted({k for _, k in rows})
    return truths, clusters, [[rows.count((t, k)) for k in clusters] for t in truths]


def trouble(runs: Iterable[RunData]) -> tuple[int, int]:
    """Return the numbers of missing replies and of refused updates, over all runs and rounds."""
    missing = rejected = 0
    for run in runs:
        missing += sum(len(record.missing) for record in run.records)
        rejected += sum(len(record.rejected) for record in run.records)
    return missing, rejected
