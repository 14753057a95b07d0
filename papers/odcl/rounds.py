"""ODCL, table 3 and figure 5: number of rounds of FedAvg or IFCA until the error of ODCL after one round.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022, section 5 and appendix D.3. The error is the normalised MSE; a round matches ODCL when it is at most
ODCL's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from coterie.data import scenario
from coterie.experiments.reproduction import (
    NOT_RUN,
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
from papers.odcl.measures import (
    PAPER,
    Bar,
    errors_by_round,
    first_round,
    kept,
    normalised_mse,
    powers,
    shot,
    within,
)

FIRST_FOUR = "1:2,4:5,7:8,10:11"
PLUS_MINUS = "1:2,4:5,-2:-1,-5:-4"
NO_HALF = {"learner": "linear:half=false"}
"""The loss r^2 instead of r^2 / 2; the paper does not state which."""


def _matched(values: Sequence[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median over the runs that reached the error; None without any."""
    there = _matched(values)
    return median(there) if there else None


# ---- table 3 ---------------------------------------------------------------------------------------------------

CAP, QUICK_CAP = 1000, 400
STEP = {"lr": 0.01, "local_steps": 10}
CLOSE = f"near-truth:low={1 / 6},high={1 / 4}"
ALONE = {"init": "gaussian:sd=0"}
SEVERAL = {"init": CLOSE, "restarts": 1}


@dataclass(frozen=True)
class Setup:
    """A row: the true models, and the reading of FedAvg or IFCA."""

    name: str
    scenario: str
    data: Mapping[str, Any]
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def one_shot(self) -> str:
        """With one group ODCL is the mean of all solutions."""
        return "naive-averaging" if self.method == "fedavg" else "odcl"


def _alone(name: str, intervals: str, **more: Any) -> Setup:
    return Setup(name, "odcl-linear", {"intervals": intervals}, "fedavg", ALONE | more)


def _four(name: str, intervals: str | None, **more: Any) -> Setup:
    """Without intervals: the models of appendix D.2."""
    data = {} if intervals is None else {"intervals": intervals}
    return Setup(name, "odcl-clusterpath" if intervals is None else "odcl-linear", data, "ifca", SEVERAL | more)


BY_M = {"averaging": "all"}
"""The server divides a cluster's sum by the number of all clients instead of the members'."""
SETUPS = (
    _alone("K=1, [1, 2]", "1:2"),
    _alone("K=1, [1, 2], loss r^2", "1:2", **NO_HALF),
    _alone("K=1, [13, 14]", "13:14"),
    _four("K=4, D.2 models", None),
    _four("K=4, +-[1, 2], +-[4, 5]", PLUS_MINUS),
    _four("K=4, first four of figure 2", FIRST_FOUR),
    _four("K=4, D.2 models, divided by m", None, **BY_M),
    _four("K=4, +-[1, 2], +-[4, 5], divided by m", PLUS_MINUS, **BY_M),
    _four("K=4, first four of figure 2, divided by m", FIRST_FOUR, **BY_M),
)


@dataclass(frozen=True)
class Chase(AtOnce):
    """A cell: one drawing; ODCL once, then rounds until its error is reached."""

    setup: Setup
    cap: int
    seed: int

    @property
    def name(self) -> str:
        return self.setup.name

    def measure(self, folder: Path) -> Figures:
        setup = self.setup
        data = scenario(setup.scenario, samples=400, seed=self.seed, **setup.data)
        once = shot(data, setup.one_shot, self.seed, {})
        target = normalised_mse(data, once.models, once.groups)
        options = {**STEP, **setup.options, "rounds": self.cap}
        errors = errors_by_round(data, setup.method, self.seed, options, until=target)
        return kept({"odcl": target, "rounds": first_round(errors, target), "last": errors[-1]})


