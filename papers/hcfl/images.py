"""Common parts of the small versions of the tables of Guo, Tang, Lin 2025: data, methods, figures, rows and verdicts.

All tables share one family of cells: a run that several tables show is made once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, stdev

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.errors import CoterieError
from coterie.experiments.processes import in_processes
from coterie.experiments.reproduction import (
    NOT_RUN,
    Cell,
    Claim,
    Explanation,
    Figures,
    Found,
    Reproduction,
    RunCell,
    Table,
    mean_of,
    spread,
    values_of,
)
from coterie.training.records import RoundRecord
from coterie.training.result import Result
from papers.hcfl.features import with_features
from papers.hcfl.reference import SHOWN, best_and_last, count_range
from papers.hcfl.settings import of_the_paper
from papers.pictures import Pair, Picture, bars

FAMILY = "hcfl-features"
PAPER = "Guo, Tang, Lin 2025"
CLASSES = 10
CLIENTS, SAMPLES, HELD_OUT = 100, 300, 50
ROUNDS, EVERY = 60, 15
"""Return the best of rounds 15, 30, 45 and 60, and the last."""
QUICK_CLIENTS, QUICK_SAMPLES, QUICK_HELD_OUT, QUICK_ROUNDS = 12, 40, 20, 4
LEARNING: dict[str, object] = {"learner": "mlp:hidden=64", "lr": 0.1, "local_epochs": 1, "batch_size": 20}


@dataclass(frozen=True)
class Setting:
    """Data for a comparison of methods."""

    title: str
    scenario: str
    options: Mapping[str, object]

    @property
    def dataset(self) -> str:
        return str(self.options["dataset"])


def shifted(title: str, dataset: str, beta: float) -> Setting:
    """Diverse shifts with the different ones of the paper's three concepts: swapping two labels gives two."""
    concepts = min(3, math.floor(beta * CLASSES + 1e-9))
    return Setting(title, "diverse-shift", {"dataset": dataset, "beta": beta, "concepts": concepts})


FASHION = shifted("Fashion-MNIST, beta 0.2", "fashion-mnist", 0.2)
CIFAR = shifted("CIFAR-10, beta 0.2", "cifar10", 0.2)
CIFAR_04 = shifted("CIFAR-10, beta 0.4", "cifar10", 0.4)
CIFAR_09 = shifted("CIFAR-10, beta 0.9", "cifar10", 0.9)
TWO_CLASSES, FOUR_CLASSES = (
    Setting(f"CIFAR-10, C = {count}", "few-classes", {"dataset": "cifar10", "classes_each": count}) for count in (2, 4)
)
FASHION_TWO_CLASSES = Setting("Fashion-MNIST, C = 2", "few-classes", {"dataset": "fashion-mnist", "classes_each": 2})


@dataclass(frozen=True)
class Row:
    """A method with its settings."""

    title: str
    method: str
    options: Mapping[str, object] = field(default_factory=dict, hash=False)

    def cell(self, setting: Setting) -> str:
        return f"{setting.title}, {self.title}"


K_GIVEN = {"clusters": 3}
ORACLE = Row("oracle", "oracle")
FEDAVG = Row("FedAvg", "fedavg")
FESEM = Row("FeSEM", "fesem", K_GIVEN)
IFCA = Row("IFCA", "ifca", K_GIVEN)
FEDEM = Row("FedEM", "fedem", K_GIVEN)
FEDRC = Row("FedRC", "fedrc", K_GIVEN)
FEDSOFT = Row("FedSoft", "fedsoft", K_GIVEN)
WARMUP = 12
CUTS = {"warmup": WARMUP, "thresholds": "relative"}
CFL_ROWS = tuple(
    Row(f"CFL, eps1 {eps1:g}, eps2 {eps2:g}", "cfl", {**CUTS, "eps1": eps1, "eps2": eps2})
    for eps1, eps2 in ((0.1, 1.6), (0.1, 0.8), (0.07, 0.8))
)
"""In the order of the paper's (0.4, 1.6), (0.4, 0.8), (0.2, 0.8)."""
ICFL_085, ICFL_098 = (Row(f"ICFL, alpha0 {alpha0:g}", "icfl", {"alpha0": alpha0}) for alpha0 in (0.85, 0.98))
STOCFL_0, STOCFL_005, STOCFL_01, STOCFL_015 = (
    Row(f"StoCFL, tau {tau:g}", "stocfl", {"tau": tau, "lam": 0.5}) for tau in (0.4, 0.5, 0.6, 0.8)
)
"""In the order of the paper's 0, 0.05, 0.1 and 0.15."""
RHOS = (0.05, 0.1, 0.3)
BACKBONES = {"FeSEM": "fesem", "FedEM": "fedem", "FedRC": "fedrc", "FedSoft": "fedsoft"}


