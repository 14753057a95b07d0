"""ODCL, table 2: two groups of clients that label two classes of images the opposite way, against IFCA.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022, section 5. The figure is a client's accuracy on held-out images labelled its group's way, averaged
over clients.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev
from typing import Any

import numpy as np

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.experiments.reproduction import (
    AtOnce,
    Cell,
    Claim,
    Explanation,
    Figures,
    Found,
    Reproduction,
    Table,
    mean_of,
    spread,
    values_of,
)
from coterie.training.fitting import fit, initialize
from coterie.training.planning import prepare
from papers.odcl.measures import PAPER, Bar, Floats, Ints, kept, shot, within

NOISE: dict[str, dict[str, Any]] = {
    "clean": {},
    "exact": {"noise": 0.2, "noise_kind": "exact"},
    "iid": {"noise": 0.2, "noise_kind": "iid"},
}
"""None, the same number of wrong labels for each client, or each label wrong by itself."""
SHOTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Cluster Oracle": ("cluster-oracle", {}),
    "Local ERM": ("local-erm", {}),
    "Oracle Averaging": ("oracle-averaging", {}),
    "ODCL-KM++": ("odcl", {}),
}
CONVEX: dict[str, tuple[str, dict[str, Any]]] = {
    "ODCL-CC, lambda by (13)": ("odcl", {"clustering": "convex", "lam": "oracle13"}),
    "ODCL-CC, path": ("odcl", {"clustering": "convex"}),
}
ONE_SEEDING = "ODCL-KM++, one seeding"
DRAWS = 10
"""Number of single seedings in the mean."""
STARTS = {
    "IFCA-1": "cluster-oracle:noise=1",
    "IFCA-2": "cluster-oracle:noise=2",
    "IFCA-R, sd 0.01": "gaussian:sd=0.01",
    "IFCA-R, sd 1": "gaussian:sd=1",
    "IFCA-R, sd 5": "gaussian:sd=5",
}
NO_PENALTY = "logistic:l2=0.0,bias=false"
EXCHANGES: dict[str, dict[str, Any]] = {
    "models": {"local_steps": 10},
    "gradients": {"exchange": "gradient", "local_steps": 1},
    "models, no penalty": {"local_steps": 10, "learner": NO_PENALTY},
    "gradients, no penalty": {"exchange": "gradient", "local_steps": 1, "learner": NO_PENALTY},
}
STEP, ROUNDS, QUICK_ROUNDS = 0.1, 200, 50
SMALL_STEP = 0.005
"""Step size for CIFAR10, where steps above 0.007 diverge: the largest curvature of a client is 275."""


@dataclass(frozen=True)
class OneShots(AtOnce):
    """A cell: all methods with one round or none."""

    dataset: str
    noise: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.dataset} {self.noise} one-shot"

    def measure(self, folder: Path) -> Figures:
        data = images(self.dataset, self.noise, self.seed)
        ways = SHOTS if self.dataset == "cifar10" else SHOTS | CONVEX
        shots = {name: shot(data, method, self.seed, options) for name, (method, options) in ways.items()}
        figures: Figures = {name: mean_accuracy(data, each.models, each.groups) for name, each in shots.items()}
        once = [mean_accuracy(data, *seeded_once(shots["Local ERM"].models, 2, draw)) for draw in range(DRAWS)]
        figures |= {ONE_SEEDING: float(np.mean(once)), f"{ONE_SEEDING}, worst": min(once)}
        figures |= {f"{name} K": len(shots[name].models) for name in CONVEX if name in shots}
        return kept(figures)


@dataclass(frozen=True)
class Ifca(AtOnce):
    """A cell: one run of IFCA."""

    dataset: str
    noise: str
    start: str
    exchange: str
    seed: int
    lr: float = STEP
    rounds: int = ROUNDS

    @property
    def name(self) -> str:
        return run_name(self.dataset, self.noise, self.start, self.exchange, self.lr)

    def measure(self, folder: Path) -> Figures:
        data = images(self.dataset, self.noise, self.seed)
        # float32, as the images are: a third faster, and no figure here has more than three digits
        common: dict[str, Any] = {"dtype": "float32", "seed": self.seed, "restarts": 1}
        run = {"lr": self.lr, "rounds": self.rounds, "evaluate_every": self.rounds, **EXCHANGES[self.exchange]}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a start that leaves a cluster empty is part of the experiment
            # the oracle of IFCA-1 and IFCA-2 has the penalty, with or without it in the rounds
            first = initialize(
                prepare(data, "ifca", None, {**common, "init": STARTS[self.start]})
            ).state.clusters.params["weight"]
            result = fit(data, "ifca", init=[{"weight": model} for model in first.numpy()], **common, **run)
        return kept({name: result.metrics[name] for name in ("accuracy", "identity")})


def run_name(dataset: str, noise: str, start: str, exchange: str, lr: float = STEP) -> str:
    """Return the name of a cell of IFCA."""
    return f"{dataset} {noise} {_title(start, exchange, lr)}"


def _title(start: str, exchange: str, lr: float) -> str:
    return f"{start}, {exchange}" + ("" if lr == STEP else f", step {lr:g}")


def images(dataset: str, noise: str, seed: int) -> FederatedDataset:
    """Return the data: two groups, 100 clients."""
    return scenario("opposite-labels", dataset=dataset, seed=seed, **NOISE[noise])


def mean_accuracy(data: FederatedDataset, models: Floats, groups: Ints) -> float:
    """Return the accuracy of binary models (K, P) without intercept, each client with that of `groups` (m,)."""
    assert data.test is not None
    spans = np.stack([data.test.starts, data.test.stops], axis=1)
    shared, place = np.unique(spans, axis=0, return_inverse=True)
    hits = []
    for first, last in shared:
        x, y = data.test.x[first:last].double().numpy(), data.test.y[first:last].numpy()
        hits.append(((x @ models.T > 0) == (y[:, None] == 1)).mean(axis=0))
    return float(np.stack(hits)[place.reshape(-1), groups].mean())


def seeded_once(points: Floats, K: int, draw: int) -> tuple[Floats, Ints]:
    """Means (K, P) and clusters (m,) by algorithm 3 as written: one seeding, one draw for each seed, Lloyd's steps."""
    from sklearn.cluster import kmeans_plusplus  # slow to import

    from coterie.server.clustering.choose import rotated
    from coterie.server.clustering.kmeans import lloyd

    turned = rotated(points)
    centres, _ = kmeans_plusplus(turned, K, random_state=draw, n_local_trials=1)
    groups = lloyd(turned, centres).labels
    return np.stack([points[groups == k].mean(axis=0) for k in range(K)]), groups


