"""Mixed regression in two phases: the synthetic experiments of Su, Xu, Yang 2022, appendix C, and theorem 1's own form.

A trial draws true models and data and runs every method of a figure on them. The error is eq. (6): the largest
distance of a found model to its true one under the best matching. Left panels: the two-phase method with s = 1, 5, 10
local steps and with FedProx. Right panels: it is compared with FedAvg, one-shot clustering, IFCA (phase 2 from a random
start) and the oracle (phase 2 from the true models), all with s = 5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from coterie.core.dataset import FederatedDataset
from coterie.core.state import ServerState
from coterie.data import scenario
from coterie.evaluate.metrics import agreement, parameter_error
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
    spread,
    values_of,
)
from coterie.methods.moment_descent import Coarse, MomentDescent
from coterie.training.earlier import InitChoice
from coterie.training.fitting import initialize
from coterie.training.loop import train
from coterie.training.planning import prepare
from papers.pictures import Panel, Picture, curves

GROUPS, DIMENSION, NOISE, ROUNDS = 3, 100, "0.2", 400
EARLY = 100
"""The last round of the right panels."""
VARIANTS: dict[str, dict[str, Any]] = {
    "s=5": {"local_steps": 5},
    "s=1": {"local_steps": 1},
    "s=10": {"local_steps": 10},
    "fedprox": {"phase2": "fedprox"},
}


@dataclass(frozen=True)
class Setting:
    """One of the appendix's three configurations, with figures of independent prototypes."""

    name: str
    title: str
    options: Mapping[str, Any]
    oracle: tuple[float, float]
    """Mean error of the oracle, and the allowed difference."""
    least_squares: tuple[float, float]
    fedavg: tuple[float, float]
    coarse: tuple[float, float]
    """Error of the coarse models over Delta."""
    ifca: tuple[float, float]
    """Share of random starts that succeed with n_i/N weights."""
    phase_one: float
    """Lowest share of covered seeds whose coarse models are within Delta/2."""


SETTINGS = (
    Setting(
        "su-c1",
        "balanced data, balanced clusters",
        {"clients": 200, "samples": "50"},
        (0.040, 0.002),
        (0.0376, 0.0015),
        (0.88, 0.08),
        (0.285, 0.03),
        (0.0, 0.15),
        0.9,
    ),
    Setting(
        "su-c2",
        "unbalanced data, balanced clusters",
        {"clients": 920, "samples": "900x10+20x50"},
        (0.040, 0.003),
        (0.0375, 0.0025),
        (0.87, 0.08),
        (0.365, 0.04),
        (0.45, 0.85),
        0.9,
    ),
    Setting(
        "su-c3",
        "unbalanced data, unbalanced clusters",
        {"clients": 920, "samples": "900x10+20x50", "proportions": "0.2,0.3,0.5"},
        (0.047, 0.004),
        (0.0455, 0.003),
        (0.98, 0.09),
        (0.42, 0.05),
        (0.55, 0.95),
        0.8,
    ),
)


