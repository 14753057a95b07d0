"""IFCA, figure 4: the share of clients whose cluster identity is right, round by round.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020, section 6.2.
"""

from __future__ import annotations

from coterie.core.dataset import FederatedDataset
from coterie.experiments.reproduction import Cell, Claim, Figures, Found, Reproduction, RunCell, Table
from coterie.training.result import Result

KINDS = {"single": "one random start", "raced": "best of five after 5 rounds"}
SHOWN = (1, 2, 3, 5, 10, 15, 20, 30)
"""Rounds whose figures the table shows."""
ROUNDS = 30
RIGHT = 0.999
"""A share from which identities count as found: at most one client in a thousand wrong."""

NAME = "rotated-mnist 1200x200"


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Both kinds of start for each seed."""
    return [_cell(kind, seed, quick) for seed in range(seeds) for kind in KINDS]


def _cell(kind: str, seed: int, quick: bool) -> RunCell:
    clients = {"clients": 60, "train_images": 3000} if quick else {"clients": 1200}
    start = {"restarts": 5, "race": 5} if kind == "raced" else {"restarts": 1, "race": 0}
    options = {"rounds": ROUNDS, "evaluate_every": ROUNDS, **start}
    return RunCell(f"{NAME} {kind}", seed, "rotated-mnist", clients, "ifca", options, take)


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """The share of right identities after each round; in a race, of the start that leads."""
    curve = [round(record["identity"], 4) for record in result.records]
    found = next((r + 1 for r, share in enumerate(curve) if min(curve[r:]) >= RIGHT), None)
    return {"identity": curve, "found_after": found}


def tables(found: Found, quick: bool) -> list[Table]:
    """One row a run: the share of right identities at some rounds."""
    header = ["start", "seed", *(f"round {r}" for r in SHOWN), "found after"]
    rows = []
    for kind, title in KINDS.items():
        for seed, figures in sorted(found.get(f"{NAME} {kind}", {}).items()):
            curve = figures["identity"]
            shown = [f"{100 * curve[r - 1]:.1f}" if r <= len(curve) else "" for r in SHOWN]
            rows.append([title, str(seed), *shown, str(figures["found_after"] or "never")])
        if f"{NAME} {kind}" not in found:
            rows.append([title, "", *(["not run"] + [""] * len(SHOWN))])
    return [Table("Clients whose identity is right, %", header, rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Whether all identities are found, and when."""
    made = []
    for kind, title in KINDS.items():
        runs = found.get(f"{NAME} {kind}", {})
        after = [figures["found_after"] for _, figures in sorted(runs.items())]
        told = f"{sum(a is not None for a in after)} of {len(after)} runs: after round " + ", ".join(
            str(a or "never") for a in after
        )
        holds = all(a is not None for a in after) if after else None
        made.append(Claim(f"{title}: all identities right within {ROUNDS} rounds", holds, told if after else "not run"))
    return made


REPRODUCTION = Reproduction(
    "ifca-figure4",
    "Cluster identities over the rounds, rotated MNIST",
    "Ghosh, Chung, Yin, Ramchandran 2020, figure 4",
    "The paper's curves reach all identities after about 30 rounds. An identity is right if the client is in the "
    "cluster that stands for its rotation under the best one-to-one matching. During a race a quarter of the "
    "clients is asked, and those not asked yet do not count.",
    ("mnist",),
    cells,
    seeds=5,
    quick_seeds=2,
    tables=tables,
    claims=claims,
)