# ---- what is run -----------------------------------------------------------------------------------------------

Run = tuple[str, str, float]
"""Start, exchange, step size."""
EVERY: tuple[Run, ...] = tuple((start, exchange, STEP) for exchange in ("models", "gradients") for start in STARTS)
NO_PENALTIES: tuple[Run, ...] = tuple((start, f"{exchange}, no penalty", lr) for start, exchange, lr in EVERY)
THREE = tuple(run for run in EVERY if run[0] in ("IFCA-1", "IFCA-2", "IFCA-R, sd 1"))
GRADIENTS = tuple(run for run in THREE if run[1] == "gradients")
LONG: tuple[Run, ...] = tuple(
    (start, "models", lr) for lr in (STEP, SMALL_STEP) for start in ("IFCA-1", "IFCA-R, sd 1")
)
QUICK = tuple(run for run in THREE if run[0] != "IFCA-2")


@dataclass(frozen=True)
class Column:
    """Images with one kind of label noise."""

    dataset: str
    noise: str
    seeds: int
    """Largest number of seeds of the one-shot methods."""
    runs: Mapping[Run, int]
    """Runs of IFCA, each with its number of seeds at most."""

    def cells(self, seed: int, rounds: int) -> Iterator[Cell]:
        if seed < self.seeds:
            yield OneShots(self.dataset, self.noise, seed)
        for (start, exchange, lr), seeds in self.runs.items():
            if seed < seeds:
                yield Ifca(self.dataset, self.noise, start, exchange, seed, lr, rounds)