def plus(backbone: str, rho: float, change: str = "", **options: object) -> Row:
    """HCFL+ on a backbone; `change` names what else differs."""
    title = ", ".join([f"HCFL+({backbone})", f"rho {rho:g}", *([change] if change else [])])
    return Row(title, "hcfl+", {"backbone": BACKBONES[backbone], "rho": rho, **options})


PLUS_FESEM, PLUS_FEDEM, PLUS_FEDRC = (
    tuple(plus(backbone, rho) for rho in RHOS) for backbone in ("FeSEM", "FedEM", "FedRC")
)


class FeatureCell(RunCell):
    """A run on features of images, which keeps its data for the next cell, since that mostly has the same."""

    def measure(self, folder: Path) -> Figures:
        data = _population(self.scenario, tuple(self.scenario_options.items()), self.seed)
        return self.take(self, data, self._result(data, folder))


@lru_cache(maxsize=1)
def _population(name: str, options: tuple[tuple[str, object], ...], seed: int) -> FederatedDataset:
    """Return the data of a cell, which takes half a minute to generate."""
    chosen = dict(options)
    return with_features(scenario(name, seed=seed, **chosen), str(chosen["dataset"]))


class MeteredCell(RunCell):
    """A run, and its memory beyond the data if the system reports it.

    It has a separate process: memory that earlier cells have used and freed would hide what this one needs.
    """

    def measure(self, folder: Path) -> Figures:
        [(_, outcome)] = in_processes(partial(metered, folder), [self], 1, lambda cells: None)
        if isinstance(outcome, CoterieError):
            raise outcome
        return outcome


def metered(folder: Path, cell: MeteredCell) -> Figures:
    """Run a cell in its own process, with its time and memory."""
    data = _population(cell.scenario, tuple(cell.scenario_options.items()), cell.seed)
    before = forget_peak()
    figures = cell.take(cell, data, cell._result(data, folder))
    return figures if before is None else {**figures, "memory": round((peak_memory() - before) / 1e6)}


def forget_peak() -> int | None:
    """Count the largest memory of this process anew, from what it holds now, in bytes; None where Linux is not."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return peak_memory()


def peak_memory() -> int:
    """Return the largest memory of this process since then, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def cell(setting: Setting, row: Row, seed: int, quick: bool) -> RunCell:
    """One run of a method."""
    sizes = (QUICK_CLIENTS, QUICK_SAMPLES, QUICK_HELD_OUT) if quick else (CLIENTS, SAMPLES, HELD_OUT)
    scale = dict(zip(("clients", "samples", "test_samples"), sizes, strict=True))
    length = {"rounds": QUICK_ROUNDS, "evaluate_every": 2} if quick else {"rounds": ROUNDS, "evaluate_every": EVERY}
    options = {**length, **LEARNING, **row.options}
    data = {**setting.options, **scale}
    kind = MeteredCell if setting is TWO_CLASSES else FeatureCell
    options = of_the_paper(row.method, options)
    return kind(row.cell(setting), seed, setting.scenario, data, row.method, options, take)


Grid = Sequence[tuple[Setting, Sequence[Row]]]
"""The methods run on each setting."""


