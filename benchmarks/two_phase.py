"""Phase 1 on realistic features: the anchors' steps of moment descent, and the result of two-phase.

    python benchmarks/two_phase.py             # ten seeds that had no part in the choice of the default
    python benchmarks/two_phase.py --seeds 3
    python benchmarks/two_phase.py --first 0   # the seeds on which the default was chosen
    python benchmarks/two_phase.py --count --first 300   # the number of groups that clusters=auto finds
    python benchmarks/two_phase.py --ends      # the models' errors without and with a last exchange
    python benchmarks/two_phase.py --starts    # phase 2 from other starts

120 clients (other numbers where a row says so) in three groups of linear models, 20 features, noise 0.2, least distance
of two true models 1.2. The numbers are adjusted Rand indices of the clients' clusters with the true groups: after phase
1 alone, after 60 rounds of phase 2, and in brackets in how many seeds the index is 1; `ifca` starts from five random
starts and runs as many rounds. K is given.
"""

import argparse
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from statistics import mean

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset

STEPS = ("paper", "line-search", "least-squares")
GROUPS, ROUNDS, FIRST = 3, 60, 100


@dataclass(frozen=True)
class Case:
    """A kind of data."""

    clients: int = 120
    samples: int = 40
    features: int = 20
    noise: float = 0.2
    learner: str = "linear"
    change: Callable[[np.ndarray], np.ndarray] = lambda x: x
    """Transformation of independent standard normal features."""


def correlated(x: np.ndarray, rho: float = 0.8) -> np.ndarray:
    """Neighbouring features correlate by rho, those two apart by rho^2 and so on."""
    places = np.arange(x.shape[-1])
    return x @ np.linalg.cholesky(rho ** np.abs(places[:, None] - places)).T


def scaled(x: np.ndarray, factor: float) -> np.ndarray:
    """The first feature is larger than the others."""
    return x * np.where(np.arange(x.shape[-1]) == 0, factor, 1.0)


CASES: dict[str, Case] = {
    "independent features": Case(),
    "correlated, AR(.8)": Case(change=correlated),
    "correlated, AR(.95)": Case(change=lambda x: correlated(x, 0.95)),
    "feature means 1": Case(change=lambda x: x + 1),
    "feature means 1, 15 samples": Case(samples=15, change=lambda x: x + 1),
    "one feature times 3": Case(change=lambda x: scaled(x, 3)),
    "one feature times 10": Case(change=lambda x: scaled(x, 10)),
    "degree 2 of 5 features": Case(features=5, learner="linear:degree=2,bias=true"),
    "degree 2 of 8 features": Case(features=8, samples=60, learner="linear:degree=2,bias=true"),
    "10 samples": Case(samples=10),
    "6 samples, 300 clients": Case(samples=6, clients=300),
    "noise 1, 80 samples": Case(samples=80, noise=1.0),
}


def drawn(case: Case, seed: int, place: int) -> FederatedDataset:
    """Return the clients of one seed."""
    from coterie.learners import make_learner

    random = np.random.default_rng([seed, place])
    truth = random.permutation(np.arange(case.clients) % GROUPS)
    x = case.change(random.standard_normal((case.clients, case.samples, case.features)))
    shell = coterie.from_arrays([(x[0], x[0, :, 0])])
    learner = make_learner(case.learner, shell.profile)
    phi = learner.features(torch.from_numpy(x)).numpy()  # type: ignore[attr-defined]
    models = random.standard_normal((GROUPS, phi.shape[-1]))
    models *= 1.2 / min(np.linalg.norm(a - b) for a, b in combinations(models, 2))
    y = np.einsum("mnp,mp->mn", phi, models[truth]) + case.noise * random.standard_normal(phi.shape[:2])
    return coterie.from_arrays(list(zip(x, y, strict=True)), truth=truth.tolist())


def ari(data: FederatedDataset, case: Case, method: str, seed: int, **options: object) -> float:
    """Return the agreement of a run with the true groups; 0 if it ends with an error."""
    try:
        result = coterie.fit(data, method, learner=case.learner, seed=seed, clusters=GROUPS, **options)
    except coterie.CoterieError:
        return 0.0
    return float(result.metrics["ari"])


COUNTED: dict[str, dict[str, object]] = {
    "1 in 20": {"groups": 1},
    "1 in 20, noise 1": {"groups": 1, "noise": "1"},
    "1 in 5": {"groups": 1, "dimension": 5},
    "2 in 20": {"groups": 2},
    "3 in 20": {"groups": 3},
    "3 in 20, 12 samples": {"groups": 3, "samples": "12"},
    "3 in 20, shares .1, .3, .6": {"groups": 3, "proportions": "0.1,0.3,0.6"},
    "5 in 20": {"groups": 5},
    "9 in 8": {"groups": 9, "dimension": 8, "clients": 180},
    "6 in 3": {"groups": 6, "dimension": 3, "clients": 180},
    "4 in 2": {"groups": 4, "dimension": 2},
}
"""Groups in how many features: options of the scenario mixed-regression, with a least distance of 1.2."""


