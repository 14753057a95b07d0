"""Every method with its defaults over many scenarios: score, share of the oracle's gain, number of clusters, ARI.

    python benchmarks/scoreboard.py run board.jsonl --seeds 1000 1003          # continues where it stopped; hours
    python benchmarks/scoreboard.py run board.jsonl --seeds 1000 1001 --only digits --methods fedavg,oracle,cfl,hcfl+
    python benchmarks/scoreboard.py table board.jsonl

Methods that need a number of clusters are given the true one and marked with K; all others find it. No other option is
set but the learner (mlp for images), the number of rounds (60 for images, 50 else) and the seed. The images are
scikit-learn's 8 x 8 digits; `--images usps.npz` adds a file with arrays x_train and y_train.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import CoterieError

GIVEN_K = ("ifca", "fedem", "fedrc", "fesem", "fedsoft", "fedgmm", "one-shot")
"""Methods that are told the true number of clusters."""
METHODS = (
    "local",
    "fedavg",
    "oracle",
    "cfl",
    "icfl",
    "hcfl",
    "hcfl-split",
    "hcfl+",
    "stocfl",
    "pacfl",
    "fedgroup",
    "flexcfl",
    "fedamp",
    *GIVEN_K,
)
GROUPS = 3
IMAGES = ("concept", "feature", "label", "all", "mixed", "none", "dirichlet")
"""Kinds of shift between the groups of clients with images; in `dirichlet` every client has its own mix of labels."""
REGRESSIONS = ("groups", "weak", "none", "few-samples", "unequal", "many-clients")


@dataclass(frozen=True)
class Pictures:
    """Images (n, side, side) from 0 to 1 and their labels."""

    x: np.ndarray
    y: np.ndarray
    clients: int
    train: int
    test: int


@cache
def pictures(source: str) -> Pictures:
    """Return the images of a source: `digits`, or a file."""
    if source == "digits":
        from sklearn.datasets import load_digits

        found = load_digits()
        return Pictures((found.images / 16).astype(np.float32), found.target, 24, 50, 24)
    with np.load(source, allow_pickle=False) as file:
        x, y = file["x_train"].astype(np.float32) / 255, file["y_train"].astype(np.int64)
    return Pictures(x, y, 36, 100, 50)


def images(source: str, kind: str, seed: int) -> FederatedDataset:
    """Return clients whose groups differ in the meaning of labels, the rotation, the share of labels, or in all."""
    random, found = np.random.default_rng([seed, 1]), pictures(source)
    classes, each = 10, found.train + found.test
    maps = [np.arange(classes), *(random.permutation(classes) for _ in range(GROUPS - 1))]
    group, order = random.permutation(np.arange(found.clients) % GROUPS), random.permutation(classes)
    pools = [list(random.permutation(np.flatnonzero(found.y == c))) for c in range(classes)]
    train, test = {}, {}
    for i, own in enumerate(group):
        share = _label_shares(kind, int(own), order, random)
        rows = [_drawn(pools, found.y, int(c), random) for c in random.choice(classes, each, p=share)]
        x, y = found.x[rows], found.y[rows]
        if kind in ("feature", "all"):
            x = np.rot90(x, own, axes=(1, 2))
        concept = np.full(each, own if kind in ("concept", "all", "mixed") else 0)
        if kind == "mixed":
            concept = np.where(random.random(each) < 0.8, own, random.integers(0, GROUPS, each))
        y = np.array([maps[c][label] for c, label in zip(concept, y, strict=True)])
        x = np.ascontiguousarray(x).reshape(each, -1)
        train[f"c{i:02d}"], test[f"c{i:02d}"] = (
            (x[: found.train], y[: found.train]),
            (x[found.train :], y[found.train :]),
        )
    truth = [0] * len(group) if kind in ("none", "dirichlet") else group.tolist()
    return coterie.from_arrays(train, test=test, truth=truth)


def _label_shares(kind: str, own: int, order: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the probability of each class for a client."""
    if kind == "dirichlet":
        return random.dirichlet(np.full(len(order), 0.5))
    share = np.ones(len(order))
    if kind in ("label", "all"):
        share = np.full(len(order), 0.02)
        share[order[own::GROUPS]] = 1
    return share / share.sum()


def _drawn(pools: list[list[int]], y: np.ndarray, label: int, random: np.random.Generator) -> int:
    """Return the next image of a class; once all were drawn they are shuffled and drawn again."""
    if not pools[label]:
        pools[label] = list(random.permutation(np.flatnonzero(y == label)))
    return int(pools[label].pop())


