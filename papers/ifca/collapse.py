"""Reasons for random starts of table 2 that put all writers into one cluster: step size, shared body, restarts.

One setting of table 2 (k = 2) is changed at a time, with fewer writers and rounds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from coterie.core.dataset import FederatedDataset
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

WRITERS, ROUNDS = 60, 12
QUICK_WRITERS, QUICK_ROUNDS = 12, 2
CHANGES: Mapping[str, Mapping[str, object]] = {
    "as in table 2": {},
    "step size / 4": {"lr": 0.05},
    "nothing shared": {"shared": ""},
    "all writers in every round": {"participation": 1.0},
    "best of five starts": {"restarts": 5, "race": 3},
    "one-shot start": {"init": "odcl"},
}


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells of all changes, seed by seed."""
    return [_cell(change, seed, quick) for seed in range(seeds) for change in CHANGES]


def _cell(change: str, seed: int, quick: bool) -> RunCell:
    rounds, writers = (QUICK_ROUNDS, QUICK_WRITERS) if quick else (ROUNDS, WRITERS)
    options = {"rounds": rounds, "evaluate_every": rounds, "clusters": 2, "restarts": 1, "race": 0, **CHANGES[change]}
    return RunCell(f"femnist k=2, {change}", seed, "femnist", {"writers": writers}, "ifca", options, take)


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the accuracy in percent, the clusters' sizes at the end, and the first round with one cluster only.

    The sizes of a round are those of the writers that took part in it.
    """
    used = Counter(result.assignments.values())
    rounds = [[size for size in record["sizes"] if size] for record in result.records if record.get("sizes")]
    several = [t for t, each in enumerate(rounds, start=1) if len(each) > 1]
    last = several[-1] if several else 0
    return {
        "accuracy": round(100 * result.metrics["accuracy"], 2),
        "sizes": [used[k] for k in sorted(used, key=lambda k: -used[k])],
        "one cluster from": last + 1 if last < len(rounds) else None,
    }


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a row for each change."""
    rows = []
    for change in CHANGES:
        cell = f"femnist k=2, {change}"
        figures = [each for _, each in sorted(found.get(cell, {}).items())]
        sizes = "; ".join("+".join(map(str, each["sizes"])) for each in figures) or "not run"
        rounds = ", ".join(str(each["one cluster from"] or "never") for each in figures)
        rows.append([change, spread(values_of(found, cell, "accuracy")), sizes, rounds])
    header = ["change", "accuracy, %", "writers in each cluster, by seed", "one cluster from round"]
    return [Table(f"k = 2, {WRITERS} writers, {ROUNDS} rounds", header, rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return for each change the claim that both clusters stay in use."""
    made = []
    for change in CHANGES:
        sizes = values_of(found, f"femnist k=2, {change}", "sizes")
        kept = [len(each) > 1 for each in sizes]  # type: ignore[arg-type]
        evidence = f"{sum(kept)} of {len(kept)}" if kept else "not run"
        made.append(Claim(f"both clusters stay in use: {change}", all(kept) if kept else None, evidence))
    return made


REPRODUCTION = Reproduction(
    "ifca-collapse",
    "Why random starts on FEMNIST collapse",
    "Ghosh, Chung, Yin, Ramchandran 2020, table 2 (an experiment of our own)",
    "IFCA with k = 2 as in table 2, with 60 writers and 12 rounds; one setting is changed at a time. Single starts, "
    "unless stated otherwise.",
    ("femnist",),
    cells,
    seeds=3,
    quick_seeds=1,
    tables=tables,
    claims=claims,
)
