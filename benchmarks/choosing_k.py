"""How often clusters=auto gives the right answer, over clients of equal and of very unequal sizes.

    python benchmarks/choosing_k.py --out answers.jsonl             # 20 seeds of 44 cases; 20 minutes on one core
    python benchmarks/choosing_k.py --out answers.jsonl --table     # the tables of docs/choosing-clusters.md

Clients follow linear or logistic regressions on 5 features; groups differ by coefficients with a standard deviation of
0.25 (weak) or 1 (strong). Sizes: `equal` (40 samples), `small` (8), `unequal` (1 to 800, log-uniform). A run that was
interrupted continues where it stopped. The constants of the rule were chosen on seeds below 100.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch

from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import from_arrays
from coterie.data.table import logistic_step, stable_step
from coterie.training.fitting import initialize_run
from coterie.training.planning import prepare

FEATURES = 5
SEPARATION = {"none": 0.0, "weak": 0.25, "strong": 1.0}
OPTIONS = {"clusters": "auto", "rounds": 200, "local_steps": 10, "restarts": 5, "client_weight": "samples"}


@dataclass(frozen=True)
class Case:
    """One kind of data."""

    task: str
    groups: int
    separation: str
    sizes: str
    clients: int
    noise: str = "normal"


def cases() -> Iterator[Case]:
    """All cases: 60 clients, then small ones, heavy tails (Student's t with 2.5 degrees of freedom), 20 or 300."""
    tasks, sizes = ("linear", "logistic"), ("equal", "unequal")
    alone, apart = (1, "none"), (3, "strong")
    for groups, separation in (alone, *product((2, 3, 4), ("weak", "strong"))):
        for task, size in product(tasks, sizes):
            yield Case(task, groups, separation, size, 60)
    for groups, separation in (alone, apart):
        for task in tasks:
            yield Case(task, groups, separation, "small", 60)
        for size in sizes:
            yield Case("linear", groups, separation, size, 60, "heavy tails")
        for task, clients in product(tasks, (20, 300)):
            yield Case(task, groups, separation, "unequal", clients)


def data_of(case: Case, seed: int) -> FederatedDataset:
    """Return the clients of a case."""
    random = np.random.default_rng([seed, case.groups, case.clients])
    fixed = {"equal": 40, "small": 8}
    uneven = np.round(800 ** random.random(case.clients)).astype(int)
    sizes = np.full(case.clients, fixed[case.sizes]) if case.sizes in fixed else uneven
    spread = SEPARATION[case.separation] * random.standard_normal((case.groups, FEATURES))
    slopes = 0.7 * random.standard_normal(FEATURES) + spread
    clients = {}
    for i, n in enumerate(sizes):
        x = random.standard_normal((n, FEATURES))
        mean = x @ slopes[i % case.groups]
        if case.task == "logistic":
            y = (random.random(n) < 1 / (1 + np.exp(-mean))).astype(int)
        else:
            y = mean + (random.standard_t(2.5, n) if case.noise == "heavy tails" else random.standard_normal(n))
        clients[f"c{i:03d}"] = (x, y)
    return from_arrays(clients)


def answer(case: Case, seed: int) -> dict[str, object]:
    """Return what clusters=auto says, and the processor time that it took."""
    data, clock = data_of(case, seed), time.process_time()
    squares = (data.train.x.numpy() ** 2).sum(axis=1)
    linear = case.task == "linear"
    lr = stable_step(squares, data.train.sizes) if linear else logistic_step(float(squares.mean()))
    learner = "linear:bias=true" if linear else "logistic"
    chosen = initialize_run(prepare(data, "ifca", learner, {**OPTIONS, "lr": lr, "seed": seed})).found["chosen"]
    seconds = round(time.process_time() - clock, 2)
    return {"name": chosen["verdict"]["name"], "clusters": chosen["clusters"], "seconds": seconds}


def kind(case: Case, name: str, clusters: int) -> str:
    """Return how an answer is counted: `cluster` with the true number, with fewer or with more; else its name."""
    if name != "cluster":
        return name
    return "right" if clusters == case.groups else "fewer" if clusters < case.groups else "more"


def table(lines: list[dict[str, object]]) -> str:
    """Return a table in Markdown of how often each answer was given."""
    counts: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
    for line in lines:
        case = Case(*line["case"])  # type: ignore[misc]
        key = (str(case.groups), case.separation, case.sizes, f"{case.task}, {case.noise}", str(case.clients))
        counts[key][kind(case, str(line["name"]), int(str(line["clusters"])))] += 1
    rows = ["| groups | separation | sizes | data | clients | K right | fewer | more | one model | cannot tell |"]
    rows.append("|" + " --- |" * 10)
    for key, found in sorted(counts.items()):
        total = found.total()
        shown = (f"{100 * found[n] / total:.0f} %" for n in ("right", "fewer", "more", "one-model", "cannot-tell"))
        rows.append("| " + " | ".join([*key, *shown]) + " |")
    alone = [line for line in lines if line["case"][1] == 1]  # type: ignore[index]
    wrong = sum(line["name"] == "cluster" for line in alone)
    return "\n".join([*rows, "", f"False 'cluster' with one group: {wrong} of {len(alone)}."])


def main() -> None:
    """Measure, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="file of JSON lines; it is appended to")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=100)
    parser.add_argument("--table", action="store_true", help="only print what the file holds")
    given = parser.parse_args()
    lines = [json.loads(line) for line in given.out.read_text().splitlines()] if given.out.exists() else []
    if not given.table:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore")
        known = {(*line["case"], line["seed"]) for line in lines}
        for seed in range(given.first, given.first + given.seeds):
            for case in cases():
                if (*astuple(case), seed) not in known:
                    line = {"case": astuple(case), "seed": seed, **answer(case, seed)}
                    lines.append(json.loads(json.dumps(line)))
                    with given.out.open("a") as file:
                        file.write(json.dumps(line) + "\n")
    print(table(lines))


if __name__ == "__main__":
    main()
