"""ODCL, theorem 2: clients solve their own problem by T steps of projected SGD instead of exactly.

Armacki, Bajovic, Jakovetic, Kar: A One-shot Framework for Distributed Clustered Learning in Heterogeneous
Environments, 2022, section 4.3. The paper has no figure of it; the setting is that of figure 2 with n = 200.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coterie.data import scenario
from coterie.experiments.reproduction import (
    AtOnce,
    Cell,
    Claim,
    Figures,
    Found,
    Reproduction,
    Table,
    mean_of,
    values_of,
)
from papers.odcl.measures import PAPER, at_least, counted, is_exact, kept, normalised_mse, powers, shot, truth_of
from papers.pictures import Panel, Picture, curves

SAMPLES = 200
STEPS = (100, 300, 1000, 3000, 10_000, 30_000)
QUICK_STEPS = (100, 1000)
RADIUS = 2.0
"""Radius of the ball onto which iterates are projected, as a multiple of the largest true model's norm."""
NEAR = 1.1
"""Error over that of exact solutions that counts as the same."""


@dataclass(frozen=True)
class InexactTrial(AtOnce):
    """A cell: one drawing, T steps of SGD at each client, then k-means++ and averages."""

    steps: int
    seed: int

    @property
    def name(self) -> str:
        return f"T={self.steps}"

    @property
    def work(self) -> int:
        """Number of steps."""
        return self.steps

    def measure(self, folder: Path) -> Figures:
        data = scenario("odcl-linear", samples=SAMPLES, seed=self.seed)
        radius = RADIUS * float(np.linalg.norm(truth_of(data)[1], axis=1).max())
        sgd = {"solver": "sgd", "sgd_steps": self.steps, "sgd_radius": radius}
        inexact = shot(data, "odcl", self.seed, {"clustering": "kmeans++", **sgd})
        own = shot(data, "local-erm", self.seed, sgd)
        exact, best = (shot(data, method, self.seed, {}) for method in ("local-erm", "oracle-averaging"))
        apart = np.linalg.norm(own.models[own.groups] - exact.models[exact.groups], axis=1)
        return kept(
            {
                "odcl": normalised_mse(data, inexact.models, inexact.groups),
                "oracle": normalised_mse(data, best.models, best.groups),
                "epsilon": float(np.mean(apart**2)),
                "exact": float(is_exact(data, inexact.groups)),
            }
        )


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells seed by seed."""
    return [InexactTrial(T, seed) for seed in range(seeds) for T in (QUICK_STEPS if quick else STEPS)]


def _ratios(found: Found, T: int) -> list[float]:
    ours, best = (values_of(found, f"T={T}", figure) for figure in ("odcl", "oracle"))
    return [a / b for a, b in zip(ours, best, strict=True)]


def tables(found: Found, quick: bool) -> list[Table]:
    """Return the error over T, with the distance of the clients' own solutions from exact ones."""
    header = ["T", "epsilon: |theta_i - exact|^2", "ODCL-KM++", "exact solutions", "ratio, mean", "true clusters"]
    rows = []
    for T in QUICK_STEPS if quick else STEPS:
        columns = [powers(values_of(found, f"T={T}", figure)) for figure in ("epsilon", "odcl", "oracle")]
        ratios = _ratios(found, T)
        shown = f"{np.mean(ratios):.2f}" if ratios else ""
        rows.append([str(T), *columns, shown, counted(values_of(found, f"T={T}", "exact"))])
    return [Table("Normalised MSE: mean ± standard deviation (seeds)", header, rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims of the theorem and of remark 18."""
    steps = QUICK_STEPS if quick else STEPS
    distances = [mean_of(found, f"T={T}", "epsilon") for T in steps]
    known = [value for value in distances if value is not None]
    slope = None
    if len(known) == len(steps):
        slope = float(np.polyfit(np.log(steps), np.log(known), 1)[0])
    rate = None if slope is None else slope <= -1
    largest = _ratios(found, steps[-1])
    errors = [mean_of(found, f"T={T}", "odcl") for T in steps]
    falls = None if None in errors else errors == sorted(errors, reverse=True)  # type: ignore[type-var]
    return [
        Claim(
            "the squared distance of a client's solution from the exact one falls as 1/T or faster", rate, _of(slope)
        ),
        Claim(
            "the error of ODCL falls with T", falls, ", ".join("not run" if e is None else f"{e:.2e}" for e in errors)
        ),
        at_least(
            f"with T = {steps[-1]} the error is within {NEAR - 1:.0%} of that of exact solutions, in 9 of 10 seeds",
            {f"T={steps[-1]}": [ratio <= NEAR for ratio in largest]},
            0.9,
        ),
        at_least(
            "the clusters are the true ones from T = 1000 on, in 9 of 10 seeds",
            {f"T={T}": values_of(found, f"T={T}", "exact") for T in steps if T >= 1000},
            0.9,
        ),
    ]


def _of(slope: float | None) -> str:
    return "not run" if slope is None else f"slope of log distance over log T: {slope:.2f}"


def picture(found: Found) -> Picture:
    """Return the error over the number of steps."""
    lines = {}
    for figure, name in (("odcl", "ODCL-KM++ with T steps of SGD"), ("oracle", "exact solutions")):
        means = [(float(T), mean_of(found, f"T={T}", figure)) for T in STEPS]
        lines[name] = [(T, mean) for T, mean in means if mean is not None]
    return curves([Panel("Theorem 2", "steps T of SGD", "normalised MSE", lines, log_x=True, log_y=True)])


REPRODUCTION = Reproduction(
    "odcl-theorem2",
    "Clients that solve their problem by T steps of SGD",
    f"{PAPER}, theorem 2 (no figure)",
    "The setting of figure 2 with n = 200: m = 100, K = 10, d = 20. The step size is 1/(mu t) with mu a client's "
    "smallest eigenvalue, and iterates are projected onto a ball of twice the largest true norm. Lemma 5 bounds the "
    "squared distance from exact solutions by a constant over T. The theorem's own bound on T is not used.",
    (),
    cells,
    seeds=10,
    quick_seeds=1,
    tables=tables,
    claims=claims,
    picture=picture,
)