def table3_cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells seed by seed, so that an interrupted run has few seeds of every row."""
    return [Chase(setup, QUICK_CAP if quick else CAP, seed) for seed in range(seeds) for setup in _setups(quick)]


def _setups(quick: bool) -> Sequence[Setup]:
    """Quick: two rows that need few rounds."""
    return (SETUPS[1], SETUPS[3]) if quick else SETUPS


def table3_tables(found: Found, quick: bool) -> list[Table]:
    """Return the rounds of the runs that matched, and the number of those that never did."""
    header = ["set-up", "ODCL-KM++", "rounds, median", "least to largest", "never matched", "mean, these as 1000"]
    return [
        Table(
            "Table 3: rounds to the error of ODCL (paper: 440 for K=1, 655 for K=4)",
            header,
            [_row(found, setup) for setup in _setups(quick)],
        )
    ]


def _row(found: Found, setup: Setup) -> list[str]:
    values: Sequence[float | None] = values_of(found, setup.name, "rounds")
    if not values:
        return [setup.name, "1", NOT_RUN, "", "", ""]
    there = _matched(values)
    return [
        setup.name,
        "1",
        f"{median(there):g}" if there else "-",
        f"{min(there)} to {max(there)}" if there else "",
        f"{len(values) - len(there)} of {len(values)}",
        f"{_capped(values):.0f}",
    ]


def _capped(values: Sequence[float | None]) -> float:
    """Return the mean, where runs that never matched count as the cap."""
    return mean(CAP if value is None else value for value in values)


def _median_of(found: Found, setup: Setup) -> float | None:
    return _median(values_of(found, setup.name, "rounds"))


def table3_claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims: the bars, and each reading of the paper's two numbers (± 15 %)."""
    if quick:
        return [within("ODCL's error takes IFCA more than 50 rounds", [_bar(found, SETUPS[3], 50, QUICK_CAP)], 0)]
    alone, several, by_m = (SETUPS[0], SETUPS[2]), SETUPS[3:6], SETUPS[6:]
    return [
        within(
            "one round of ODCL is worth 100 to 400 rounds of FedAvg or IFCA (median of the runs that match)",
            [_bar(found, setup, 100, 400) for setup in (*alone, *several)],
            0,
        ),
        within(
            "the loss r^2 halves the rounds: ratio of medians 2.0 ± 0.1",
            [_ratio(found, SETUPS[0], SETUPS[1], 2.0, 0.1)],
        ),
        within(
            "dividing by m instead of the members takes four times the rounds: ratio of medians 4.0 ± 0.3",
            [_ratio(found, slow, fast, 4.0, 0.3) for slow, fast in zip(by_m, several, strict=True)],
        ),
        *(_near(found, setup, 440, "median of the runs that match") for setup in alone),
        *(_near_capped(found, setup, 440, "mean, runs that never match as 1000") for setup in alone),
        *(_near(found, setup, 655, "median of the runs that match") for setup in (*several, *by_m)),
    ]


def _bar(found: Found, setup: Setup, low: float, high: float) -> Bar:
    return Bar(setup.name, _median_of(found, setup), low, high)


def _ratio(found: Found, slow: Setup, fast: Setup, expected: float, allowed: float) -> Bar:
    """Return the claim about the ratio of the medians of two rows."""
    a, b = _median_of(found, slow), _median_of(found, fast)
    return Bar(fast.name, None if a is None or b is None else a / b, expected - allowed, expected + allowed)


def _near(found: Found, setup: Setup, paper: int, reading: str) -> Claim:
    return _reading(setup, paper, reading, _median_of(found, setup))


def _near_capped(found: Found, setup: Setup, paper: int, reading: str) -> Claim:
    values: Sequence[float | None] = values_of(found, setup.name, "rounds")
    return _reading(setup, paper, reading, _capped(values) if values else None)


def _reading(setup: Setup, paper: int, reading: str, value: float | None) -> Claim:
    bar = Bar("rounds", value, 0.85 * paper, 1.15 * paper)
    return within(f"the paper's {paper} rounds (± 15 %): {setup.name} ({reading})", [bar], 0)


