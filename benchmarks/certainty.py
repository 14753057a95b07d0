"""Whether the stated certainty of clients is right: reliability over drawn scenarios, warnings of merged groups.

    python benchmarks/certainty.py draw certainty.jsonl --seeds 2000 2200    # append draws; continues where it stopped
    python benchmarks/certainty.py merged merged.jsonl --seeds 1000 1100      # right K and one cluster too few
    python benchmarks/certainty.py table certainty.jsonl                      # reliability
    python benchmarks/certainty.py warnings merged.jsonl                      # shares of runs with a warning

Each seed draws a scenario: learner, sizes of clients, separation, noise, shares of groups, K, method. A client is right
if no other of the models found has a lower loss on fresh samples of its group. What follows is in docs/certainty.md.
"""

import argparse
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie
from coterie.data.arrays import stack_shard
from coterie.evaluate.certainty import Calibration, Evidence, probabilities
from coterie.evaluate.placing import sample_losses

METHODS = {
    "linear": ("ifca", "one-shot", "fedem", "two-phase"),
    "logistic": ("ifca", "one-shot", "fedem"),
    "mlp": ("ifca", "fedem"),
}
SEPARATION = {"weak": 0.35, "medium": 0.7, "strong": 2.0}
DIMENSION = 5
FRESH = 4000
NEWCOMERS = 10
EDGES = (0.0, 0.5, 0.7, 0.8, 0.9, 0.93, 0.97, 0.99, 1.0)


@dataclass(frozen=True)
class Scenario:
    """Clients of one seed, and the settings of their run."""

    seed: int
    learner: str
    sizes: str
    separation: str
    noise: str
    shares: str
    groups: int
    clients: int
    held_out: bool
    method: str

    @classmethod
    def drawn(cls, seed: int) -> "Scenario":
        """Return the scenario of a seed."""
        random = np.random.default_rng(seed)

        def one(*values: str) -> str:
            return str(random.choice(values))

        learner = one("linear", "logistic", "mlp")
        return cls(
            seed,
            learner,
            one("8 each", "40 each", "1 to 800"),
            one(*SEPARATION),
            one("normal", "t3", "by client"),
            one("equal", "unequal"),
            int(random.integers(2, 6)),
            int(random.choice([30, 60])),
            bool(random.random() < 0.75),
            one(*METHODS[learner]),
        )


class Groups:
    """The true groups of a scenario, which samples can be drawn from."""

    def __init__(self, scenario: Scenario) -> None:
        """Draw the parameters of the groups."""
        self.scenario = scenario
        self.random = np.random.default_rng([scenario.seed, 1])
        length = SEPARATION[scenario.separation] * (1 if scenario.learner == "linear" else 2)
        directions = self.random.normal(size=(scenario.groups, DIMENSION))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        self.theta = 0.5 * self.random.normal(size=DIMENSION) + length * directions
        self.mixing = self.random.normal(size=(DIMENSION, DIMENSION)) / np.sqrt(DIMENSION)

    def deviation(self) -> float:
        """Return the standard deviation of the noise of one client."""
        return float(np.exp(0.5 * self.random.normal())) if self.scenario.noise == "by client" else 1.0

    def samples(self, group: int, n: int, deviation: float) -> tuple[np.ndarray, np.ndarray]:
        """Return features (n, d) and targets (n,) of a client of a group."""
        x = self.random.normal(size=(n, DIMENSION))
        bent = 1.5 * np.maximum(0, x @ self.mixing) - 0.6 if self.scenario.learner == "mlp" else x
        heavy = self.random.standard_t(3, size=n) / np.sqrt(3)
        if self.scenario.learner == "linear":
            noise = heavy if self.scenario.noise == "t3" else self.random.normal(size=n)
            return x, bent @ self.theta[group] + deviation * noise
        noise = 2 * heavy if self.scenario.noise == "t3" else self.random.logistic(size=n)
        return x, (bent @ self.theta[group] / deviation + noise > 0).astype(np.int64)


Sets = list[tuple[np.ndarray, np.ndarray]]