COLUMNS = (
    Column("digits", "clean", 10, dict.fromkeys(EVERY, 5)),
    Column("digits", "exact", 10, dict.fromkeys(THREE, 5)),
    Column("digits", "iid", 10, dict.fromkeys(THREE, 5)),
    Column("mnist", "clean", 10, dict.fromkeys(EVERY, 10) | dict.fromkeys(NO_PENALTIES, 5)),
    Column("mnist", "exact", 10, dict.fromkeys(THREE, 5)),
    Column("mnist", "iid", 10, dict.fromkeys(THREE, 5)),
    Column("cifar10", "clean", 5, dict.fromkeys((*GRADIENTS, *LONG), 1)),
    Column("cifar10", "exact", 5, dict.fromkeys(GRADIENTS, 1)),
    Column("cifar10", "iid", 5, {}),
)
QUICK_COLUMNS = (Column("digits", "clean", 1, dict.fromkeys(QUICK, 1)), Column("digits", "exact", 1, {}))


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells seed by seed; quick: digits only."""
    rounds = QUICK_ROUNDS if quick else ROUNDS
    return [
        cell
        for seed in range(seeds)
        for column in (QUICK_COLUMNS if quick else COLUMNS)
        for cell in column.cells(seed, rounds)
    ]


# ---- what is shown ---------------------------------------------------------------------------------------------

PRINTED: dict[tuple[str, str], dict[str, str]] = {
    ("mnist", "clean"): {
        "Cluster Oracle": "0.98 ± 0.003",
        "Local ERM": "0.83 ± 0.06",
        "ODCL-KM++": "0.91 ± 0.007",
        "IFCA-1": "0.94 ± 0.03",
        "IFCA-2": "0.83 ± 0.13",
        "IFCA-R": "0.65 ± 0.06",
    },
    ("cifar10", "clean"): {
        "Cluster Oracle": "0.76 ± 0.006",
        "Local ERM": "0.70 ± 0.006",
        "ODCL-KM++": "0.76 ± 0.008",
        "IFCA-1": "0.70 ± 0.12",
        "IFCA-2": "0.66 ± 0.12",
        "IFCA-R": "0.51 ± 0.01",
    },
    ("cifar10", "exact"): {
        "Local ERM": "0.62 ± 0.012",
        "ODCL-KM++": "0.66 ± 0.06",
        "IFCA-1": "0.58 ± 0.07",
        "IFCA-2": "0.54 ± 0.05",
        "IFCA-R": "0.52 ± 0.012",
    },
}
"""The paper's table; it has no other column. `exact` is the literal reading of its noisy CIFAR10."""


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a table for each data set."""
    columns = QUICK_COLUMNS if quick else COLUMNS
    made = []
    for dataset in dict.fromkeys(column.dataset for column in columns):
        own = [column for column in columns if column.dataset == dataset]
        runs = dict.fromkeys(run for column in own for run in column.runs)
        rows = [[name, *(text for c in own for text in _shot(found, c, name))] for name in _names(dataset)]
        rows += [[_title(*run), *(text for c in own for text in _run(found, c, *run))] for run in runs]
        header = ["test accuracy", *(text for c in own for text in _header(c))]
        made.append(Table(f"{dataset}: mean ± standard deviation (seeds)", header, rows))
    return made


def _names(dataset: str) -> list[str]:
    return [*SHOTS, ONE_SEEDING, *([] if dataset == "cifar10" else CONVEX)]


def _header(column: Column) -> list[str]:
    title = {"clean": "clean", "exact": "20 % wrong, exactly", "iid": "20 % wrong, i.i.d."}[column.noise]
    return [f"{title}: paper", "ours"] if (column.dataset, column.noise) in PRINTED else [title]


def _shot(found: Found, column: Column, name: str) -> list[str]:
    values = values_of(found, f"{column.dataset} {column.noise} one-shot", name)
    return _next_to(column, name, spread(values, 3))


def _run(found: Found, column: Column, start: str, exchange: str, lr: float) -> list[str]:
    if (start, exchange, lr) not in column.runs:
        return _next_to(column, "", "")
    values = values_of(found, run_name(column.dataset, column.noise, start, exchange, lr), "accuracy")
    return _next_to(column, start.partition(",")[0], spread(values, 3))


def _next_to(column: Column, row: str, ours: str) -> list[str]:
    printed = PRINTED.get((column.dataset, column.noise))
    return [ours] if printed is None else [printed.get(row, ""), ours]


# ---- claims ----------------------------------------------------------------------------------------------------

MNIST_CLEAN = {"Local ERM": 0.836, "Oracle Averaging": 0.917, "Cluster Oracle": 0.985, "ODCL-KM++": 0.916}
MNIST_IID = {
    "Local ERM": (0.694, 0.021),
    "Oracle Averaging": (0.908, 0.022),
    "Cluster Oracle": (0.880, 0.019),
    "ODCL-KM++": (0.734, 0.035),
}
MNIST_RUNS: Mapping[tuple[str, str, str], tuple[float, float]] = {
    ("clean", "IFCA-1", "models"): (0.964, 0.006),
    ("clean", "IFCA-1", "gradients"): (0.937, 0.014),
    ("clean", "IFCA-2", "models"): (0.915, 0.04),
    ("clean", "IFCA-R, sd 1", "models"): (0.955, 0.022),
    ("clean", "IFCA-R, sd 1", "gradients"): (0.82, 0.16),
    ("iid", "IFCA-1", "models"): (0.627, 0.10),
    ("iid", "IFCA-2", "models"): (0.578, 0.06),
    ("iid", "IFCA-R, sd 1", "models"): (0.582, 0.05),
}
"""Means and standard deviations of ten seeds of an independent prototype."""
PROTOTYPE_SEEDS = 10


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims about the order of methods, with every reading, and the bars."""
    if quick:
        return [_above(found, "digits", "clean", "Oracle Averaging", "Local ERM")]
    return [*_paper_claims(found), *_noise_claims(found), *_bars(found)]


