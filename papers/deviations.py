"""Defaults of Coterie that differ from the papers, and what each difference changes.

Every row of the table is a pair of runs that differ in one setting: the paper's, and Coterie's default. All other
options are Coterie's defaults, so that a row shows the effect of this setting alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Literal

from coterie.core.dataset import FederatedDataset
from coterie.experiments.reproduction import (
    NOT_RUN,
    Cell,
    Claim,
    Figures,
    Found,
    Reproduction,
    RunCell,
    Table,
    spread,
    values_of,
)
from coterie.methods import find_method
from coterie.training.result import Result

Side = Literal["paper", "default"]
SIDES: tuple[Side, ...] = ("paper", "default")

SCENARIOS: dict[str, dict[str, object]] = {
    "rotated-digits": {"clients": 24},
    "odcl-clusterpath": {},
    "diverse-shift": {},
    "mixed-regression": {"clients": 100, "samples": "80x10+20x60", "dimension": 10, "covariance": "different"},
}
"""Options of each scenario that are not its defaults."""
ROUNDS: dict[str, int] = {"rotated-digits": 40, "diverse-shift": 60, "mixed-regression": 60}
QUICK_ROUNDS = 3
LEARNERS = {"rotated-digits": "mlp", "diverse-shift": "mlp"}


@dataclass(frozen=True)
class Deviation:
    """One setting that differs from a paper."""

    method: str
    scenario: str
    paper_text: str
    """The paper's choice in words."""
    default_text: str
    """Coterie's default in words."""
    reason: str
    paper: Mapping[str, object] = field(hash=False)
    """Options of the paper's choice."""
    default: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Options of Coterie's default; empty if the option may be left out."""
    common: Mapping[str, object] = field(default_factory=dict, hash=False)
    """Options of both runs."""

    def cell_name(self, side: Side) -> str:
        """Return the name of the run with the paper's choice, or with Coterie's default."""
        settings = self.paper if side == "paper" else self.default
        reported = ", ".join(f"{name}={value}" for name, value in settings.items()) or "default"
        shared = "".join(f", {name}={value}" for name, value in self.common.items())
        return f"{self.scenario} {self.method}, {reported}{shared}"

    def options(self, side: Side, quick: bool) -> dict[str, object]:
        """Return the options of one run; a scenario's recommended learning rate and steps are not used."""
        learner = {"learner": LEARNERS[self.scenario]} if self.scenario in LEARNERS else {}
        training: dict[str, object] = {}
        if find_method(self.method).trains:
            rounds = QUICK_ROUNDS if quick else ROUNDS[self.scenario]
            training = {"lr": "auto", "rounds": rounds, "evaluate_every": rounds}
        own = self.paper if side == "paper" else self.default
        return {**learner, **training, **self.common, **own}


CLUSTERED = "clustered solutions of the clients"
RANDOM = "random first models"
BY_TESTS = "tests on held-out samples decide"
PORTABLE = "a threshold suits one data set, model and step size"
MEMBERS = "a cluster with small responsibilities hardly moves if it is divided by all clients"

