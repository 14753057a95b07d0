"""Effect of the settings of HCFL+ on its accuracy and the number of clusters, compared with reference figures.

Guo, Tang, Lin: Enhancing Clustered Federated Learning: Integration of Strategies and Improved Methodologies, 2025,
tables 3, 6 and 7 and figure 3 on a small scale: recipe A of `hcfl-reference`, one setting changed at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from coterie.experiments.reproduction import (
    NOT_RUN,
    Cell,
    Claim,
    Found,
    Reproduction,
    RunCell,
    Table,
    mean_of,
    spread,
    values_of,
)
from papers.hcfl.reference import (
    EVERY,
    PLUS_FEDEM,
    PLUS_FEDRC,
    QUICK_ROUNDS,
    ROUNDS,
    SCENARIOS,
    Row,
    count_range,
    take,
)
from papers.hcfl.settings import of_the_paper

BACKBONES = (PLUS_FEDRC, PLUS_FEDEM)
Reference = tuple[str, str, str]
"""Val, Test and K as text."""


@dataclass(frozen=True)
class Knob:
    """One setting that differs from the row of `hcfl-reference`, and the reference's figures for each backbone."""

    title: str
    fedrc: Mapping[str, object] | None = None
    fedem: Mapping[str, object] | None = None
    """Changed options; None: not among the reference's figures."""
    fedrc_reference: Reference = ("", "", "")
    fedem_reference: Reference = ("", "", "")

    def changed(self, row: Row) -> Mapping[str, object] | None:
        return self.fedrc if row is PLUS_FEDRC else self.fedem

    def reference(self, row: Row) -> Reference:
        return self.fedrc_reference if row is PLUS_FEDRC else self.fedem_reference

    def cell(self, row: Row) -> str:
        return f"{row.title}, {self.title}"


def both(title: str, options: Mapping[str, object], fedrc: Reference, fedem: Reference) -> Knob:
    """Return the same change for both backbones."""
    return Knob(title, options, options, fedrc, fedem)


BASE = both("as it is", {}, ("74.3", "69.7", "3-4"), ("87.0", "60.5", "10-14"))
FINE = both("rho 0.1", {"rho": 0.1}, ("79.9", "70.9", "8-13"), ("87.9", "60.9", "24-27"))
FINEST = both("rho 0.05", {"rho": 0.05}, ("80.6", "69.9", "12-17"), ("88.8", "62.5", "28-31"))
NO_MU = Knob("mu 0", {"mu": 0.0}, None, ("76.4", "72.2", "3-5"))
MU = Knob("mu 0.4", None, {"mu": 0.4}, fedem_reference=("83.5", "53.1", "11-12"))
LARGE_MU = Knob("mu 0.9", {"mu": 0.9}, None, ("71.7", "62.9", "5"))
TOGETHER = both("heads and body together", {"order": "together"}, ("78.7", "73.6", "4-7"), ("86.7", "61.7", "10-14"))
BY_SHARE = both(
    "averaging by responsibility",
    {"averaging": "responsibility"},
    ("80.8", "65.2 (4.5)", "5-6"),
    ("88.1", "61.1", "13-16"),
)
TOGETHER_BY_SHARE = Knob(
    "together, by responsibility",
    {"order": "together", "averaging": "responsibility"},
    None,
    ("83.3", "73.1", "5-7"),
)
HARD = both("hard weights after a split", {"split": "hard"}, ("77.5", "70.0", "7-9"), ("84.7", "64.5", "12"))
THREE = both("K = 3 at first", {"clusters": 3}, ("72.2", "64.9 (5.0)", "3-5"), ("86.0", "59.6", "8-12"))
LATE = Knob("no split before round 10", {"warmup": 10}, None, ("75.4", "69.3", "4-5"))
KNOBS = (BASE, FINE, FINEST, NO_MU, MU, LARGE_MU, TOGETHER, BY_SHARE, TOGETHER_BY_SHARE, HARD, THREE, LATE)


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells seed by seed."""
    return [
        _cell(knob, row, changed, seed, quick)
        for seed in range(seeds)
        for knob in KNOBS
        for row in BACKBONES
        if (changed := knob.changed(row)) is not None
    ]


def _cell(knob: Knob, row: Row, changed: Mapping[str, object], seed: int, quick: bool) -> RunCell:
    options = {"rounds": QUICK_ROUNDS if quick else ROUNDS, "evaluate_every": EVERY, **row.options, **changed}
    options = of_the_paper(row.method, options)
    return RunCell(knob.cell(row), seed, *SCENARIOS["A"], row.method, options, take)


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a table for each backbone."""
    header = ["setting", "Val: reference", "ours", "Test: reference", "ours", "K: reference", "in use"]
    return [
        Table(
            f"{row.title}, best round, percent",
            header,
            [_row(found, knob, row) for knob in KNOBS if knob.changed(row) is not None],
        )
        for row in BACKBONES
    ]


def _row(found: Found, knob: Knob, row: Row) -> list[str]:
    val, test, k = knob.reference(row)

    def ours(figure: str) -> str:
        return spread(values_of(found, knob.cell(row), figure), digits=1)

    counts = count_range(values_of(found, knob.cell(row), "clusters"))
    return [knob.title, val, ours("val"), test, ours("test"), k, counts]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims about the settings, in the mean over seeds; only effects well beyond the spread."""

    def more(gap: float) -> bool:
        return gap > 0

    return [
        _moves(found, PLUS_FEDRC, FINE, "clusters", "there are more clusters", more),
        _moves(found, PLUS_FEDRC, FINEST, "val", "Val is higher", more),
        _moves(found, PLUS_FEDEM, FINE, "clusters", "there are more clusters", more),
        _moves(found, PLUS_FEDEM, MU, "test", "Test is at least 4 points lower", lambda gap: gap <= -4),
        _moves(found, PLUS_FEDRC, LARGE_MU, "test", "Test is at least 4 points lower", lambda gap: gap <= -4),
        _moves(found, PLUS_FEDRC, TOGETHER, "test", "Test is higher", more),
        _moves(found, PLUS_FEDRC, HARD, "clusters", "there are more clusters", more),
        _moves(found, PLUS_FEDEM, HARD, "test", "Test is higher", more),
    ]


def _moves(found: Found, row: Row, knob: Knob, figure: str, effect: str, met: Callable[[float], bool]) -> Claim:
    """Return the claim that compares a figure with and without a changed setting."""
    text = f"{row.title}: with {knob.title} {effect}"
    before, after = (mean_of(found, each.cell(row), figure) for each in (BASE, knob))
    if before is None or after is None:
        return Claim(text, None, NOT_RUN)
    return Claim(text, met(after - before), f"{before:.1f}, then {after:.1f}")


REPRODUCTION = Reproduction(
    "hcfl-knobs",
    "Effect of the settings of HCFL+ on its accuracy and the number of clusters",
    "the ablations of Guo, Tang, Lin 2025 on a small scale",
    "Recipe A of `hcfl-reference`, with the same Val and Test; one setting of HCFL+ is changed at a time. The "
    "reference is another implementation of the same recipe with other draws and three seeds; it gives deviations for "
    "few rows (in brackets).",
    ("fashion-mnist",),
    cells,
    seeds=3,
    quick_seeds=1,
    tables=tables,
    claims=claims,
)
