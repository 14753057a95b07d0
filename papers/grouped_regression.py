"""Real grouped data: held-out error of clustered models, compared with the usual statistical models.

No paper: two data sets with a regression in every group and no known clusters. Every seed holds out another quarter of
each client's rows. The figures are the root mean squared error of each client on its own held-out rows, averaged over
clients, and over the tenth of the clients for whom it is largest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coterie.core.dataset import FederatedDataset
from coterie.data import scenario
from coterie.evaluate.metrics import worst_tenth
from coterie.evaluate.mixed_model import alone_rmse, mixed_model_rmse, pooled_rmse
from coterie.experiments.reproduction import (
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
from coterie.training.result import Result

DATA = ("school", "grunfeld")
CLUSTERED: dict[str, dict[str, object]] = {"ifca": {"restarts": 5}, "two-phase": {"anchor_step": "paper"}}
"""Methods with a given K, and their options; a method added here is in all cells, tables and claims."""
ONE_OR_ALL = ("fedavg", "local")
CLUSTERS = (2, 3, 4)
ROUNDS, QUICK_ROUNDS = 600, 40
OPTIONS = {"local_steps": 10, "evaluate_every": 50}
FITS: dict[str, Callable[[FederatedDataset], npt.NDArray[np.float64]]] = {
    "pooled least squares": pooled_rmse,
    "least squares alone": alone_rmse,
    "mixed model": mixed_model_rmse,
}


@dataclass(frozen=True)
class Fit:
    """A cell: one of the usual statistical models."""

    data: str
    model: str
    seed: int
    work: int = 1

    @property
    def name(self) -> str:
        return f"{self.data} {self.model}"

    def done(self, folder: Path) -> int:
        return 0

    def measure(self, folder: Path) -> Figures:
        """Fit from the start: closed forms and one likelihood need no checkpoint."""
        errors = FITS[self.model](scenario(self.data, seed=self.seed))
        return {"rmse": float(errors.mean()), "worst_tenth": worst_tenth(errors, higher_is_better=False)}


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the same figures of a run, its number of clusters with members, and the last decrease of its loss."""
    losses = [record["loss"] for record in result.records]
    fall = 100 * (losses[-len(losses) // 10] - losses[-1]) / losses[-1]
    return {**{name: result.metrics[name] for name in ("rmse", "worst_tenth", "clusters", "loss")}, "fall": fall}


def _methods() -> list[tuple[str, str, dict[str, object]]]:
    """Row, method and its options."""
    one: list[tuple[str, str, dict[str, object]]] = [(method, method, {}) for method in ONE_OR_ALL]
    several: list[tuple[str, str, dict[str, object]]] = [
        (f"{method} K={k}", method, {"clusters": k, **own}) for method, own in CLUSTERED.items() for k in CLUSTERS
    ]
    return [*one, *several]


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells seed by seed, so that an interrupted run has few seeds of all rows."""
    options = {**OPTIONS, "rounds": QUICK_ROUNDS if quick else ROUNDS}
    made: list[Cell] = []
    for seed in range(seeds):
        for data in DATA:
            made += [Fit(data, model, seed) for model in FITS]
            made += [
                RunCell(f"{data} {row}", seed, data, {}, method, {**options, **own}, take)
                for row, method, own in _methods()
            ]
    return made


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a table for each data set, the usual statistical models first."""
    return [_table(found, data) for data in DATA]


def _table(found: Found, data: str) -> Table:
    rows = [*FITS, *(row for row, _, _ in _methods())]
    header = [
        "model",
        "held-out RMSE, mean over clients",
        "worst tenth",
        "clusters in use",
        "loss fell in the last tenth",
    ]
    return Table(data, header, [_row(found, data, row) for row in rows])


def _row(found: Found, data: str, row: str) -> list[str]:
    figures = partial(values_of, found, f"{data} {row}")
    texts = [spread(figures(name)) for name in ("rmse", "worst_tenth")]
    used, fall = figures("clusters"), figures("fall")
    return [row, *texts, *([f"{np.mean(used):.1f}", f"{np.mean(fall):.2f} %"] if used else ["", ""])]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Compare the methods by the mean over seeds of the mean over clients; all have the same held-out rows."""
    made = []
    for data in DATA:
        for method in CLUSTERED:
            made += [_beats(found, data, _best(found, data, method), other, f"{method} (its best K)") for other in FITS]
        made.append(_beats(found, data, "mixed model", "pooled least squares", "the mixed model"))
    return made


def _best(found: Found, data: str, method: str) -> str:
    """Return the row of the K with the lowest held-out error; K is not chosen on other data, which flatters it."""
    rows = [f"{method} K={k}" for k in CLUSTERS]
    return min(rows, key=lambda row: float(np.mean(values_of(found, f"{data} {row}", "rmse") or [np.inf])))


def _beats(found: Found, data: str, row: str, other: str, reported: str) -> Claim:
    """Return the claim that one row is better, by the seeds that both have."""
    mine, theirs = (found.get(f"{data} {name}", {}) for name in (row, other))
    seeds = sorted(mine.keys() & theirs.keys())
    text = f"{data}: {reported} has a smaller held-out error than {other}"
    if not seeds:
        return Claim(text, None, "not run")
    gaps = [mine[seed]["rmse"] - theirs[seed]["rmse"] for seed in seeds]
    better = sum(gap < 0 for gap in gaps)
    evidence = f"{row}: {np.mean(gaps):+.2f} on average, smaller in {better} of {len(seeds)} seeds"
    return Claim(text, float(np.mean(gaps)) < 0, evidence)


REPRODUCTION = Reproduction(
    "grouped-regression",
    "Held-out error of one model, one for each client, clusters, and a linear mixed model",
    "no paper; 139 London schools, and Grunfeld's 11 firms as statsmodels has them",
    "All models are linear with an intercept on standardised features. A quarter of each client's rows is held out, "
    "different ones in every seed. `fedavg` with several local steps is not the pooled least-squares solution; `local` "
    "is gradient descent on the problem that `least squares alone` solves exactly. The mixed model has common slopes "
    "and a random intercept for each client. Step sizes follow from the training rows; the number of rounds is large "
    "enough for constant training losses. `its best K` is the K with the lowest error on the same held-out rows, which "
    "flatters the method; all K are in the tables.",
    ("school",),
    cells,
    3,
    1,
    tables,
    claims,
)
