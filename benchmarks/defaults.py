"""Defaults of training against alternatives: score, rounds, clusters found, divergence.

    python benchmarks/defaults.py run defaults.jsonl --seeds 10 12        # continues where it stopped
    python benchmarks/defaults.py run defaults.jsonl --images usps.npz --only usps
    python benchmarks/defaults.py table defaults.jsonl                    # every scenario
    python benchmarks/defaults.py summary defaults.jsonl                  # means over scenarios, by learner

`--images` adds a file with the arrays x_train and y_train. The methods know the number of clusters. The alternatives
change one default at a time; those of the learning rate multiply the rate that `new` found.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import CoterieError

GROUPS = 3
SHIFTS = ("concept", "feature", "label", "all", "mixed")
TABLES = ("plain", "few-samples", "unequal", "scales", "correlated", "weak")
OLD: dict[str, Any] = {"lr": 0.1, "local_steps": 10, "rounds": 50}
ONE: dict[str, Any] = {"restarts": 1, "race": 0}
WAYS: dict[str, dict[str, Any]] = {
    "old": OLD | ONE,
    "new": {},
    "one start": ONE,
    "best of five": {"restarts": 5, "race": 0},
    "rounds=50": {"rounds": 50},
    "rounds=200": {"rounds": 200},
    "full batches": {"local_steps": 10},
    "one epoch": {"local_epochs": 1},
    "lr x 2": {"times": 2.0},
    "lr / 2": {"times": 0.5},
    "lr / 4": {"times": 0.25},
}
"""Options of each alternative; `times` multiplies the learning rate."""
METHODS = ("fedavg", "oracle", "ifca", "fedem")


@cache
def pictures(source: str) -> tuple[np.ndarray, np.ndarray, int, int]:
    """Return images (n, side, side) from 0 to 1, their labels, and the numbers of clients and of their samples."""
    if source == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        return (found.images / 16).astype(np.float32), found.target, 24, 70
    with np.load(source, allow_pickle=False) as file:
        return file["x_train"].astype(np.float32) / 255, file["y_train"].astype(np.int64), 36, 120


def images(source: str, kind: str, seed: int) -> FederatedDataset:
    """Return clients whose groups differ in the meaning of labels, the rotation, the share of labels, or in all."""
    random = np.random.default_rng([seed, 1])
    x, y, clients, each = pictures(source)
    maps = [np.arange(10), *(random.permutation(10) for _ in range(GROUPS - 1))]
    order = random.permutation(10)
    train, test, truth = {}, {}, []
    for i in range(clients):
        own = i % GROUPS
        truth.append(own)
        share = np.full(10, 0.02 if kind in ("label", "all") else 1.0)
        share[order[own::GROUPS]] = 1.0
        classes = random.choice(10, each, p=share / share.sum())
        rows = np.array([random.choice(np.flatnonzero(y == c)) for c in classes])
        concept = np.full(each, own if kind in ("concept", "all", "mixed") else 0)
        if kind == "mixed":
            concept = np.where(random.random(each) < 0.8, own, random.integers(0, GROUPS, each))
        labels = np.array([maps[k][label] for k, label in zip(concept, y[rows], strict=True)])
        turned = np.rot90(x[rows], own, axes=(1, 2)) if kind in ("feature", "all") else x[rows]
        flat, cut = np.ascontiguousarray(turned).reshape(each, -1), 2 * each // 3
        train[f"c{i:02d}"], test[f"c{i:02d}"] = (flat[:cut], labels[:cut]), (flat[cut:], labels[cut:])
    return coterie.from_arrays(train, test=test, truth=truth)


def table_of(task: str, kind: str, seed: int) -> FederatedDataset:
    """Return 30 clients with linear or logistic data in 8 dimensions."""
    random = np.random.default_rng([seed, 2])
    sizes = np.full(30, 10 if kind == "few-samples" else 50)
    if kind == "unequal":
        sizes = np.round(300 ** random.random(30)).astype(int) + 2
    slopes = 0.5 * random.standard_normal(8) + (0.3 if kind == "weak" else 1.0) * random.standard_normal((GROUPS, 8))
    scales = 10.0 ** random.uniform(-1, 1, 8) if kind == "scales" else np.ones(8)
    mix = np.linalg.cholesky(0.8 ** np.abs(np.subtract.outer(np.arange(8), np.arange(8))))
    train, test = {}, {}
    for i, n in enumerate(sizes):
        z = random.standard_normal((n + 50, 8))
        z = z @ mix.T + 1 if kind == "correlated" else z
        mean = z @ slopes[i % GROUPS]
        y = mean + random.standard_normal(n + 50)
        if task == "logistic":
            y = (random.random(n + 50) < 1 / (1 + np.exp(-2 * mean))).astype(int)
        x = z * scales
        train[f"c{i:02d}"], test[f"c{i:02d}"] = (x[:n], y[:n]), (x[n:], y[n:])
    return coterie.from_arrays(train, test=test, truth=[i % GROUPS for i in range(30)])


def network() -> torch.nn.Module:
    """Return a small convolutional network for 8 x 8 images, as flat vectors."""
    parts = [torch.nn.Unflatten(-1, (1, 8, 8)), torch.nn.Conv2d(1, 8, 3, padding=1), torch.nn.ReLU()]
    return torch.nn.Sequential(*parts, torch.nn.Flatten(), torch.nn.Linear(512, 10))


Maker = Callable[[int], FederatedDataset]


def scenarios(files: list[str]) -> Mapping[str, tuple[Maker, Any]]:
    """Return how each scenario is drawn from a seed, and its learner."""
    found: dict[str, tuple[Maker, Any]] = {}
    for source in ("digits", *files):
        for kind in SHIFTS:
            found[f"mlp {Path(source).stem} {kind}"] = (lambda s, a=source, k=kind: images(a, k, s)), "mlp"  # type: ignore[misc]
    found["cnn digits all"] = (lambda s: images("digits", "all", s)), network
    found["logistic digits concept"] = (lambda s: images("digits", "concept", s)), "logistic"
    found["mlp few-samples"] = (lambda s: table_of("logistic", "few-samples", s)), "mlp"
    found["mlp regression"] = (lambda s: table_of("linear", "plain", s)), "mlp"
    for task in ("linear", "logistic"):
        for kind in TABLES:
            learner = f"{task}:bias=true"
            found[f"{task} {kind}"] = (lambda s, t=task, k=kind: table_of(t, k, s)), learner  # type: ignore[misc]
    return found


def measured(data: FederatedDataset, learner: Any, method: str, seed: int, way: Mapping[str, Any]) -> dict[str, Any]:
    """Return the figures of one run."""
    options = dict(way) | ({"clusters": GROUPS} if method in ("ifca", "fedem") else {})
    if method != "ifca":
        options = {name: value for name, value in options.items() if name not in ("race", "restarts")}
        if method == "fedem" and "restarts" in way:
            options["restarts"] = way["restarts"]
    times = options.pop("times", None)
    began = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if times is not None:
            found = coterie.fit(data, "fedavg", learner=learner, seed=seed, rounds=1).metrics["learning_rate"]["lr"]
            options["lr"] = found * times
        try:
            result = coterie.fit(data, method, learner=learner, seed=seed, evaluate_every=1000, **options)
        except CoterieError as error:
            return {"refused": str(error)}
    found = result.metrics
    score = 100 * found["accuracy"] if "accuracy" in found else found.get("rmse")
    return {
        "score": None if found.diverged else score,
        "ari": found.get("ari"),
        "lr": result.config["lr"],
        "rounds": found.rounds,
        "megabytes": (found.bytes_up + found.bytes_down) / 1e6,
        "seconds": round(time.process_time() - began, 2),
        "diverged": found.diverged,
    }


def run(out: Path, given: argparse.Namespace) -> None:
    """Append all cells that the file does not hold yet."""
    known = {(row["scenario"], row["method"], row["way"], row["seed"]) for row in read(out)}
    ways = given.ways.split(",") if given.ways else list(WAYS)
    with out.open("a") as file:
        for seed in range(*given.seeds):
            for name, (draw, learner) in scenarios(given.images).items():
                if given.only not in name:
                    continue
                data = draw(seed)
                for method in given.methods.split(","):
                    for way in ways:
                        raced = {"restarts", "race"} & WAYS[way].keys() and way != "old"
                        if (name, method, way, seed) in known or (raced and method not in ("ifca", "fedem")):
                            continue
                        row = {"scenario": name, "method": method, "way": way, "seed": seed}
                        file.write(json.dumps(row | measured(data, learner, method, seed, WAYS[way])) + "\n")
                        file.flush()


def read(out: Path) -> list[dict[str, Any]]:
    """Return all rows of a file; a last line that was cut off is left out."""
    lines = out.read_text().splitlines(keepends=True) if out.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def mean(rows: list[dict[str, Any]], key: str) -> float:
    """Return the mean of a figure over the rows that have it."""
    values = [row[key] for row in rows if row.get(key) is not None]
    return float(np.mean(values)) if values else float("nan")


def table(rows: list[dict[str, Any]]) -> str:
    """Return a row for each scenario and method, and in it the score (ARI) of each alternative."""
    ways = [way for way in WAYS if any(row["way"] == way for row in rows)]
    lines = ["| scenario, method | " + " | ".join(ways) + " |", "| --- |" + " ---: |" * len(ways)]
    for name, method in dict.fromkeys((row["scenario"], row["method"]) for row in rows):
        cells = []
        for way in ways:
            own = [r for r in rows if (r["scenario"], r["method"], r["way"]) == (name, method, way)]
            lost = sum(bool(row.get("diverged") or row.get("refused")) for row in own)
            text = f"{mean(own, 'score'):.2f}" if name.endswith("regression") or name.startswith("linear") else ""
            text = text or f"{mean(own, 'score'):.1f}"
            ari = f" ({mean(own, 'ari'):.2f})" if method == "ifca" else ""
            cells.append("" if not own else (text + ari if lost < len(own) else "") + f" {lost} diverged" * bool(lost))
        lines.append(f"| {name}, {method} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def summary(rows: list[dict[str, Any]]) -> str:
    """Return means over scenarios by learner: score, how often the run diverged, rounds, ARI of ifca and seconds."""
    lines = [
        "| learner | default | score or RMSE | diverged | ARI of ifca | rounds | MB | s |",
        "| --- | --- |" + " ---: |" * 6,
    ]
    kinds = {"mlp": "networks", "cnn": "networks", "logistic": "logistic", "linear": "linear"}
    for kind in ("networks", "logistic", "linear"):
        own = [r for r in rows if kinds[r["scenario"].split()[0]] == kind and r["scenario"] != "mlp regression"]
        for way in WAYS:
            some = [row for row in own if row["way"] == way]
            if some:
                lost = sum(bool(row.get("diverged")) for row in some)
                ari = mean([row for row in some if row["method"] == "ifca"], "ari")
                figures = (f"{mean(some, 'score'):.2f}", f"{lost} of {len(some)}", f"{ari:.2f}")
                costs = (
                    f"{mean(some, 'rounds'):.0f}",
                    f"{mean(some, 'megabytes'):.1f}",
                    f"{mean(some, 'seconds'):.1f}",
                )
                lines.append("| " + " | ".join((kind, way, *figures, *costs)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table", "summary"])
    parser.add_argument("out", type=Path, help="file of JSON lines; it is appended to")
    parser.add_argument("--seeds", type=int, nargs=2, default=(10, 12), help="first seed, and the one after the last")
    parser.add_argument("--methods", default="fedavg,ifca", help="names separated by commas")
    parser.add_argument("--ways", default="", help="alternatives separated by commas; all by default")
    parser.add_argument("--only", default="", help="text that the name of a scenario must contain")
    parser.add_argument("--images", action="append", default=[], help="file of further images")
    given = parser.parse_args()
    if given.action == "run":
        torch.set_num_threads(1)
        run(given.out, given)
    print(summary(read(given.out)) if given.action == "summary" else table(read(given.out)))


if __name__ == "__main__":
    main()