def count(seeds: range) -> None:
    """Print the numbers of groups that moment descent finds, and the mean number of its anchors."""
    rules = ("merge-heights", "held-out")
    print("| groups, features | " + " | ".join(f"{rule}: K (seeds), anchors" for rule in rules) + " |")
    print("| --- |" + " --- |" * len(rules))
    for name, own in COUNTED.items():
        cells = []
        for rule in rules:
            found, anchors = [], []
            for seed in seeds:
                options = {"clients": 120, "samples": "40", "dimension": 20, "test_samples": 2, **own}
                apart = {} if own["groups"] == 1 else {"separation": 1.2}
                data = coterie.scenario("mixed-regression", seed=seed, **options, **apart)
                result = coterie.fit(data, "moment-descent", clusters="auto", seed=seed, count_groups=rule)
                found.append(len(result.models))
                anchors.append(len(result.metrics["moment_descent"]["anchors"]))
            numbers = ", ".join(f"{K} ({times})" for K, times in sorted(Counter(found).items()))
            cells.append(f"{numbers}; {mean(anchors):.0f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


ENDED: dict[str, dict[str, object]] = {
    "40 samples": {"samples": "40"},
    "5 to 60 samples": {"samples": "5-60"},
    "5 to 60 samples, shares .1, .3, .6": {"samples": "5-60", "proportions": "0.1,0.3,0.6"},
}
"""Sizes of clients and groups: options of the scenario mixed-regression."""


def ends(seeds: range) -> None:
    """Print the largest distance of a model from its true one after some rounds, without and with the last exchange."""
    runs = [(method, rounds) for method in ("two-phase", "ifca") for rounds in (10, ROUNDS)]
    columns = [f"{method}, {rounds} rounds{rest}" for method, rounds in runs for rest in ("", ", refit")]
    print("| clients | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for name, own in ENDED.items():
        options = {"clients": 120, "dimension": 20, "groups": GROUPS, "separation": 1.2, "test_samples": 2, **own}
        cells = []
        for method, rounds in runs:
            given = {"rounds": rounds, "evaluate_every": rounds, "local_steps": 5, "clusters": GROUPS}
            for refit in (False, True):
                errors = []
                for seed in seeds:
                    data = coterie.scenario("mixed-regression", seed=seed, **options)
                    result = coterie.fit(data, method, seed=seed, refit=refit, **given)
                    errors.append(float(result.metrics["parameter_error"]))
                cells.append(f"{mean(errors):.3f}")
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


STARTS: dict[str, dict[str, object]] = {
    "moment-descent": {"init": "moment-descent"},
    "with 41 anchors": {"init": "moment-descent", "anchors": 41},
    "odcl": {"init": "odcl"},
    "random": {"init": "random"},
}
"""Starts of phase 2; 41 anchors are ln(3 / 0.05) / 0.1, with which a group of a tenth is missed with at most 5 %."""


def starts(seeds: range) -> None:
    """Print the result of phase 2 from each start, and from the one with the lowest training loss."""
    print("| clients | " + " | ".join(STARTS) + " | least training loss |")
    print("| --- |" + " --- |" * (len(STARTS) + 1))
    for name, own in (ENDED | {"6 samples": {"samples": "6", "clients": 300}}).items():
        options = {"clients": 120, "dimension": 20, "groups": GROUPS, "separation": 1.2, "test_samples": 2, **own}
        rows: dict[str, list[float]] = {start: [] for start in (*STARTS, "best")}
        for seed in seeds:
            data = coterie.scenario("mixed-regression", seed=seed, **options)
            ended = {}
            for start, given in STARTS.items():
                rounds = {"rounds": 30, "evaluate_every": 30, "clusters": GROUPS}
                metrics = coterie.fit(data, "two-phase", seed=seed, **rounds, **given).metrics
                ended[start] = (float(metrics["loss"]), float(metrics["ari"]))
                rows[start].append(ended[start][1])
            rows["best"].append(min(ended.values())[1])
        print(f"| {name} | " + " | ".join(map(cell, rows.values())) + " |", flush=True)


def cell(found: list[float]) -> str:
    return f"{mean(found):.2f} ({sum(value > 1 - 1e-9 for value in found)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST)
    parser.add_argument("--count", action="store_true", help="the number of groups instead")
    parser.add_argument("--ends", action="store_true", help="the models' errors without and with refit instead")
    parser.add_argument("--starts", action="store_true", help="the starts of phase 2 instead")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if given.count:
        count(range(given.first, given.first + given.seeds))
        return
    if given.starts:
        starts(range(given.first, given.first + given.seeds))
        return
    if given.ends:
        ends(range(given.first, given.first + given.seeds))
        return
    columns = [f"{step}, phase 1" for step in STEPS] + [f"{step}, both" for step in STEPS] + ["ifca, 5 starts"]
    print("| features | " + " | ".join(columns) + " |")
    print("| --- |" + " --- |" * len(columns))
    for place, (name, case) in enumerate(CASES.items()):
        rows: dict[str, list[float]] = {column: [] for column in columns}
        for seed in range(given.first, given.first + given.seeds):
            data = drawn(case, seed, place)
            for step in STEPS:
                rows[f"{step}, phase 1"].append(ari(data, case, "moment-descent", seed, anchor_step=step))
                options = {"anchor_step": step, "rounds": ROUNDS, "evaluate_every": ROUNDS}
                rows[f"{step}, both"].append(ari(data, case, "two-phase", seed, **options))
            options = {"restarts": 5, "rounds": ROUNDS, "evaluate_every": ROUNDS, "lr": "auto"}
            rows["ifca, 5 starts"].append(ari(data, case, "ifca", seed, **options))
        print(f"| {name} | " + " | ".join(cell(rows[column]) for column in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