def _paper_claims(found: Found) -> list[Claim]:
    made = [
        *(_above(found, dataset, "clean", "ODCL-KM++", "Local ERM") for dataset in ("digits", "mnist", "cifar10")),
        _below_oracle(found, "cifar10", "on a par with Cluster Oracle (0.76 and 0.76)", 0.0),
        _below_oracle(found, "mnist", "0.07 below Cluster Oracle (0.91 and 0.98)", 0.07),
    ]
    made += [
        _ifca_row(found, exchange, start)
        for exchange in ("models", "gradients")
        for start in STARTS
        if start.startswith("IFCA-R")
    ]
    made += [
        _worse_than_local(found, "mnist", "clean", start, exchange)
        for start, exchange, _ in (*EVERY, *NO_PENALTIES)
        if start.startswith("IFCA-R")
    ]
    made += [
        _worse_than_local(found, "cifar10", "clean", start, exchange, lr) for start, exchange, lr in (*GRADIENTS, *LONG)
    ]
    return made


def _ifca_row(found: Found, exchange: str, random: str) -> Claim:
    """Return the claim about the paper's three figures of IFCA on MNIST, with one reading of its exchange and start."""
    printed = {"IFCA-1": (0.94, 0.03), "IFCA-2": (0.83, 0.13), random: (0.65, 0.06)}
    bars = [
        Bar(start, mean_of(found, run_name("mnist", "clean", start, exchange), "accuracy"), mean - sd, mean + sd)
        for start, (mean, sd) in printed.items()
    ]
    return within(f"mnist: IFCA at 0.94 ± 0.03, 0.83 ± 0.13, 0.65 ± 0.06, exchanging {exchange}, {random}", bars, 3)


def _noise_claims(found: Found) -> list[Claim]:
    """Return the claims with wrong labels: methods worse than Local ERM, and possible sources of the paper's 0.66."""
    made = [
        _worse_than_local(found, dataset, noise, start, exchange)
        for dataset, noise in (("mnist", "exact"), ("mnist", "iid"), ("cifar10", "exact"))
        for start, exchange, _ in (GRADIENTS if dataset == "cifar10" else THREE)
    ]
    reading = "cifar10 with 20 % wrong labels: ODCL-KM++ at 0.66 ± 0.06"
    for noise, said in (("exact", "exactly 20 % of each client's"), ("iid", "each with probability 0.2")):
        cell = f"cifar10 {noise} one-shot"
        made.append(within(f"{reading}, {said}", [Bar("ours", mean_of(found, cell, "ODCL-KM++"), 0.60, 0.72)], 3))
        made.append(
            within(f"{reading}, {said}, one seeding", [Bar("ours", mean_of(found, cell, ONE_SEEDING), 0.60, 0.72)], 3)
        )
    return made


def _bars(found: Found) -> list[Claim]:
    clean = [
        Bar(name, mean_of(found, "mnist clean one-shot", name), value - 0.01, value + 0.01)
        for name, value in MNIST_CLEAN.items()
    ]
    noisy = [_like(found, name, "mnist iid one-shot", name, expected) for name, expected in MNIST_IID.items()]
    return [
        within("mnist: one-shot methods at 0.836, 0.917, 0.985, 0.916 (± 0.01)", clean, 3),
        within("mnist, i.i.d. wrong labels: 0.694, 0.908, 0.880, 0.734 (± 2 standard errors)", noisy, 3),
        *(
            _like_prototype(found, noise, start, each, expected)
            for (noise, start, exchange), expected in MNIST_RUNS.items()
            for each in ((exchange, f"{exchange}, no penalty") if noise == "clean" else (exchange,))
        ),
    ]


def _like_prototype(found: Found, noise: str, start: str, exchange: str, expected: tuple[float, float]) -> Claim:
    """One run of IFCA on MNIST."""
    title = f"mnist {noise} {start}, {exchange}: {expected[0]:g} ± {expected[1]:g} (means within 2 standard errors)"
    return within(title, [_like(found, "ours", run_name("mnist", noise, start, exchange), "accuracy", expected)], 3)