def cells_of(grid: Grid) -> Callable[[int, bool], list[Cell]]:
    """Return the cells of a table seed by seed, so that an interrupted run has complete tables of few seeds."""

    def cells(seeds: int, quick: bool) -> list[Cell]:
        return [cell(setting, row, seed, quick) for seed in range(seeds) for setting, rows in grid for row in rows]

    return cells


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the figures of all tables."""
    records, metrics = result.records, result.metrics
    numbers = [int(record["K"] if "K" in record else record["clusters"]) for record in records]
    figures: Figures = {
        **best_and_last(metrics),
        **at_best_rounds(records),
        "clusters": metrics["clusters"],
        "most clusters": max(numbers),
        "clusters by round": numbers,
        "seconds": round(median(record["seconds"] for record in records), 3),
        "megabytes": round(sum(r["bytes_up"] + r["bytes_down"] for r in records) / len(records) / 1e6, 2),
    }
    if cell.scenario == "few-classes":
        figures["classes"] = class_counts(data, result)
    return figures


def at_best_rounds(records: Sequence[RoundRecord]) -> dict[str, float]:
    """Test in the round of the best Val and Val in that of the best Test, of rounds that have both; percent."""
    both = [(record["accuracy"], record["newcomers"]) for record in records if record.get("newcomers") is not None]
    if not both:
        return {}
    _, test = max(both)
    val, _ = max(both, key=lambda pair: pair[1])
    return {"test at best val": round(100 * test, 2), "val at best test": round(100 * val, 2)}


def class_counts(data: FederatedDataset, result: Result) -> list[list[int]]:
    """Return the training samples by class and cluster of their clients, (C, K); clusters in use only."""
    own = result.assignments
    used = {k: place for place, k in enumerate(sorted(set(own.values())))}
    counts = np.zeros((CLASSES, len(used)), np.int64)
    train = data.train
    for client, start, stop in zip(train.ids, train.starts, train.stops, strict=True):
        if client in own:
            counts[:, used[own[client]]] += np.bincount(train.y[start:stop].numpy(), minlength=CLASSES)
    found: list[list[int]] = counts.tolist()
    return found


Paper = Mapping[Row, tuple[str, str, str]]
"""The paper's Val, Test and number of clusters of a row, as text."""
NO_FIGURES = ("", "", "")


def comparison(found: Found, setting: Setting, rows: Sequence[Row], paper: Paper | None = None) -> Table:
    """Return Val, Test and K of methods, next to the paper's values if it has them."""
    title = f"{setting.title}, percent"
    if paper is None:
        header = ["method", "Val: best round", "last round", "Test: best round", "last round", "K in use"]
        return Table(title, header, [[row.title, *_ours(found, setting, row)] for row in rows])
    header = ["method"]
    for name in ("Val", "Test"):
        header += [f"{name}: paper", "best round", "last round"]
    return Table(title, [*header, "K: paper", "in use"], [_next_to(found, setting, row, paper) for row in rows])


def _ours(found: Found, setting: Setting, row: Row) -> list[str]:
    texts = [shown(found, setting, row, figure) for figure in ("val", "val last", "test", "test last")]
    return [*texts, count_range(values_of(found, row.cell(setting), "clusters"))]


def _next_to(found: Found, setting: Setting, row: Row, paper: Paper) -> list[str]:
    val, test, k = paper.get(row, NO_FIGURES)
    best_val, last_val, best_test, last_test, used = _ours(found, setting, row)
    return [row.title, val, best_val, last_val, test, best_test, last_test, k, used]


def compared(found: Found, setting: Setting, paper: Paper) -> Picture:
    """Return the paper's Test of methods next to ours."""
    pairs = [
        Pair(row.title, float(test.split()[0]), mean_of(found, row.cell(setting), "test"))
        for row, (_, test, _) in paper.items()
    ]
    return bars(f"{setting.title}: Test", "%", pairs)