@dataclass(frozen=True)
class Trial(AtOnce):
    """A cell: one drawing of a setting, every method."""

    setting: Setting
    seed: int
    rounds: int = ROUNDS
    early: int = EARLY

    @property
    def name(self) -> str:
        return self.setting.title

    def measure(self, folder: Path) -> Figures:
        data = self.data()
        coarse = self._phase_one(data)
        found = models_of(coarse)
        least = least_squares_error(data)
        figures: Figures = {"least squares": least, **self._coarse_figures(data, coarse)}
        for name, options in VARIANTS.items():
            errors, state = self.errors(data, found, **options)
            figures[f"two-phase {name}"] = errors[-1]
            figures[f"rounds {name}"] = first_below(errors, 1.5 * least)
            if name == "s=5":
                figures |= {"two-phase early": errors[min(self.early, len(errors) - 1)], **identities(data, state)}
        figures |= self._others(data)
        return {name: round(v, 5) if isinstance(v, float) else v for name, v in figures.items()}

    def data(self) -> FederatedDataset:
        common = {"dimension": DIMENSION, "groups": GROUPS, "noise": NOISE, "test_samples": 1}
        return scenario("mixed-regression", seed=self.seed, **common, **self.setting.options)

    def _phase_one(self, data: FederatedDataset) -> Coarse:
        """Five iterations from a random start of norm 1, as in the paper."""
        return coarse_models(
            data, MomentDescent(clusters=GROUPS, start_norm=1.0, iterations=5, anchor_step="paper"), self.seed
        )

    def _coarse_figures(self, data: FederatedDataset, coarse: Coarse) -> Figures:
        shown = coarse_models(
            data,
            MomentDescent(
                clusters="auto", start_norm=1.0, iterations=5, anchor_step="paper", count_groups="merge-heights"
            ),
            self.seed,
        )
        return {
            **coarse_figures(data, coarse),
            "shown": float(shown.grouping.k),
            "shown covered": coarse_figures(data, shown)["covered"],
        }

    def _others(self, data: FederatedDataset) -> Figures:
        _, models = known(data)
        oracle, _ = self.errors(data, [{"weight": model} for model in models])
        stuck, _ = self.errors(data, "random")
        members, _ = self.errors(data, "random", averaging="members")
        figures: Figures = {
            "oracle": oracle[-1],
            "oracle early": oracle[min(self.early, len(oracle) - 1)],
            "ifca all": stuck[-1],
            "ifca all early": stuck[min(self.early, len(stuck) - 1)],
            "ifca members": members[-1],
            "fedavg": self._fedavg(data),
            "fedavg limit": common_model_error(data),
        }
        for name in ("least-norm", "moment"):
            labels = one_shot_labels(data, name, self.seed)
            grouped = replace(data, truth=labels)
            figures[f"one-shot {name}"] = run_errors(grouped, "oracle", None, self._options({}), models)[0][-1]
            figures[f"one-shot {name} wrong"] = 1 - float(agreement(known(data)[0], labels)["identity"])
        return figures

    def _options(self, more: Mapping[str, Any]) -> dict[str, Any]:
        own = {"averaging": "all", "client_weight": "samples", "lr": "auto", "local_steps": 5}
        return own | {"rounds": self.rounds, "seed": self.seed} | dict(more)

    def errors(self, data: FederatedDataset, start: InitChoice, **more: Any) -> tuple[list[float], ServerState]:
        """Return the error before the first and after every round of phase 2 from `start`."""
        options = self._options({"clusters": GROUPS, **more})
        return run_errors(data, "two-phase", start, options, known(data)[1])

    def _fedavg(self, data: FederatedDataset) -> float:
        """Return the largest distance of one model to the true ones."""
        options = {k: v for k, v in self._options({}).items() if k != "averaging"}
        _, state = run_errors(data, "fedavg", "random", options, None)
        found = state.clusters.params["weight"].numpy()
        return float(np.linalg.norm(known(data)[1] - found, axis=1).max())


def run_errors(
    data: FederatedDataset, method: str, init: InitChoice | None, options: Mapping[str, Any], models: np.ndarray | None
) -> tuple[list[float], ServerState]:
    """Return the error (eq. 6) after every round against `models`, if given, and the last state."""
    started = initialize(prepare(data, method, "linear", {**options, "init": init}))
    plan, state = started.plan, started.state

    def error() -> list[float]:
        return [] if models is None else [parameter_error(models, state.clusters.params["weight"].numpy())]

    errors = error()
    with torch.no_grad():
        for step in train(plan.method, plan.run, state):
            state = step.state
            errors += error()
    return errors, state


def coarse_models(data: FederatedDataset, settings: MomentDescent, seed: int) -> Coarse:
    """Run phase 1 alone."""
    federation = prepare(data, "moment-descent", "linear", {}).federation
    width, device = data.train.x.shape[1], torch.device("cpu")
    with torch.no_grad():
        return settings.descend(federation, width, settings.count, seed, torch.float64, device)


def coarse_figures(data: FederatedDataset, coarse: Coarse) -> Figures:
    """Return whether all groups have anchors, the error of their centres over Delta, and their distances."""
    truth, models = known(data)
    delta, own = separation(models), truth[coarse.anchors]
    way = np.linalg.norm(coarse.path.numpy() - models[own], axis=2).mean(axis=1) / delta
    return {
        "covered": float(len(np.unique(own)) == len(models)),
        "coarse": round(parameter_error(models, coarse.centres.numpy()) / delta, 5),
        "way": [round(float(w), 3) for w in way],
    }


