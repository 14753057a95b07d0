"""IFCA, figure 3: how often random starts find the true linear models, over separation, noise, clients and samples.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020, section 6.1.
A trial draws true models and data; 10 random starts, side by side, run 300 rounds with each of three step sizes. A
start succeeds if its models end within 0.6 sigma + 0.001 of the true ones, on average under the best matching; a trial
succeeds if any of its 30 runs does. Starts are never raced here: the figure is about single starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.errors import TrainingError
from coterie.experiments.reproduction import Cell, Claim, Figures, Found, Reproduction, Table, mean_of, values_of
from coterie.training.fitting import initialize
from coterie.training.loop import train
from coterie.training.planning import prepare
from papers.pictures import Panel, Picture, curves

ROUNDS, STARTS = 300, 10
STEP_SIZES = {2: (0.1, 1.0, 0.01), 4: (2.0, 1.0, 0.5)}
"""Step sizes gamma, by the number of groups."""


@dataclass(frozen=True)
class Setting:
    """One point of a panel."""

    panel: str
    k: int
    R: float
    sigma: float
    m: int
    n: int
    d: int

    @property
    def name(self) -> str:
        return f"({self.panel}) k={self.k} sigma={self.sigma:g} R={self.R:g} m={self.m} n={self.n} d={self.d}"

    @property
    def threshold(self) -> float:
        """dist <= 0.6 sigma counts as success; the 0.001 is for sigma = 0."""
        return 0.6 * self.sigma + 0.001


@dataclass(frozen=True)
class Trial:
    """A cell: one drawing of true models and data, ten starts, three step sizes."""

    setting: Setting
    seed: int
    dtype: str
    rounds: int = ROUNDS

    @property
    def name(self) -> str:
        return self.setting.name

    @property
    def work(self) -> int:
        s = self.setting
        return max(1, s.m * s.n * s.d * (s.k + 1) * self.rounds // 10**8)

    def done(self, folder: Path) -> int:
        return 0

    def measure(self, folder: Path) -> Figures:
        s = self.setting
        data = scenario(
            "ifca-synthetic",
            clients=s.m,
            samples=s.n,
            dimension=s.d,
            groups=s.k,
            norm=s.R,
            noise=s.sigma,
            seed=self.seed,
        )
        distances = {f"{lr:g}": self._distances(data, lr) for lr in STEP_SIZES[s.k]}
        shares = {lr: float(np.mean(found <= s.threshold)) for lr, found in distances.items()}
        return {
            "success": float(max(shares.values()) > 0),
            "share": max(shares.values()),
            "shares": shares,
            "best": round(float(min(found.min() for found in distances.values()) / s.threshold), 3),
        }

    def _distances(self, data: FederatedDataset, lr: float) -> np.ndarray:
        """Return dist of each start after the last round, (R,); infinite if it diverged."""
        options = {"restarts": STARTS, "lr": lr, "seed": self.seed, "rounds": self.rounds, "dtype": self.dtype}
        plan = prepare(data, "ifca", None, {**options, "init": "random"})
        state = initialize(plan).state
        try:
            with torch.no_grad():
                for step in train(plan.method, plan.run, state):
                    state = step.state
        except TrainingError:  # every client's update overflowed: no start can have succeeded
            return np.full(STARTS, np.inf)
        assert data.true_models is not None
        found = state.clusters.params["weight"].numpy().reshape(STARTS, -1, data.true_models.shape[1])
        return np.array([mean_distance(data.true_models, models) for models in found])


def mean_distance(true: np.ndarray, found: np.ndarray) -> float:
    """Return (1/k) sum_j |found_j - true_j|, both (k, d), under the one-to-one matching that minimises it."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    if not np.isfinite(found).all():
        return float("inf")
    distance = np.linalg.norm(true[:, None] - found[None], axis=2)
    rows, columns = linear_sum_assignment(distance)
    return float(distance[rows, columns].mean())


@dataclass(frozen=True)
class Scale:
    """The panels at one size; the paper's N_j / d = m n / (k d) is kept in all of them."""

    d: int
    separations: tuple[float, ...]
    noises: dict[int, tuple[float, ...]]
    m: dict[int, int]
    n: int
    grid: dict[int, tuple[tuple[int, int], ...]]
    """Pairs (m, n) of panels (c) and (d), by k."""
    grid_separations: dict[int, tuple[float, ...]]
    """R of panels (c) and (d), by k."""
    dtype: str = "float64"

    def settings(self) -> list[Setting]:
        first = [
            Setting(panel, k, R, sigma, self.m[k], self.n, self.d)
            for panel, k in (("a", 2), ("b", 4))
            for sigma in self.noises[k]
            for R in self.separations
        ]
        second = [
            Setting(panel, k, R, 0.1, m, n, self.d)
            for panel, k in (("c", 2), ("d", 4))
            for R in self.grid_separations[k]
            for m, n in self.grid[k]
        ]
        return first + second