def shown(found: Found, setting: Setting, row: Row, figure: str, digits: int = 1) -> str:
    """Return a figure with its spread over seeds."""
    return spread(values_of(found, row.cell(setting), figure), digits)


ROUNDING = 2.0
"""Points of accuracy by which a difference between single runs of these tables moves with the rounding of sums: a
client then joins another cluster, and both train on other data from then on. Measured by `hcfl-rounding`."""

SPREAD = 2.7
"""Standard deviation over seeds of a difference of two methods, in points, as `hcfl-reference` shows it. It stands in
for that of these tables where they have few seeds."""
FEW = 5
"""Number of seeds from which the tables' own standard deviation is used."""


@dataclass(frozen=True)
class Means:
    """Figures of several cells over the seeds that all of them have, so that they have the same data."""

    figure: str
    by_seed: list[list[float]]
    """Figures of each cell, in the order of the seeds."""

    @property
    def values(self) -> list[float]:
        """Mean of each cell."""
        return [mean(one) for one in self.by_seed]

    def margin(self, one: int, two: int) -> float:
        """Largest difference of two cells' means that chance may cause; 0 for figures that are not accuracies.

        It is two standard errors of the difference over seeds, and not less than what rounding does.
        """
        if self.figure in COUNTS:
            return 0.0
        pairs = [a - b for a, b in zip(self.by_seed[one], self.by_seed[two], strict=True)]
        spread_of_pairs = SPREAD if len(pairs) < FEW else stdev(pairs)
        return max(ROUNDING, 2 * spread_of_pairs) / math.sqrt(len(pairs))

    def differ(self, one: int, two: int) -> bool:
        """Return whether a difference of two cells' means, if there is one, is larger than chance may cause."""
        first, second = self.values[one], self.values[two]
        return first == second or abs(first - second) > self.margin(one, two)


COUNTS = frozenset({"clusters", "most clusters", "seconds", "megabytes", "memory"})
"""Figures that are no accuracies."""


def means(found: Found, cells: Sequence[str], figure: str) -> Means | None:
    """Return the mean of each cell over the seeds that all have; None without any."""
    known = [
        {seed: figures[figure] for seed, figures in found.get(name, {}).items() if figure in figures} for name in cells
    ]
    seeds = set.intersection(*(set(one) for one in known))
    return Means(figure, [[one[seed] for seed in sorted(seeds)] for one in known]) if seeds else None


def more(found: Found, setting: Setting, figure: str, better: Row, worse: Row) -> Claim:
    """Return the claim that one method's figure is above another's, in the mean over seeds."""
    text = f"{setting.title}: {named(figure)} of {better.title} is above that of {worse.title}"
    known = means(found, [better.cell(setting), worse.cell(setting)], figure)
    if known is None:
        return Claim(text, None, NOT_RUN)
    one, two = known.values
    return Claim(text, one > two, f"{one:.1f} and {two:.1f}", known.differ(0, 1))


def best_of_all(found: Found, setting: Setting, figure: str, row: Row, others: Sequence[Row], words: str) -> Claim:
    """Return the claim that a method's figure is above those of all others, which are called `words`."""
    text = f"{setting.title}: {named(figure)} of {row.title} is above that of {words}"
    known = means(found, [one.cell(setting) for one in (row, *others)], figure)
    if known is None:
        return Claim(text, None, NOT_RUN)
    mine, *theirs = known.values
    first = max(range(len(others)), key=lambda at: (theirs[at], others[at].title))
    evidence = f"{mine:.1f}; the best of them, {others[first].title}: {theirs[first]:.1f}"
    return Claim(text, mine > theirs[first], evidence, known.differ(0, first + 1))