def _like(found: Found, label: str, cell: str, figure: str, expected: tuple[float, float]) -> Bar:
    """Return two standard errors of the difference of the two means."""
    values = values_of(found, cell, figure)
    own = stdev(values) ** 2 / len(values) if len(values) > 1 else 0.0
    allowed = 2 * (expected[1] ** 2 / PROTOTYPE_SEEDS + own) ** 0.5
    return Bar(label, mean_of(found, cell, figure), expected[0] - allowed, expected[0] + allowed)


def _above(found: Found, dataset: str, noise: str, one: str, other: str) -> Claim:
    cell = f"{dataset} {noise} one-shot"
    return _ordered(f"{dataset}: {one} above {other}", mean_of(found, cell, one), mean_of(found, cell, other))


def _below_oracle(found: Found, dataset: str, words: str, gap: float) -> Claim:
    """Return the claim about the difference of Cluster Oracle and ODCL-KM++, up to 0.01."""
    names = ("Cluster Oracle", "ODCL-KM++")
    oracle, ours = (mean_of(found, f"{dataset} clean one-shot", name) for name in names)
    difference = None if oracle is None or ours is None else oracle - ours
    return within(
        f"{dataset}: ODCL-KM++ {words}, within 0.01", [Bar("difference", difference, gap - 0.01, gap + 0.01)], 3
    )


def _worse_than_local(found: Found, dataset: str, noise: str, start: str, exchange: str, lr: float = STEP) -> Claim:
    title = f"{dataset}{'' if noise == 'clean' else f', {noise} wrong labels'}: {_title(start, exchange, lr)}"
    local = mean_of(found, f"{dataset} {noise} one-shot", "Local ERM")
    mine = mean_of(found, run_name(dataset, noise, start, exchange, lr), "accuracy")
    return _ordered(f"{title}: not above Local ERM", local, mine)


def _ordered(text: str, upper: float | None, lower: float | None) -> Claim:
    if upper is None or lower is None:
        return Claim(text, None, "not run")
    return Claim(text, upper >= lower, f"{upper:.3f} against {lower:.3f}")


READINGS = (
    "The paper does not give the scale of the random start or what clients exchange in this table; its figures are "
    "those of gradients and a start of deviation 5."
)
EXPLANATIONS = (
    Explanation(
        "cifar10: ODCL-KM++ on a par",
        "ODCL is where the paper has it; it is our Cluster Oracle that is better (0.812 where the paper has 0.76), "
        "perhaps because of the penalty, which the paper does not give.",
    ),
    Explanation("mnist: IFCA at 0.94", READINGS, "mnist: IFCA-1, IFCA-2 and IFCA-R reach 0.94, 0.83 and 0.65"),
    Explanation("mnist: IFCA-", READINGS, "mnist: IFCA from random starts or with wrong K is not above Local ERM"),
    Explanation(
        "cifar10: IFCA-",
        "The differences of those that are above are 0.001 to 0.013, within the seed spread of the paper (0.12).",
        "cifar10: IFCA is not above Local ERM",
    ),
    Explanation(
        "ODCL-KM++ at 0.66",
        "With the best of ten seedings ours is 0.76. With one seeding it falls to 0.72, which is within the paper's "
        "spread of 0.06 if each label is wrong with probability 0.2.",
        "cifar10 with 20 % wrong labels: ODCL-KM++ reaches 0.66",
    ),
    Explanation("(means within 2 standard errors)", "The expected figure is that of a prototype with one penalty."),
)
REPRODUCTION = Reproduction(
    "odcl-table2",
    "Opposite labels on digits, MNIST and CIFAR10: one-shot clustering and IFCA from several starts",
    f"{PAPER}, table 2",
    "m = 100 clients with 4 images (CIFAR10: 40), logistic regression with penalty 0.01 on pixels in [0, 1], with the "
    "intercept as a last pixel; the paper does not give the penalty. IFCA: 200 rounds with step size 0.1. Clients "
    "exchange models after 10 local steps, or gradients (without local steps, although the paper gives both), summed "
    "over members and divided by m; with the penalty in the loss, and on MNIST also without. The paper does not give "
    "the scale of the start of IFCA-R: three are tried. `One seeding` is k-means++ as written in the paper, with one "
    "seeding, the mean of ten; ODCL-KM++ is the best of ten greedy ones. The paper has no column for digits, nor for "
    "noise on MNIST. On CIFAR10 a step size of 0.1 is too large for gradient descent (the largest curvature of a "
    "client is 275), so IFCA was also run with 0.005.",
    ("mnist", "cifar10"),
    cells,
    10,
    1,
    tables,
    claims,
    explanations=EXPLANATIONS,
)