def regression(task: str, kind: str, seed: int) -> FederatedDataset:
    """Return clients with linear or logistic data in 8 dimensions, half of the samples of each held out."""
    random = np.random.default_rng([seed, 2])
    clients = 300 if kind == "many-clients" else 40
    sizes = np.full(clients, {"few-samples": 12, "many-clients": 20}.get(kind, 60))
    if kind == "unequal":
        sizes = np.round(400 ** random.random(clients)).astype(int) + 3
    groups, spread = (1, 0.0) if kind == "none" else (GROUPS, 0.3 if kind == "weak" else 1.0)
    slopes = 0.7 * random.standard_normal(8) + spread * random.standard_normal((groups, 8))
    train, test = {}, {}
    for i, n in enumerate(sizes):
        x = random.standard_normal((2 * n, 8))
        mean = x @ slopes[i % groups]
        y = mean + random.standard_normal(2 * n)
        if task == "logistic":
            y = (random.random(2 * n) < 1 / (1 + np.exp(-2 * mean))).astype(int)
        train[f"c{i:03d}"], test[f"c{i:03d}"] = (x[:n], y[:n]), (x[n:], y[n:])
    return coterie.from_arrays(train, test=test, truth=[i % groups for i in range(clients)])


def scenarios(files: list[str]) -> Mapping[str, Callable[[int], FederatedDataset]]:
    """Return how each scenario is drawn from a seed."""
    found: dict[str, Callable[[int], FederatedDataset]] = {}
    for source in ("digits", *files):
        for kind in IMAGES:
            found[f"{Path(source).stem} {kind}"] = lambda seed, s=source, k=kind: images(s, k, seed)  # type: ignore[misc]
    for task in ("linear", "logistic"):
        for kind in REGRESSIONS:
            found[f"{task} {kind}"] = lambda seed, t=task, k=kind: regression(t, k, seed)  # type: ignore[misc]
    return found


def measured(name: str, data: FederatedDataset, method: str, seed: int) -> dict[str, object]:
    """Return the figures of one run with the method's defaults."""
    pictured = not name.startswith(("linear", "logistic"))
    options: dict[str, object] = {"rounds": 60 if pictured else 50}
    if method in GIVEN_K:
        options["clusters"] = max(2, int(np.max(data.truth)) + 1)
    if pictured:
        options["learner"] = "mlp"
    began = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = coterie.fit(data, method, seed=seed, evaluate_every=options["rounds"], **options)
    except CoterieError as error:
        return {"refused": str(error)}
    found = result.metrics
    score = found.get("accuracy", None if "rmse" not in found else -found["rmse"])
    return {
        "score": score,
        "worst": found.get("worst_tenth"),
        "clusters": len(set(result.assignments.values())),
        "ari": found.get("ari"),
        "bytes": sum(record.bytes_up + record.bytes_down for record in result.records),
        "seconds": round(time.process_time() - began, 2),
        "diverged": bool(found.get("diverged")),
    }


def run(out: Path, seeds: range, methods: list[str], only: str, files: list[str]) -> None:
    """Append all cells that the file does not hold yet."""
    known = {(row["scenario"], row["method"], row["seed"]) for row in read(out)}
    with out.open("a") as file:
        for seed in seeds:
            for name, draw in scenarios(files).items():
                wanted = [m for m in methods if only in name and (name, m, seed) not in known]
                if not wanted:
                    continue
                data = draw(seed)
                for method in wanted:
                    row = {"scenario": name, "method": method, "seed": seed, **measured(name, data, method, seed)}
                    file.write(json.dumps(row) + "\n")
                    file.flush()


def read(out: Path) -> list[dict[str, object]]:
    """Return all rows of a file; a last line that was cut off is left out."""
    lines = out.read_text().splitlines(keepends=True) if out.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def table(rows: list[dict[str, object]]) -> str:
    """Return a table in Markdown: mean score, and in brackets the mean number of clusters and the ARI."""
    cells: dict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        cells[str(row["method"]), str(row["scenario"])].append(row)
    names = list(dict.fromkeys(str(row["scenario"]) for row in rows))
    methods = [m for m in METHODS if any(m == key[0] for key in cells)]
    lines = ["| method | " + " | ".join(names) + " |", "|" + " --- |" * (len(names) + 1)]
    for method in methods:
        shown = f"`{method}`" + (" (K given)" if method in GIVEN_K else "")
        lines.append(f"| {shown} | " + " | ".join(_cell(cells.get((method, name), [])) for name in names) + " |")
    return "\n".join(lines)


def _cell(rows: list[dict[str, object]]) -> str:
    sound = [row for row in rows if row.get("score") is not None and not row.get("diverged")]
    if not sound:
        return "diverged" if any(row.get("diverged") for row in rows) else "refused" if rows else ""

    def mean(key: str) -> float:
        return float(np.mean([float(row[key]) for row in sound if row.get(key) is not None]))  # type: ignore[arg-type]

    score = mean("score")
    text = f"{100 * score:.1f}" if score > 0 else f"{-score:.2f}"
    return f"{text} ({mean('clusters'):.1f}, {mean('ari'):.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("out", type=Path, help="file of JSON lines; it is appended to")
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(1000, 1003), help="first seed, and the one after the last"
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="names separated by commas")
    parser.add_argument("--only", default="", help="text that the name of a scenario must contain")
    parser.add_argument("--images", action="append", default=[], help="file of further images")
    given = parser.parse_args()
    if given.action == "run":
        torch.set_num_threads(1)
        run(given.out, range(*given.seeds), given.methods.split(","), given.only, given.images)
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