UNSTATED = (
    "The paper does not state the models of this table, the factor of the loss, or how it counts runs that never match."
)
TABLE3_EXPLANATIONS = (
    Explanation("the paper's 440 rounds", UNSTATED, "K = 1: FedAvg needs 440 rounds"),
    Explanation("the paper's 655 rounds", UNSTATED, "K = 4: IFCA needs 655 rounds"),
)
FIGURE5_EXPLANATIONS = (
    Explanation(
        "IFCA matches ODCL after 20",
        "The paper's three numbers are not inversely proportional to its step sizes, as ours are.",
    ),
    Explanation(
        "IFCA cannot match ODCL",
        "IFCA converges to averages of the members' data, which are slightly better than averages of their solutions.",
    ),
)
TABLE3 = Reproduction(
    "odcl-table3",
    "Rounds that FedAvg and IFCA need for the error of one-shot clustering",
    f"{PAPER}, table 3",
    "m = 100, d = 20, n = 400, 10 local steps of 0.01, at most 1000 rounds. FedAvg starts at zero, IFCA at D/6 to D/4 "
    "from the true models. The paper does not state the models of this table, the factor of the loss, or how it counts "
    "runs that never match (averaging data is slightly better than averaging solutions, but not in every drawing); so "
    "several readings are shown. The loss is r^2 / 2 unless stated otherwise.",
    (),
    table3_cells,
    10,
    1,
    table3_tables,
    table3_claims,
    explanations=TABLE3_EXPLANATIONS,
)


# ---- figure 5 --------------------------------------------------------------------------------------------------

STEPS = (0.1, 0.05, 0.01)
SIZES = (400, 600)
FAR = f"near-truth:low={1 / 5},high={1 / 3}"
PROGRESS = 6.0
"""Rounds times step size, after which less than 1e-6 of the initial distance remains, so more rounds have no effect."""
SAID = {400: {0.1: 20, 0.05: 20, 0.01: 70}}
"""The paper's rounds until IFCA matches ODCL, read off its text."""


@dataclass(frozen=True)
class Curves(AtOnce):
    """A cell: one drawing of D.2; IFCA with three step sizes and both losses against ODCL."""

    n: int
    progress: float
    seed: int

    @property
    def name(self) -> str:
        return f"n={self.n}"

    def measure(self, folder: Path) -> Figures:
        data = scenario("odcl-clusterpath", samples=self.n, seed=self.seed)
        convex = shot(data, "odcl", self.seed, {"clustering": "convex", "lam": "oracle13"})
        oracle = shot(data, "oracle-averaging", self.seed, {})
        odcl, best = (normalised_mse(data, each.models, each.groups) for each in (convex, oracle))
        figures: Figures = {"odcl": odcl, "oracle": best}
        for lr in STEPS:
            options = {"init": FAR, "restarts": 1, "local_steps": 10, "lr": lr, "rounds": round(self.progress / lr)}
            errors = errors_by_round(data, "ifca", self.seed, options)
            whole = errors_by_round(data, "ifca", self.seed, {**options, **NO_HALF}, until=min(odcl, best))
            figures |= {
                f"rounds {lr:g}": first_round(errors, odcl),
                f"rounds {lr:g} r^2": first_round(whole, odcl),
                f"oracle rounds {lr:g}": first_round(errors, 1.01 * best),
                f"final {lr:g}": errors[-1] / best,
            }
        return kept(figures)


def figure5_cells(seeds: int, quick: bool) -> list[Cell]:
    """Seed by seed; quick: a tenth of the rounds would tell nothing, so the smaller n alone."""
    return [Curves(n, PROGRESS, seed) for seed in range(seeds) for n in (SIZES[:1] if quick else SIZES)]