DEVIATIONS: tuple[Deviation, ...] = (
    Deviation(
        "ifca",
        "rotated-digits",
        "one random start",
        "race of five random starts",
        "one start often merges two groups",
        {"restarts": 1, "race": 0},
        {"restarts": 5, "race": 5},
        {"clusters": 4},
    ),
    Deviation(
        "fedem",
        "rotated-digits",
        "averages over all clients",
        "averages by responsibility",
        MEMBERS,
        {"averaging": "all"},
        common={"clusters": 4},
    ),
    Deviation(
        "fedem",
        "rotated-digits",
        RANDOM,
        CLUSTERED,
        "mixtures depend on the start",
        {"init": "random"},
        common={"clusters": 4},
    ),
    Deviation(
        "fedrc",
        "diverse-shift",
        "averages over all clients",
        "averages by responsibility",
        MEMBERS,
        {"averaging": "all"},
        common={"clusters": 3},
    ),
    Deviation(
        "fedrc",
        "diverse-shift",
        RANDOM,
        CLUSTERED,
        "mixtures depend on the start",
        {"init": "random"},
        common={"clusters": 3},
    ),
    Deviation(
        "fesem",
        "rotated-digits",
        RANDOM,
        CLUSTERED,
        "few clusters attract most clients if models are random",
        {"init": "random"},
        common={"clusters": 4},
    ),
    Deviation(
        "cfl",
        "rotated-digits",
        "eps1 0.4, eps2 1.6",
        BY_TESTS,
        PORTABLE,
        {"eps1": 0.4, "eps2": 1.6},
    ),
    Deviation("icfl", "rotated-digits", "alpha0 0.98", BY_TESTS, PORTABLE, {"alpha0": 0.98}),
    Deviation("stocfl", "rotated-digits", "tau 0.1", BY_TESTS, PORTABLE, {"tau": 0.1}),
    Deviation(
        "stocfl",
        "rotated-digits",
        "lambda 0.5",
        "lambda 0.05",
        "a strong pull keeps the models from fitting their groups",
        {"lam": 0.5},
    ),
    Deviation("hcfl+", "rotated-digits", "rho 0.3", BY_TESTS, PORTABLE, {"rho": 0.3}),
    Deviation(
        "hcfl+",
        "rotated-digits",
        "one shared body",
        "own bodies if a test finds them better",
        "turned images need other features",
        {"body": "shared"},
    ),
    Deviation(
        "hcfl+",
        "rotated-digits",
        "heads, then body",
        "heads and body together",
        "one pass over the samples instead of two",
        {"order": "heads-first"},
    ),
    Deviation(
        "hcfl+",
        "rotated-digits",
        "never merges",
        "merges by tests",
        "nothing else joins clusters that were split by mistake",
        {"merge": False},
    ),
    Deviation(
        "hcfl+",
        "diverse-shift",
        "removes an unclaimed cluster at once (rho 0.3)",
        "two rounds of grace (rho 0.3)",
        "a new cluster needs a round to win clients",
        {"grace": 0},
        common={"rho": 0.3, "backbone": "fedrc"},
    ),
    Deviation(
        "odcl",
        "odcl-clusterpath",
        "convex clustering: ten equidistant lambdas",
        "convex clustering: logarithmic grid",
        "equidistant lambdas may miss short intervals, and take longer",
        {"convex_grid": "equidistant"},
        common={"clustering": "convex"},
    ),
    Deviation(
        "two-phase",
        "mixed-regression",
        "step length alpha / (2 beta^2)",
        "least squares in the whitened subspace",
        "the length of the paper suits features near a multiple of the identity",
        {"anchor_step": "paper"},
        common={"clusters": 3},
    ),
)


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the runs of both sides of each deviation, seed by seed; a run that several rows share is made once."""
    made: dict[tuple[str, int], Cell] = {}
    for seed in range(seeds):
        for one in DEVIATIONS:
            for side in SIDES:
                made.setdefault((one.cell_name(side), seed), _cell(one, side, seed, quick))
    return list(made.values())


class OneShotCell(RunCell):
    """A run of a method without rounds."""

    @property
    def work(self) -> int:
        """One unit of work."""
        return 1


def _cell(one: Deviation, side: Side, seed: int, quick: bool) -> RunCell:
    options, kind = one.options(side, quick), RunCell if find_method(one.method).trains else OneShotCell
    return kind(one.cell_name(side), seed, one.scenario, SCENARIOS[one.scenario], one.method, options, take)


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the held-out score of the clients, the number of clusters and the agreement with the true groups."""
    metrics = result.metrics
    accuracy = metrics.get("accuracy")
    score = {"rmse": round(metrics["rmse"], 4)} if accuracy is None else {"accuracy": round(100 * accuracy, 2)}
    return {**score, "clusters": metrics["clusters"], "ari": round(metrics["ari"], 4)}


def tables(found: Found, quick: bool) -> list[Table]:
    """Return the table of all deviations."""
    header = ["method", "data", "paper", "default", "reason", "score: paper", "default", "ARI: paper", "default"]
    rows = []
    for one in DEVIATIONS:
        figure = _figure(one)
        scores = [spread(values_of(found, one.cell_name(side), figure), 2) for side in SIDES]
        aris = [spread(values_of(found, one.cell_name(side), "ari")) for side in SIDES]
        rows.append(
            [f"`{one.method}`", one.scenario, one.paper_text, one.default_text, one.reason, *scores, *aris],
        )
    return [Table("Accuracy in per cent, or root mean squared error: mean ± standard deviation (seeds)", header, rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claim for each deviation that the default is better than the paper's choice."""
    return [_better(one, found) for one in DEVIATIONS]


def _figure(one: Deviation) -> str:
    return "accuracy" if one.scenario in LEARNERS else "rmse"


def _better(one: Deviation, found: Found) -> Claim:
    """Compare both sides seed by seed; undecided within two standard errors of the mean difference."""
    figure, text = _figure(one), f"{one.method} on {one.scenario}: {one.default_text} rather than {one.paper_text}"
    paper, default = ({s: f[figure] for s, f in found.get(one.cell_name(side), {}).items()} for side in SIDES)
    sign = -1 if figure == "rmse" else 1
    gains = [sign * (default[seed] - paper[seed]) for seed in sorted(paper.keys() & default.keys())]
    if len(gains) < 2:
        return Claim(text, None, NOT_RUN)
    error = stdev(gains) / len(gains) ** 0.5
    evidence = f"better by {mean(gains):.2f}, standard error {error:.2f}"
    return Claim(text, mean(gains) > 0, evidence, abs(mean(gains)) > 2 * error)


REPRODUCTION = Reproduction(
    "deviations",
    "Defaults that differ from the papers, and their effect",
    "the settings of all four papers, and of the methods that they compare with",
    "Both runs of a row differ in the named setting only; everything else is Coterie's default, and the methods with a "
    "given number of clusters know it. The scenarios are small, so that the page can be measured again in minutes. The "
    "claim is that the default is better, by more than two standard errors over the seeds. Differences that cannot be "
    "switched off: `fedamp` scales a client's weights of the others to at most one, where the paper asks for a small "
    "alpha; `flexcfl` lets clients migrate by their training loss, since repeating the cold start on the same data "
    "repeats its decision; `fedgmm` uses the variance of all samples together; `pacfl`, `fedgroup` and `stocfl` give "
    "a newcomer the cluster with the lowest loss.",
    (),
    cells,
    5,
    1,
    tables,
    claims,
)
