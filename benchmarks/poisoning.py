"""Attackers among the clients: gains of robust aggregation within clusters, and its cost without attackers.

    python benchmarks/poisoning.py [--seeds 5] [--data rotated-digits] [--kinds noise,scale] [--shares 0.2] [--jobs 2]
    python benchmarks/poisoning.py --cost     # cost of rows instead of sums, without attackers

IFCA with each way to combine the members' changes; 0, 10, 20 or 30 % of the clients lie, drawn whatever their true
group is. Scores are those of honest clients: the mean over seeds and the standard deviation over seeds; so is the ARI
of their clusters. `overrun` counts clusters of which at least half of the members lie, a run: no robust mean helps
there. Runs that end because models are not finite any more are counted as lost and have no score.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import coterie
from coterie.errors import CoterieError
from coterie.experiments.processes import in_processes
from coterie.training.result import Result

WAYS = {
    "rotated-digits": ("mean", "median", "trimmed:share=0.3", "krum:attackers=5", "krum:attackers=5,keep=5"),
    "mixed-regression": ("mean", "median", "trimmed:share=0.3", "krum:attackers=12", "krum:attackers=12,keep=12"),
}
"""Clusters have 15 and 40 members if the groups are found; the bounds tolerate about 30 % of attackers."""
OPTIONS: Mapping[str, Mapping[str, Any]] = {"rotated-digits": {"rounds": 25}, "mixed-regression": {"rounds": 30}}
NO_ATTACK = "none"
KINDS = (NO_ATTACK, "sign-flip", "scale", "noise", "label-flip")
SHARES = (0.1, 0.2, 0.3)


@dataclass(frozen=True)
class Cell:
    """A run."""

    data: str
    poison: str | None
    combine: str
    seed: int


@dataclass(frozen=True)
class Figures:
    """Result of a run."""

    score: float
    """Accuracy, or root mean squared error."""
    ari: float
    overrun: int


def run(cell: Cell) -> Figures:
    """Train."""
    data = coterie.scenario(cell.data, seed=cell.seed)
    options = {"combine": cell.combine, "poison": cell.poison, "seed": cell.seed, "evaluate_every": 1000}
    result = coterie.fit(data, "ifca", **OPTIONS[cell.data], **options)
    score = result.metrics.get("accuracy", result.metrics.get("rmse"))
    return Figures(np.inf if score is None else score, result.metrics["ari"], overrun(result))


def overrun(result: Result) -> int:
    """Return the number of clusters in which at least half of the members are attackers."""
    members: dict[int, list[bool]] = {}
    for row in result.clients:
        members.setdefault(row["cluster"], []).append(bool(row.get("attacker")))
    return sum(2 * sum(attacks) >= len(attacks) for attacks in members.values())


def row(outcomes: list[Figures | CoterieError]) -> str:
    """Return the results of one combination under one attack, over all seeds."""
    known = [outcome for outcome in outcomes if isinstance(outcome, Figures)]
    lost = f"  {len(outcomes) - len(known)} lost" if len(known) < len(outcomes) else ""
    if not known:
        return lost
    score, ari = np.array([f.score for f in known]), np.array([f.ari for f in known])
    return (
        f"{score.mean():>10.4g} ± {score.std():<8.2g} {ari.mean():>5.2f} ± {ari.std():<5.2f}"
        f" {np.mean([f.overrun for f in known]):>7.1f}{lost}"
    )


def show(name: str, attacks: list[str | None], seeds: int, jobs: int | None) -> None:
    """Run these attacks on one kind of data, and print them as they finish."""
    cells = [Cell(name, lie, way, seed) for lie in attacks for way in WAYS[name] for seed in range(seeds)]
    found: dict[Cell, Figures | CoterieError] = {}
    print(f"\n{name}\n{'poison':<22} {'combine':<22} {'score':>10} {'':<10} {'ARI':>5} {'':<7} overrun", flush=True)
    for cell, outcome in in_processes(run, cells, jobs, lambda pending: None):
        found[cell] = outcome
        same = [other for other in found if other.poison == cell.poison]
        if len(same) == len(WAYS[name]) * seeds:
            for way in WAYS[name]:
                figures = row([found[other] for other in same if other.combine == way])
                print(f"{cell.poison or 'no attackers':<22} {way:<22} {figures}", flush=True)


def show_cost(repeats: int = 3) -> None:
    """Print processor time and bytes of a run with rows, relative to sums; medians of `repeats` alternating runs."""
    sizes = {"rotated-digits": {}, "mixed-regression": {"clients": 2000}}
    print(f"{'data':<18} {'combine':<22} {'time':>6} {'bytes up':>9}")
    for name, ways in WAYS.items():
        data, spent, sent = coterie.scenario(name, **sizes[name]), {way: [] for way in ways}, {}
        for _ in range(repeats):
            for way in ways:
                started = time.process_time()
                result = coterie.fit(data, "ifca", combine=way, rounds=10, restarts=1, evaluate_every=1000)
                spent[way].append(time.process_time() - started)
                sent[way] = result.metrics["bytes_up"]
        for way in ways:
            ratio = np.median(np.array(spent[way]) / np.array(spent["mean"]))
            print(f"{name:<18} {way:<22} {ratio:>6.2f} {sent[way] / sent['mean']:>9.3f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--data", choices=sorted(WAYS), help="only this one")
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of attacks; none: no attackers")
    parser.add_argument("--shares", default=",".join(map(str, SHARES)), help="shares of attackers")
    parser.add_argument("--jobs", type=int, help="runs at a time; unset: one a core")
    parser.add_argument("--cost", action="store_true", help="measure only the cost of rows")
    chosen = parser.parse_args()
    if chosen.cost:
        show_cost()
        return
    kinds, shares = chosen.kinds.split(","), [float(share) for share in chosen.shares.split(",")]
    attacks = [None if kind == NO_ATTACK else f"{kind}:share={share:g}" for kind in kinds for share in shares]
    for name in [chosen.data] if chosen.data else WAYS:
        show(name, list(dict.fromkeys(attacks)), chosen.seeds, chosen.jobs)


if __name__ == "__main__":
    main()