def _pairs(ms: Sequence[int], ns: Sequence[int]) -> tuple[tuple[int, int], ...]:
    return tuple((m, n) for n in ns for m in ms)


REDUCED = Scale(
    200,
    (0.1, 0.25, 0.5, 1.0),
    {2: (0.1, 0.4), 4: (0.1,)},
    {2: 40, 4: 160},
    50,
    {2: (*_pairs((40, 80), (25,)), *_pairs((20, 40, 80, 160), (50,))), 4: _pairs((40, 80, 160), (50,))},
    {2: (0.1, 0.25), 4: (0.5,)},
)
FULL = Scale(
    1000,
    (0.1, 0.25, 0.5, 0.75, 1.0),
    {2: (0.0, 0.1, 0.2, 0.4), 4: (0.0, 0.1, 0.2, 0.4)},
    {2: 100, 4: 400},
    100,
    {2: _pairs((50, 100, 200, 400), (50, 100, 200)), 4: _pairs((100, 200, 400, 800), (50, 100, 200))},
    {2: (0.1,), 4: (0.5,)},
    "float32",
)
QUICK = Scale(
    50,
    (0.25, 1.0),
    {2: (0.1,), 4: (0.1,)},
    {2: 20, 4: 40},
    25,
    {2: _pairs((10, 40), (25,)), 4: _pairs((20, 80), (25,))},
    {2: (0.25,), 4: (0.5,)},
)


def _settings(scale: Scale, quick: bool) -> list[Setting]:
    return (QUICK if quick else scale).settings()


def cells(scale: Scale, seeds: int, quick: bool) -> list[Cell]:
    """Return the cells trial by trial over all settings, so that an interrupted run has few trials of every setting."""
    return [Trial(setting, seed, scale.dtype) for seed in range(seeds) for setting in _settings(scale, quick)]


def tables(scale: Scale, found: Found, quick: bool) -> list[Table]:
    """Return a table for each panel: successful trials, and the share of successful starts."""
    made = []
    for panel, what in (("a", "over R"), ("b", "over R"), ("c", "over m and n"), ("d", "over m and n")):
        settings = [s for s in _settings(scale, quick) if s.panel == panel]
        header = [
            "setting",
            "trials with success",
            "share of starts that succeed",
            "by step size",
            "best dist / threshold",
        ]
        rows = [_row(found, setting) for setting in settings]
        made.append(Table(f"({panel}) k={settings[0].k}, d={settings[0].d}, {what}", header, rows))
    return made


def _row(found: Found, s: Setting) -> list[str]:
    label = f"sigma={s.sigma:g}, R={s.R:g}" if s.panel in "ab" else f"m={s.m}, n={s.n} (R={s.R:g})"
    trials = [figures for _, figures in sorted(found.get(s.name, {}).items())]
    if not trials:
        return [label, "not run", "", "", ""]
    by_step = {lr: np.mean([t["shares"][lr] for t in trials]) for lr in trials[0]["shares"]}
    return [
        label,
        f"{sum(t['success'] for t in trials):.0f} of {len(trials)}",
        f"{np.mean([t['share'] for t in trials]):.2f}",
        ", ".join(f"{lr}: {share:.2f}" for lr, share in by_step.items()),
        f"{np.median([t['best'] for t in trials]):.2f}",
    ]


def claims(scale: Scale, found: Found, quick: bool) -> list[Claim]:
    """Return the claims about trends; at the reduced scale also about reference figures of an independent prototype."""
    settings = _settings(scale, quick)
    made = []
    for panel, sigma in sorted({(s.panel, s.sigma) for s in settings if s.panel in "ab"}):
        line = [s for s in settings if (s.panel, s.sigma) == (panel, sigma) and s.R >= 0.25]
        made.append(_rises(found, f"({panel}) sigma={sigma:g}: a larger R helps", [line[0], line[-1]]))
    for panel in "cd":
        for R, n in sorted({(s.R, s.n) for s in settings if s.panel == panel}):
            line = [s for s in settings if (s.panel, s.R, s.n) == (panel, R, n)]
            made.append(_rises(found, f"({panel}) R={R:g}, n={n}: more clients help", line))
    if scale is REDUCED and not quick:
        made += _reference(found, settings)
    return made


def _rises(found: Found, text: str, line: Sequence[Setting]) -> Claim:
    """Return the claim that the share of starts never decreases along the line and is higher in the end."""
    shares = [mean_of(found, s.name, "share") for s in line]
    known = [share for share in shares if share is not None]
    evidence = "share of starts " + ", ".join("not run" if v is None else f"{v:.2f}" for v in shares)
    if len(known) < len(shares):
        return Claim(text, None, evidence)
    rising = all(b >= a for a, b in pairwise(known))
    return Claim(text, rising and (known[-1] > known[0] or known[0] == 1), evidence)


