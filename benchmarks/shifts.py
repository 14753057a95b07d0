"""One kind of shift between groups of clients with images at a time, by methods with their defaults.

    python benchmarks/shifts.py run shifts.jsonl --images usps.npz --seeds 2000 2003   # continues where it stopped
    python benchmarks/shifts.py table shifts.jsonl

Prints the mean accuracy of the clients, and in brackets the mean number of clusters, the adjusted Rand index and the
share of the gain of oracle over fedavg. The images are scikit-learn's 8 x 8 digits, or those of a file with arrays
x_train and y_train. Methods take their defaults, with the learner mlp and 60 rounds.
"""

from __future__ import annotations

import argparse
import json
import warnings
from collections import defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset

METHODS = ("fedavg", "oracle", "cfl", "hcfl", "hcfl+")
GROUPS, ROUNDS = 3, 60
KINDS = ("concept", "feature", "label", "all", "mixed", "none", "dirichlet")
"""Kinds of shift; in `mixed` clients take a fifth of their labels from any concept, in `dirichlet` each has its own
mix of labels."""


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


def run(out: Path, source: str, seeds: range, methods: list[str], kinds: list[str]) -> None:
    """Append all cells that the file does not hold yet."""
    known = {(row["kind"], row["method"], row["seed"]) for row in read(out)}
    with out.open("a") as file:
        for seed in seeds:
            for kind in kinds:
                data = images(source, kind, seed)
                for method in methods:
                    if (kind, method, seed) in known:
                        continue
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        options = {"learner": "mlp", "rounds": ROUNDS, "evaluate_every": ROUNDS}
                        result = coterie.fit(data, method, seed=seed, **options)
                    row = {"kind": kind, "method": method, "seed": seed, "accuracy": result.metrics["accuracy"]}
                    row |= {"clusters": len(set(result.assignments.values())), "ari": result.metrics.get("ari")}
                    file.write(json.dumps(row) + "\n")
                    file.flush()


def read(out: Path) -> list[dict[str, object]]:
    """Return all rows of a file; a last line that was cut off is left out."""
    lines = out.read_text().splitlines(keepends=True) if out.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def table(rows: list[dict[str, object]]) -> str:
    """Return a table in Markdown."""
    cells: dict[tuple[str, str], list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        cells[str(row["method"]), str(row["kind"])].append(row)
    methods, kinds = (list(dict.fromkeys(str(row[name]) for row in rows)) for name in ("method", "kind"))

    def mean(method: str, kind: str, name: str) -> float:
        return float(np.mean([float(row[name]) for row in cells[method, kind]]))  # type: ignore[arg-type]

    def shown(method: str, kind: str) -> str:
        if not cells[method, kind]:
            return ""
        text = f"{mean(method, kind, 'clusters'):.1f}, {mean(method, kind, 'ari'):.2f}"
        low, high = (mean(name, kind, "accuracy") if cells[name, kind] else np.nan for name in ("fedavg", "oracle"))
        if high - low > 1e-6 and method not in ("fedavg", "oracle"):
            text += f", {100 * (mean(method, kind, 'accuracy') - low) / (high - low):.0f} %"
        return f"{100 * mean(method, kind, 'accuracy'):.1f} ({text})"

    lines = ["| method | " + " | ".join(kinds) + " |", "|" + " --- |" * (len(kinds) + 1)]
    return "\n".join(lines + [f"| `{m}` | " + " | ".join(shown(m, k) for k in kinds) + " |" for m in methods])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["run", "table"])
    parser.add_argument("out", type=Path, help="file of JSON lines; it is appended to")
    parser.add_argument("--images", default="digits", help="file of images")
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(2000, 2003), help="first seed, and the one after the last"
    )
    parser.add_argument("--methods", default=",".join(METHODS), help="names separated by commas")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of shift, separated by commas")
    given = parser.parse_args()
    if given.action == "run":
        torch.set_num_threads(1)
        run(given.out, given.images, range(*given.seeds), given.methods.split(","), given.kinds.split(","))
    print(table(read(given.out)))


if __name__ == "__main__":
    main()