def models_of(coarse: Coarse) -> list[dict[str, np.ndarray]]:
    """Return the centres as first models."""
    return [{"weight": centre.numpy()} for centre in coarse.centres]


def known(data: FederatedDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return the true groups (m,) and true models (k, d)."""
    assert data.truth is not None
    assert data.true_models is not None
    return data.truth, data.true_models


def separation(models: np.ndarray) -> float:
    """Delta."""
    return min(float(np.linalg.norm(a - b)) for a, b in combinations(models, 2))


def identities(data: FederatedDataset, state: ServerState) -> Figures:
    """Return the share of clients in a wrong cluster, in the last round."""
    return {"wrong": 1 - float(agreement(known(data)[0], state.choice[:, 0].numpy())["identity"])}


def clients_of(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (x, y) of each client."""
    x, y = data.train.x.numpy(), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


def least_squares_error(data: FederatedDataset) -> float:
    """Return the pooled least-squares solution of each true group."""
    truth, models = known(data)
    row_group = np.repeat(truth, data.train.sizes)
    x, y = data.train.x.numpy(), data.train.y.numpy()
    found = [np.linalg.lstsq(x[row_group == g], y[row_group == g])[0] for g in range(len(models))]
    return max(float(np.linalg.norm(f - m)) for f, m in zip(found, models, strict=True))


def common_model_error(data: FederatedDataset) -> float:
    """Return the largest distance of a true model to their weighted mean, to which a single model converges."""
    truth, models = known(data)
    shares = np.bincount(np.repeat(truth, data.train.sizes), minlength=len(models)) / data.train.sizes.sum()
    return float(np.linalg.norm(models - shares @ models, axis=1).max())


def one_shot_labels(data: FederatedDataset, estimator: str, seed: int) -> np.ndarray:
    """Run k-means on the clients' own estimates: least squares of minimum norm, or X^T y / n."""
    from sklearn.cluster import KMeans  # slow to import

    if estimator == "moment":
        estimates = np.stack([x.T @ y / len(y) for x, y in clients_of(data)])
    else:
        estimates = np.stack([np.linalg.pinv(x) @ y for x, y in clients_of(data)])
    labels: np.ndarray = KMeans(GROUPS, n_init=10, random_state=seed).fit_predict(estimates)
    return labels.astype(np.int64)


def first_below(errors: Sequence[float], level: float) -> int | None:
    """Return the first round whose error is at most `level`."""
    return next((t for t, error in enumerate(errors) if error <= level), None)


# ---- what is shown -------------------------------------------------------------------------------------------

ROWS = {
    "least squares": "least squares, true groups",
    "oracle": "oracle iterative clustering",
    "two-phase s=5": "two-phase, FedAvg s=5",
    "two-phase s=1": "two-phase, s=1",
    "two-phase s=10": "two-phase, s=10",
    "two-phase fedprox": "two-phase, FedProx",
    "fedavg": "vanilla FedAvg",
    "one-shot least-norm": "one-shot, least squares of minimum norm",
    "one-shot moment": "one-shot, X^T y / n",
    "ifca all": "IFCA, random start, averaging=all (the paper's)",
    "ifca members": "IFCA, random start, averaging=members (its option II)",
}


def cells(setting: Setting, seeds: int, quick: bool) -> list[Cell]:
    """Return a trial for each seed."""
    if quick:
        return [Trial(setting, seed, rounds=60, early=30) for seed in range(seeds)]
    return [Trial(setting, seed) for seed in range(seeds)]


def tables(setting: Setting, found: Found, quick: bool) -> list[Table]:
    """Return the tables of errors, speed of the variants, and distances of the anchors."""

    def figure(name: str) -> list[float]:
        return values_of(found, setting.title, name)

    errors = Table(
        f"Largest distance to a true model after {60 if quick else ROUNDS} rounds of phase 2",
        ["method", "mean ± sd (seeds)", "least to largest"],
        [[title, spread(figure(name), 4), _range(figure(name))] for name, title in ROWS.items()],
    )
    speed = Table(
        "Left panel: rounds of phase 2 until 1.5 times the error of least squares (median; - : not reached)",
        ["variant", "rounds", "seeds that got there"],
        [[name, *_rounds(figure(f"rounds {name}"))] for name in VARIANTS],
    )
    ways = [figures["way"] for _, figures in sorted(found.get(setting.title, {}).items())]
    means = np.mean(ways, axis=0).tolist() if ways else []
    anchors = Table(
        "Phase 1: mean distance of an anchor to its true model, over Delta",
        ["iteration", *(str(t) for t in range(len(means)))],
        [["ours", *(f"{value:.2f}" for value in means)]],
    )
    return [errors, speed, anchors]


def _range(values: Sequence[float]) -> str:
    return f"{min(values):.4f} to {max(values):.4f}" if values else ""


def _rounds(values: Sequence[float | None]) -> list[str]:
    there = [value for value in values if value is not None]
    return [f"{median(there):g}" if there else "-", f"{len(there)} of {len(values)}"]


def claims(setting: Setting, found: Found, quick: bool) -> list[Claim]:
    """Return the claims of the paper, with tolerances from prototypes; at the full number of rounds only."""
    seeds = found.get(setting.title, {})
    all_runs = list(seeds.values())
    covered = [f for f in seeds.values() if f["covered"]]
    made = [
        _share_claim(
            f"phase 1: coarse models within Delta/2 in at least {setting.phase_one:.0%} of covered seeds",
            [f["coarse"] < 0.5 for f in covered],
            setting.phase_one,
        ),
        _share_claim(
            "the anchors show the true number of groups in at least 9 of 10 covered seeds",
            [f["shown"] == GROUPS for f in seeds.values() if f["shown covered"]],
            0.9,
        ),
    ]
    if quick:
        return made
    made += _sentences(setting, found)
    made += [
        _share_claim(
            "two-phase ends at most 2 % above the oracle in at least 95 % of covered seeds",
            [f["two-phase s=5"] <= 1.02 * f["oracle"] for f in covered],
            0.95,
        ),
        _share_claim("no client is in a wrong cluster at the end", [f["wrong"] == 0 for f in covered], 1.0),
        _near(all_runs, "oracle", *setting.oracle),
        _near(all_runs, "least squares", *setting.least_squares),
        _near(all_runs, "fedavg", *setting.fedavg),
        _near(covered, "coarse", *setting.coarse),
        _share_claim(
            "vanilla FedAvg ends more than 15 times above the oracle",
            [f["fedavg"] > 15 * f["oracle"] for f in seeds.values()],
            1.0,
        ),
        _between(
            "IFCA from one random start with the paper's n_i/N weights ends within 1.2 times the oracle",
            [f["ifca all"] <= 1.2 * f["oracle"] for f in seeds.values()],
            setting.ifca,
        ),
        _share_claim(
            "IFCA that averages inside clusters reaches the oracle from random starts (so the weights decide)",
            [f["ifca members"] <= 1.2 * f["oracle"] for f in seeds.values()],
            0.95,
        ),
    ]
    return made


def _sentences(setting: Setting, found: Found) -> list[Claim]:
    """Return the paper's own sentences about the figure of this setting; some compare it with the one before."""
    here = list(found.get(setting.title, {}).values())
    balanced, unbalanced, _ = (list(found.get(one.title, {}).values()) for one in SETTINGS)
    fewer = [_reached(f, "s=10") <= _reached(f, "s=5") < _reached(f, "s=1") for f in here]
    faster = _share_claim("more local steps converge faster: s = 10, 5, 1 in this order, in 9 of 10 seeds", fewer, 0.9)
    oracle = "1.2 times the error of the oracle"
    close = [f["one-shot least-norm"] <= 1.2 * f["oracle"] for f in here]
    if setting is SETTINGS[0]:
        almost = [f["two-phase s=10"] <= 1.05 * f["two-phase s=1"] for f in here]
        return [
            faster,
            _share_claim("the final error stays almost the same: that of s = 10 at most 5 % above s = 1", almost, 0.9),
            _share_claim(f"one-shot clustering performs well: within {oracle} in 9 of 10 seeds", close, 0.9),
        ]
    if setting is SETTINGS[1]:
        return [
            faster,
            _above(
                "more local steps help less than in C.1: rounds of s = 1 over those of s = 10",
                [_reached(f, "s=1") / _reached(f, "s=10") for f in balanced],
                [_reached(f, "s=1") / _reached(f, "s=10") for f in here],
            ),
            _above(
                "the final error is inflated more than in C.1: that of s = 10 over s = 1",
                [f["two-phase s=10"] / f["two-phase s=1"] for f in here],
                [f["two-phase s=10"] / f["two-phase s=1"] for f in balanced],
            ),
            _above(
                "one-shot clustering is worse than in C.1: its error over the oracle's",
                [f["one-shot least-norm"] / f["oracle"] for f in here],
                [f["one-shot least-norm"] / f["oracle"] for f in balanced],
            ),
        ]
    poor = [not one for one in close]
    return [
        faster,
        _above(
            "convergence is slower than in C.2: rounds of s = 5",
            [_reached(f, "s=5") for f in here],
            [_reached(f, "s=5") for f in unbalanced],
        ),
        _share_claim(f"one-shot clustering performs poorly: above {oracle} in 9 of 10 seeds", poor, 0.9),
    ]


def _reached(figures: Figures, variant: str) -> float:
    """Return the rounds until 1.5 times the error of least squares; one more than all rounds if it was not reached."""
    rounds = figures[f"rounds {variant}"]
    return float(ROUNDS + 1 if rounds is None else max(rounds, 1))


def _above(text: str, larger: Sequence[float], smaller: Sequence[float]) -> Claim:
    """Return the claim that one mean is above another, undecided within two standard errors of their difference."""
    if len(larger) < 2 or len(smaller) < 2:
        return Claim(text, None, NOT_RUN)
    one, two = float(np.mean(larger)), float(np.mean(smaller))
    error = (np.var(larger, ddof=1) / len(larger) + np.var(smaller, ddof=1) / len(smaller)) ** 0.5
    evidence = f"{one:.3g} and {two:.3g}, standard error of the difference {error:.2g}"
    return Claim(text, one > two, evidence, bool(abs(one - two) > 2 * error))


def _share_claim(text: str, outcomes: Sequence[bool], least: float) -> Claim:
    if not outcomes:
        return Claim(text, None, "not run")
    return Claim(text, sum(outcomes) >= least * len(outcomes) - 1e-9, f"{sum(outcomes)} of {len(outcomes)}")


def _between(text: str, outcomes: Sequence[bool], limits: tuple[float, float]) -> Claim:
    text = f"{text} in {limits[0]:.0%} to {limits[1]:.0%} of seeds"
    if not outcomes:
        return Claim(text, None, "not run")
    share = sum(outcomes) / len(outcomes)
    return Claim(text, limits[0] <= share <= limits[1], f"{sum(outcomes)} of {len(outcomes)}")


def _near(seeds: Sequence[Figures], figure: str, expected: float, allowed: float) -> Claim:
    text = f"mean error of {figure}: {expected:g} ± {allowed:g}"
    if figure == "coarse":
        text = f"error of the coarse models over Delta, covered seeds: {expected:g} ± {allowed:g}"
    if not seeds:
        return Claim(text, None, "not run")
    mean = sum(f[figure] for f in seeds) / len(seeds)
    return Claim(text, abs(mean - expected) <= allowed, f"{mean:.4f}")


NOTES = (
    "N is 10,000 (the paper's 1000 contradicts its numbers of clients). True models are N(0, I/d) with d = 100; the "
    "noise is 0.2. There are 10 anchors, drawn among the largest clients, and all pairs of a client's samples are "
    "used. The step size is 0.9 over the largest curvature. Expected values are those of independent prototypes, "
    "because the text of the paper does not give the values of its figures. Phase 1 stops improving before it reaches "
    "the quarter of Delta of theorem 1 with this amount of data."
)


def picture(setting: Setting, found: Found) -> Picture:
    """Return the anchors' distance over the iterations of phase 1, and the rounds that phase 2 needs by variant."""
    runs = [figures for _, figures in sorted(found.get(setting.title, {}).items())]
    way = np.mean([figures["way"] for figures in runs], axis=0).tolist()
    anchors = Panel("Phase 1", "iteration", "anchors' distance / Delta", {"anchors": list(enumerate(way))})
    local = {"s=1": 1.0, "s=5": 5.0, "s=10": 10.0}
    rounds = [(s, median(_reached(figures, name) for figures in runs)) for name, s in local.items()]
    speed = Panel("Phase 2", "local steps s", "rounds to 1.5 least squares", {"two-phase": rounds})
    ends = [(s, float(np.mean([figures[f"two-phase {name}"] for figures in runs]))) for name, s in local.items()]
    best = float(np.mean([figures["least squares"] for figures in runs]))
    lines = {"two-phase": ends, "least squares, true groups": [(s, best) for s in local.values()]}
    return curves([anchors, speed, Panel("Phase 2", "local steps s", "final error", lines)], columns=3)


EXPLANATIONS = (
    Explanation(
        "the final error stays almost the same",
        "With more local steps a client moves further to its own solution; the paper shows curves without numbers.",
    ),
    Explanation("so the weights decide", "One of ten starts ends elsewhere, at an error of 1.4."),
    Explanation("error of the coarse models over Delta", "A prototype's figure; ours is smaller, that is better."),
    Explanation(
        "one-shot clustering performs poorly",
        "The paper does not say how it estimates a client's model from ten samples in 100 dimensions; least squares of "
        "minimum norm are often good enough.",
    ),
)


def _reproduction(setting: Setting, figure: int) -> Reproduction:
    return Reproduction(
        setting.name,
        f"Mixed regression, {setting.title}",
        f"Su, Xu, Yang 2022, appendix C.{figure}, figure {figure}",
        NOTES,
        (),
        partial(cells, setting),
        seeds=10,
        quick_seeds=2,
        tables=partial(tables, setting),
        claims=partial(claims, setting),
        family="su-appendix-c",
        explanations=EXPLANATIONS,
        picture=partial(picture, setting),
    )


# ---- theorem 1's own form ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FreshTrial(AtOnce):
    """A cell: phase 1 exactly as in the theorem, with two points of new clients in every iteration."""

    seed: int
    clients: int
    """m, new clients in each iteration."""
    pairs: int
    """l, new pairs of samples of an anchor in each iteration."""
    iterations: int = 8
    dimension: int = 20

    @property
    def name(self) -> str:
        return f"d={self.dimension} m={self.clients // self.dimension}d l={self.pairs}"

    def measure(self, folder: Path) -> Figures:
        crowd, own = self.clients * self.iterations, 2 * self.pairs * self.iterations
        data = scenario(
            "mixed-regression",
            seed=self.seed,
            dimension=self.dimension,
            groups=GROUPS,
            noise=NOISE,
            clients=crowd + 10,
            samples=f"{crowd}x2+10x{own}",
            test_samples=1,
        )
        settings = MomentDescent(
            clusters=GROUPS,
            anchors=10,
            moments="two-points",
            iterations=self.iterations,
            subspace_rounds=3,
            start_norm=1.0,
            anchor_step="paper",
        )
        return coarse_figures(data, coarse_models(data, settings, self.seed))


SIZES = ((10, 25), (40, 25), (160, 10), (160, 25), (160, 100))
"""m/d and l of each size."""


def fresh_cells(seeds: int, quick: bool) -> list[Cell]:
    """Return a cell for every size and seed."""
    sizes = ((10, 25), (160, 25)) if quick else SIZES
    return [FreshTrial(seed, 20 * m, pairs) for m, pairs in sizes for seed in range(seeds)]


def fresh_tables(found: Found, quick: bool) -> list[Table]:
    """Return the tables of successful seeds and distances of the anchors."""
    rows = []
    for cell in fresh_cells(1, quick):
        figures = [f for _, f in sorted(found.get(cell.name, {}).items())]
        way = np.mean([f["way"] for f in figures], axis=0) if figures else []
        inside = sum(f["coarse"] < 0.5 for f in figures)
        covered = str(int(sum(f["covered"] for f in figures)))
        rows.append([cell.name, f"{inside} of {len(figures)}", covered, " ".join(f"{w:.2f}" for w in way)])
    header = ["new clients a round, pairs of an anchor", "within Delta/2", "covered", "anchors' distance over Delta"]
    return [Table("Phase 1 to the letter: two points of new clients in each of 8 iterations, d = 20", header, rows)]


def fresh_claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims that many clients are necessary and sufficient."""
    few, many = found.get("d=20 m=10d l=25", {}), found.get("d=20 m=160d l=25", {})
    covered = [f["coarse"] < 0.5 for f in many.values() if f["covered"]]
    return [
        _share_claim("with m = 160 d new clients a round, covered seeds end within Delta/2", covered, 0.8),
        _share_claim(
            "with m = 10 d new clients a round, covered seeds do not end within Delta/2",
            [f["coarse"] >= 0.5 for f in few.values()],
            0.8,
        ),
    ]


THEORY = Reproduction(
    "su-theory",
    "Moment descent with fresh data, as theorem 1 assumes",
    "Su, Xu, Yang 2022, theorem 1",
    "Three pairs of exchanges for each subspace; in prototypes, six were as good as forty. Here too, the error stops "
    "decreasing at about a third of Delta.",
    (),
    fresh_cells,
    seeds=5,
    quick_seeds=2,
    tables=fresh_tables,
    claims=fresh_claims,
    explanations=(
        Explanation("do not end within Delta/2", "With d = 20 ten times d clients suffice in two of five drawings."),
    ),
)

# ---- remark 2: what the anchors' privacy costs ---------------------------------------------------------------

PERTURBATIONS = (0.0, 0.03, 0.1, 0.3, 1.0)
"""Standard deviation of each coordinate of the noise; a true model has norm 1, so coordinates of 0.1."""


@dataclass(frozen=True)
class PrivateTrial(AtOnce):
    """A cell: phase 1 of the second setting with noise on the anchors' models that clients receive."""

    sigma: float
    seed: int

    @property
    def name(self) -> str:
        return f"sigma={self.sigma:g}"

    def measure(self, folder: Path) -> Figures:
        data = Trial(SETTINGS[1], self.seed).data()
        settings = MomentDescent(
            clusters=GROUPS, start_norm=1.0, iterations=5, anchor_step="paper", private_anchors=self.sigma
        )
        coarse = coarse_models(data, settings, self.seed)
        return coarse_figures(data, coarse) | {"megabytes": round(coarse.cost.bytes_down / 1e6, 1)}


def private_cells(seeds: int, quick: bool) -> list[Cell]:
    """Return a cell for every noise level and seed."""
    return [PrivateTrial(sigma, seed) for sigma in PERTURBATIONS for seed in range(seeds)]


def private_tables(found: Found, quick: bool) -> list[Table]:
    """Return the table of the error of the coarse models and of bytes down, by noise."""
    rows = []
    for sigma in PERTURBATIONS:
        figures = [f for f in found.get(f"sigma={sigma:g}", {}).values() if f["covered"]]
        inside = sum(f["coarse"] < 0.5 for f in figures)
        errors, megabytes = [f["coarse"] for f in figures], [f["megabytes"] for f in figures]
        rows.append([f"{sigma:g}", spread(errors, 3), f"{inside} of {len(figures)}", spread(megabytes, 0)])
    header = ["noise a coordinate", "coarse models' error over Delta", "within Delta/2", "MB down"]
    return [Table("Phase 1 of C.2 with perturbed copies of the anchors' estimates, covered seeds", header, rows)]


def private_claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claim that the noise is averaged out."""
    pairs = [
        (found.get("sigma=0", {}).get(seed), figures)
        for seed, figures in found.get("sigma=0.1", {}).items()
        if figures["covered"]
    ]
    return [
        _share_claim(
            "noise as large as the coordinates of a true model costs less than 0.1 Delta",
            [b["coarse"] < a["coarse"] + 0.1 for a, b in pairs if a is not None],
            0.9,
        )
    ]


PRIVATE = Reproduction(
    "su-private",
    "The cost of the anchors' privacy",
    "Su, Xu, Yang 2022, remark 2",
    "Every client receives two copies of each anchor's estimate with different noise, which stays the same during one "
    "iteration. They are twice as large as the estimates and are sent to each client separately.",
    (),
    private_cells,
    seeds=5,
    quick_seeds=1,
    tables=private_tables,
    claims=private_claims,
)

REPRODUCTIONS = (*(_reproduction(setting, figure) for figure, setting in enumerate(SETTINGS, start=1)), THEORY, PRIVATE)