def _reference(found: Found, settings: Sequence[Setting]) -> list[Claim]:
    def one(panel: str, **wanted: float) -> Setting:
        return next(s for s in settings if s.panel == panel and all(getattr(s, k) == v for k, v in wanted.items()))

    def claim(s: Setting, text: str, values: Sequence[float], low: float, high: float) -> Claim:
        mean = float(np.mean(values)) if values else None
        within = None if mean is None else low <= mean <= high
        reported = "not run" if mean is None else f"{mean:.3f} over {len(values)} trials"
        return Claim(f"{s.name}: {text} between {low:g} and {high:g}", within, reported)

    def of_step(s: Setting, lr: str) -> list[float]:
        return [t["shares"][lr] for _, t in sorted(found.get(s.name, {}).items())]

    two = [one("a", R=1, sigma=sigma) for sigma in (0.1, 0.4)]
    four, wide, narrow = one("b", R=1), one("c", m=80, n=50, R=0.25), one("c", m=20, n=50, R=0.25)
    return [
        *(claim(s, "trials with success", values_of(found, s.name, "success"), 0.95, 1) for s in two),
        *(claim(s, "share of starts", values_of(found, s.name, "share"), 0.6, 0.95) for s in two),
        claim(four, "share of starts with step size 2", of_step(four, "2"), 0.9, 1),
        claim(wide, "share of starts with step size 1", of_step(wide, "1"), 0.9, 1),
        claim(narrow, "trials with success", values_of(found, narrow.name, "success"), 0, 0),
    ]


def picture(scale: Scale, found: Found) -> Picture:
    """Return the share of successful starts over R, and over the number of clients, as in the paper's panels."""
    settings = scale.settings()
    panels = []
    for panel, k in (("a", 2), ("b", 4)):
        lines = {
            f"sigma={sigma:g}": _curve(found, [s for s in settings if (s.panel, s.sigma) == (panel, sigma)], "R")
            for sigma in scale.noises[k]
        }
        panels.append(Panel(f"({panel}) k={k}", "R", "share of starts that succeed", lines))
    for panel, k in (("c", 2), ("d", 4)):
        lines = {
            f"n={n}, R={R:g}": _curve(found, [s for s in settings if (s.panel, s.R, s.n) == (panel, R, n)], "m")
            for R in scale.grid_separations[k]
            for n in sorted({n for _, n in scale.grid[k]})
        }
        panels.append(Panel(f"({panel}) k={k}", "clients m", "share of starts that succeed", lines))
    return curves([replace(panel, curves={n: c for n, c in panel.curves.items() if c}) for panel in panels])


def _curve(found: Found, settings: Sequence[Setting], axis: str) -> list[tuple[float, float]]:
    shares = [(float(getattr(s, axis)), mean_of(found, s.name, "share")) for s in settings]
    return [(x, share) for x, share in shares if share is not None]


def _reproduction(name: str, title: str, scale: Scale, seeds: int, notes: str) -> Reproduction:
    return Reproduction(
        name,
        title,
        "Ghosh, Chung, Yin, Ramchandran 2020, figure 3",
        notes,
        (),
        partial(cells, scale),
        seeds,
        3,
        partial(tables, scale),
        partial(claims, scale),
        picture=partial(picture, scale),
    )


READING = (
    "True models are R times a vector of zeros and ones, and the starts are zeros and ones, as in the authors' public "
    "code. (With the scaling to length R of the text, a model of zeros would be a success for small R.) Gradients are "
    "those of (y - x.theta)^2, averaged over all clients. Ten starts run to the end without a race, each with three "
    "step sizes. Models are matched one to one. The figure in the paper has no numbers to compare with, so its trends "
    "are checked. With little data (m n / k below 3.8 d), even the least-squares solution with known groups misses the "
    "threshold, so the left edge of (c) and (d) is a property of the threshold."
)
REDUCED_SIZE = _reproduction(
    "ifca-figure3",
    "Success of random starts on synthetic linear models, d = 200",
    REDUCED,
    20,
    "A fifth of the paper's dimension with its m n / (k d). Panel (c) has the paper's R = 0.1, and R = 0.25, "
    "for which a prototype gave figures: the distance of two models grows with the root of d, so that 0.1 is a harder "
    "problem here than in the paper. " + READING,
)
PAPER_SIZE = _reproduction(
    "ifca-figure3-full",
    "Success of random starts on synthetic linear models, the paper's d = 1000",
    FULL,
    20,
    "The paper's size, in single precision; 20 trials instead of 40. " + READING,
)