@dataclass(frozen=True)
class Draw:
    """The clients of a scenario."""

    groups: Groups
    truth: np.ndarray
    deviations: np.ndarray
    train: Sets
    test: Sets

    @classmethod
    def of(cls, scenario: Scenario) -> "Draw":
        """Draw the clients; a quarter of the samples of each is held out if the scenario says so."""
        groups = Groups(scenario)
        random, K, m = groups.random, scenario.groups, scenario.clients
        share = np.ones(K) if scenario.shares == "equal" else np.arange(1.0, K + 1)
        truth = np.concatenate([np.arange(K), np.arange(K), random.choice(K, m - 2 * K, p=share / share.sum())])
        unequal = np.exp(random.uniform(0, np.log(801), m)).astype(int)
        sizes = {"8 each": np.full(m, 8), "40 each": np.full(m, 40), "1 to 800": unequal}[scenario.sizes]
        deviations = np.array([groups.deviation() for _ in range(m)])
        whole = [groups.samples(g, n, d) for g, n, d in zip(truth, sizes, deviations, strict=True)]
        aside = [len(y) // 4 if scenario.held_out else 0 for _, y in whole]
        train = [(x[a:], y[a:]) for (x, y), a in zip(whole, aside, strict=True)]
        return cls(groups, truth, deviations, train, [(x[:a], y[:a]) for (x, y), a in zip(whole, aside, strict=True)])

    def data(self) -> coterie.FederatedDataset:
        """Return the clients as a data set."""
        data = coterie.from_arrays(self.train, truth=self.truth.tolist())
        if not any(len(y) for _, y in self.test):
            return data
        x, y = (np.concatenate([pair[part] for pair in self.test]) for part in (0, 1))
        test = stack_shard([str(i) for i in range(len(self.test))], x, y, [len(y) for _, y in self.test])
        return replace(data, test=test)


def fitted(scenario: Scenario, draw: Draw, clusters: int) -> coterie.Result:
    """Train with the method of the scenario."""
    options: dict[str, Any] = {"clusters": clusters, "learner": scenario.learner, "seed": scenario.seed}
    if scenario.method in ("ifca", "fedem"):
        options |= {"rounds": 60 if scenario.learner == "mlp" else 30, "local_steps": 3}
        options |= {"lr": 0.1 if scenario.learner == "linear" else 0.2}
        options |= {"restarts": 6 if scenario.method == "ifca" else 3}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return coterie.fit(draw.data(), scenario.method, **options)


def losses_of(result: coterie.Result, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the loss of each model on each sample, (K, n)."""
    if not len(y):
        return np.zeros((len(result.parameters), 0))
    dtype = next(iter(result.parameters[0].values())).dtype
    target = torch.as_tensor(y).to(dtype) if y.dtype.kind == "f" else torch.as_tensor(y)
    return sample_losses(result.learner, result.parameters, torch.as_tensor(x).to(dtype), target).numpy()


def best_cluster(result: coterie.Result, groups: Groups, group: int, deviation: float) -> int:
    """Return the cluster whose model is best for a client of a group, by fresh samples."""
    return int(losses_of(result, *groups.samples(group, FRESH, deviation)).mean(axis=1).argmin())


def candidates(result: coterie.Result, draw: Draw) -> dict[str, list[float]]:
    """Return the certainty of each client by plain likelihoods, for comparison."""
    means = {}
    for name, sets in (("training_losses", draw.train), ("losses", draw.test)):
        means[name] = np.array([losses_of(result, x, y).sum(axis=1) / max(1, len(y)) for x, y in sets])
    m, own = len(draw.truth), np.array([row.cluster for row in result.clients])
    nothing, held_out = np.zeros(m), np.array([float(len(y)) for _, y in draw.test])
    samples = np.array([len(y) for _, y in draw.train])
    evidence = Evidence(
        np.arange(m), own, samples, held_out, **means, half_losses=means["losses"], pairs=nothing,
        pairs_variance=nothing, spread=nothing, compared=samples, score={},
    )  # fmt: skip
    by = Calibration.from_json(result.metrics["calibration"])
    plain = {
        "likelihood of training samples": replace(by, held_out=0.0, training=1.0, parameters=0.0),
        "likelihood of all samples": replace(by, held_out=1.0, training=1.0, parameters=0.0),
        "likelihood of held-out samples": replace(by, held_out=1.0, training=0.0, parameters=0.0),
        "corrected for training, weight 1": replace(by, held_out=1.0, training=1.0),
    }
    return {name: evidence.mine(probabilities(evidence, each)).tolist() for name, each in plain.items()}


def measured(seed: int) -> dict[str, Any]:
    """Return the figures of one seed."""
    scenario = Scenario.drawn(seed)
    draw = Draw.of(scenario)
    result = fitted(scenario, draw, scenario.groups)
    found: dict[str, Any] = {**asdict(scenario), "ari": result.metrics["ari"], "mixed": result.metrics.get("mixed", [])}
    if "calibration" not in result.metrics:
        return found | {"stated": {}}
    by_group: dict[tuple[int, float], int] = {}
    for key in zip(draw.truth.tolist(), draw.deviations.tolist(), strict=True):
        by_group.setdefault(key, best_cluster(result, draw.groups, *key))
    best = [by_group[key] for key in zip(draw.truth.tolist(), draw.deviations.tolist(), strict=True)]
    found["right"] = [row.cluster == k for row, k in zip(result.clients, best, strict=True)]
    found["stated"] = {"certainty": [row.certainty for row in result.clients], **candidates(result, draw)}
    return found | newcomers(result, draw)


def newcomers(result: coterie.Result, draw: Draw) -> dict[str, Any]:
    """Return the certainty of new clients in their most probable cluster, and whether it is right."""
    stated, right, groups = [], [], draw.groups
    for _ in range(NEWCOMERS):
        group, n = int(groups.random.choice(draw.truth)), int(np.exp(groups.random.uniform(0, np.log(60))))
        deviation = groups.deviation()
        shares = result.certainty(*groups.samples(group, n, deviation))
        stated.append(float(shares.max()))
        right.append(int(shares.argmax()) == best_cluster(result, groups, group, deviation))
    return {"new_stated": stated, "new_right": right}


def merged(seed: int) -> dict[str, Any]:
    """Return whether a well-separated clustering has a warning, with the right K and with one cluster less."""
    base, K = Scenario.drawn(seed), 3 + seed % 2
    learner, sizes = ("linear", "logistic", "mlp")[seed % 3], "1 to 800" if seed % 5 == 0 else "40 each"
    scenario = replace(
        base, learner=learner, separation="strong", groups=K, clients=40, sizes=sizes, held_out=True, method="ifca"
    )
    draw = Draw.of(scenario)
    right, fewer = (fitted(scenario, draw, k) for k in (K, K - 1))
    return {
        **asdict(scenario),
        "ari": right.metrics["ari"],
        "pure": _pure(right, draw),
        "warned": bool(right.metrics.get("mixed")),
        "fewer_warned": bool(fewer.metrics.get("mixed")),
        "known": "calibration" in right.metrics and "calibration" in fewer.metrics,
    }


def _pure(result: coterie.Result, draw: Draw) -> bool:
    """Whether no cluster holds more than one client in twenty of another group than most of its clients."""
    own = np.array([row.cluster for row in result.clients])
    return all(np.bincount(draw.truth[own == k]).max() >= 0.95 * (own == k).sum() for k in np.unique(own))


# ---- tables ------------------------------------------------------------------------------------------------------


def reliability(stated: Sequence[float], right: Sequence[bool]) -> str:
    """Return clients, stated and right shares from 95 % on, and around it, and the expected calibration error."""
    p, hit = np.array(stated), np.array(right, dtype=float)
    bins = np.minimum((p * 20).astype(int), 19)
    error = sum((bins == b).mean() * abs(p[bins == b].mean() - hit[bins == b].mean()) for b in np.unique(bins))
    cells = [f"{len(p):6d}"]
    for chosen in (p >= 0.95, (p >= 0.93) & (p < 0.97)):
        means = f"{p[chosen].mean():.3f} {hit[chosen].mean():.3f}" if chosen.any() else "    -     -"
        cells.append(f"{chosen.sum():6d} {means}")
    return "  ".join([*cells, f"{error:.3f}"])


def table(rows: list[dict[str, Any]]) -> None:
    """Print the reliability of all measures, then of the certainty by scenario, then bin by bin."""
    known = [row for row in rows if row["stated"]]
    print(
        f"{len(rows)} draws, {len(rows) - len(known)} without a certainty; clients, from 95 % on and from 93 to 97 %:"
    )
    print("number, mean stated, share right; expected calibration error")
    for name in known[0]["stated"]:
        _line(name, known, lambda row, name=name: row["stated"][name])
    _line("certainty of new clients", known, lambda row: row["new_stated"], "new_right")
    for key in ("learner", "method", "sizes", "separation", "noise", "shares", "groups", "held_out"):
        for value in sorted({row[key] for row in known}):
            some = [row for row in known if row[key] == value]
            _line(f"{key} {value}", some, lambda row: row["stated"]["certainty"])
    p = np.concatenate([row["stated"]["certainty"] for row in known])
    hit = np.concatenate([row["right"] for row in known])
    for low, high in pairwise(EDGES):
        inside = (p >= low) & ((p < high) | (high == 1))
        if inside.any():
            print(f"{low:.2f} to {high:.2f}: {inside.sum():6d} {p[inside].mean():.3f} {hit[inside].mean():.3f}")


def _line(
    name: str, rows: Iterable[dict[str, Any]], stated: Callable[[dict[str, Any]], list[float]], right: str = "right"
) -> None:
    some = list(rows)
    pooled = chain.from_iterable(map(stated, some)), chain.from_iterable(row[right] for row in some)
    print(f"{name:34s}", reliability(*map(list, pooled)))


def warned(rows: list[dict[str, Any]]) -> None:
    """Print the shares of runs with a warning."""
    for learner in (*METHODS, None):
        some = [row for row in rows if row["known"] and learner in (None, row["learner"])]
        pure = [row["warned"] for row in some if row["pure"]]
        less = [row["fewer_warned"] for row in some if row["pure"]]
        if pure:
            print(f"{learner or 'all':10s} {len(pure):4d} right clusterings, warned {np.mean(pure):.3f}; ", end="")
            print(f"one cluster less, warned {np.mean(less):.3f}")


def append(path: Path, seeds: range, measure: Callable[[int], dict[str, Any]]) -> None:
    """Measure the seeds that the file does not have yet, and append a line for each."""
    done = {row["seed"] for row in _rows(path)}
    for seed in seeds:
        if seed not in done:
            with path.open("a") as file:
                file.write(json.dumps(measure(seed)) + "\n")


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def main() -> None:
    """Read the arguments."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("draw", "merged", "table", "warnings"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", type=int, nargs=2, default=(2000, 2200))
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what in ("draw", "merged"):
        append(given.file, range(*given.seeds), measured if given.what == "draw" else merged)
    else:
        (table if given.what == "table" else warned)(_rows(given.file))


if __name__ == "__main__":
    main()