def falling(found: Found, setting: Setting, figure: str, rows: Sequence[Row], words: str) -> Claim:
    """Claim that a figure never increases over the rows and is lower in the end; `words` names the change."""
    text = f"{setting.title}: {named(figure)} falls {words}"
    known = means(found, [row.cell(setting) for row in rows], figure)
    if known is None:
        return Claim(text, None, NOT_RUN)
    values = known.values
    met = all(a >= b for a, b in pairwise(values)) and values[0] > values[-1]
    steps = list(pairwise(range(len(values))))
    rises = any(values[b] - values[a] > known.margin(a, b) for a, b in steps)
    decided = rises or all(known.differ(a, b) for a, b in steps)
    return Claim(text, met, ", ".join(f"{value:.1f}" for value in values), decided)


def named(figure: str) -> str:
    """Return the name of a figure in a claim."""
    return {**SHOWN, "val at best test": "Val in the round of the best Test"}.get(figure, figure)


SCALE_NOTE = (
    "Scale: 100 clients as in the paper, with 300 training and 50 held-out images each (the paper: 450 and 50), 60 "
    "rounds of one epoch in batches of 20 (the paper: 200 rounds, batches of 128). In place of MobileNet-V2 with "
    "weights from ImageNet, clients train a perceptron with 64 hidden units on 128 frozen features (whitened patches "
    "of 6x6 pixels against 256 centres, fitted without labels to 5000 clean images; 59 % with 8000 clean training "
    "images of CIFAR-10 for one model). The step size, 0.1, and the thresholds of CFL and StoCFL were chosen on a seed "
    "that is not shown; the step size is the same for all methods. Val is the accuracy on the clients' held-out "
    "samples. Test is that of one new client for each concept with clean test images of all classes, 1000 to choose a "
    "model or weights and 3000 to evaluate it. The best of rounds 15, 30, 45 and 60 counts, separately for Val and "
    "Test. A claim is undecided if the means differ by less than two standard errors of the difference over seeds, or "
    "by less than rounding moves them (`hcfl-rounding`). With fewer than five seeds the standard deviation of a "
    "difference is taken to be 2.7 points, as between the methods of `hcfl-reference` with five seeds. "
)
SAME_SCALE = (
    "100 clients of 300 images, 60 rounds, a perceptron on frozen features; scale, Val and Test are those of "
    "`hcfl-table1`. "
)


MANY_CLUSTERS = "HCFL+ ends with about twice as many clusters here as in the paper, each trained by few clients."
EXPLANATIONS = (
    Explanation(
        "Test falls from FedRC to FedEM to FedAvg",
        "FedEM's clusters follow label shares and corruptions: its Val is far above FedAvg's, its Test below.",
    ),
    Explanation("Test falls from FedAvg to FeSEM to IFCA", "FeSEM and IFCA change places."),
    Explanation("above that of hard clusters", MANY_CLUSTERS),
    Explanation("rho 0.3 is above that of FeSEM", MANY_CLUSTERS),
    Explanation("rho 0.3 is above that of FedEM", MANY_CLUSTERS),
    Explanation("ends nearer to 2 clusters", "Means over classes end with one cluster fewer, in a single run."),
    Explanation("in the round of its best Val", "ICFL's clusters are single clients, whose Test hardly changes."),
    Explanation("Val in the round of the best Test", "ICFL's clusters are single clients, which have the highest Val."),
)


def reproduction(
    name: str,
    title: str,
    table: str,
    notes: str,
    grid: Grid,
    tables: Callable[[Found, bool], Sequence[Table]],
    claims: Callable[[Found, bool], Sequence[Claim]],
    seeds: int = 1,
    picture: Callable[[Found], Picture] | None = None,
) -> Reproduction:
    """Return the reproduction of one of the paper's tables or figures; `table` is its name in the paper."""
    scale = SCALE_NOTE if name == "hcfl-table1" else SAME_SCALE
    needs = sorted({setting.dataset for setting, _ in grid})
    where = f"{PAPER}, {table}, on a small scale"
    return Reproduction(
        name,
        title,
        where,
        scale + notes,
        needs,
        cells_of(grid),
        seeds,
        1,
        tables,
        claims,
        family=FAMILY,
        explanations=EXPLANATIONS,
        picture=picture,
    )