def figure5_tables(found: Found, quick: bool) -> list[Table]:
    """Return the errors of the one-shot methods, and those of IFCA."""
    errors = Table(
        "Normalised MSE: mean ± standard deviation (seeds)",
        ["n", "ODCL-CC, lambda by (13)", "Oracle Averaging"],
        [[str(n), *(powers(values_of(found, f"n={n}", name)) for name in ("odcl", "oracle"))] for n in SIZES],
    )
    header = [
        "n, step size",
        "paper: rounds to match ODCL",
        "ours, median",
        "never matched",
        "with loss r^2",
        "rounds to Oracle Averaging + 1 %",
        "last error / Oracle Averaging",
    ]
    rows = [_step_row(found, n, lr) for n in SIZES for lr in STEPS]
    return [errors, Table("Figure 5: rounds of IFCA", header, rows)]


def _step_row(found: Found, n: int, lr: float) -> list[str]:
    figures = partial(values_of, found, f"n={n}")
    label, said = f"{n}, {lr:g}", str(SAID[n][lr]) if n in SAID else "never"
    rounds: Sequence[float | None] = figures(f"rounds {lr:g}")
    if not rounds:
        return [label, said, NOT_RUN, "", "", "", ""]
    return [
        label,
        said,
        _shown(_median(rounds)),
        f"{len(rounds) - len(_matched(rounds))} of {len(rounds)}",
        _shown(_median(figures(f"rounds {lr:g} r^2"))),
        _shown(_median(figures(f"oracle rounds {lr:g}"))),
        spread(figures(f"final {lr:g}"), 3),
    ]


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:g}"


def figure5_claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims of the paper about both panels, and the bars."""
    ends = {400: (0.86, 0.94), 600: (0.90, 0.98)}
    sizes = SIZES[:1] if quick else SIZES
    made = [
        within(
            "n=400: IFCA matches ODCL after 20, 20, 70 rounds (each ± half) with steps 0.1, 0.05, 0.01",
            [
                Bar(f"{lr:g}", _median(values_of(found, "n=400", f"rounds {lr:g}")), said / 2, said * 1.5)
                for lr, said in SAID[400].items()
            ],
            0,
        ),
        within(
            "n=400: the same numbers of rounds with loss r^2",
            [
                Bar(f"{lr:g}", _median(values_of(found, "n=400", f"rounds {lr:g} r^2")), said / 2, said * 1.5)
                for lr, said in SAID[400].items()
            ],
            0,
        ),
    ]
    if not quick:
        made.append(_never(found))
    made += [
        within(
            f"n={n}: IFCA ends at {(low + high) / 2:.2f} ± 0.04 of the error of Oracle Averaging, whatever the step",
            [Bar(f"{lr:g}", mean_of(found, f"n={n}", f"final {lr:g}"), low, high) for lr in STEPS],
            3,
        )
        for n, (low, high) in ends.items()
        if n in sizes
    ]
    return made


def _never(found: Found) -> Claim:
    """The paper's right panel."""
    text = "n=600: IFCA cannot match ODCL, however many rounds it is given"
    runs = [values_of(found, "n=600", f"rounds {lr:g}") for lr in STEPS]
    if not all(runs):
        return Claim(text, None, NOT_RUN)
    matched = [len(_matched(each)) for each in runs]
    shown = ", ".join(f"{lr:g}: {n} of {len(each)} match" for lr, n, each in zip(STEPS, matched, runs, strict=True))
    return Claim(text, not any(matched), shown)


FIGURE5 = Reproduction(
    "odcl-figure5",
    "IFCA from a start near the truth against one-shot clustering",
    f"{PAPER}, figure 5 (appendix D.3)",
    "The data of D.2, 10 local steps, starts at D/5 to D/3 from the true models. ODCL is convex clustering with lambda "
    "by (13) of the true clusters, as in the paper. The number of rounds times the step size is 6, after which IFCA "
    "does not change any more: fewer rounds than the paper's 1000 if the step is large, with the same result. The loss "
    "is r^2 / 2 unless stated otherwise.",
    (),
    figure5_cells,
    10,
    1,
    figure5_tables,
    figure5_claims,
    explanations=FIGURE5_EXPLANATIONS,
)
REPRODUCTIONS = (TABLE3, FIGURE5)
