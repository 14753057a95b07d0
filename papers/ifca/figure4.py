"""IFCA, figure 4: the share of clients whose cluster identity is right, round by round.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020, section 6.2.
"""

from __future__ import annotations

from coterie.core.dataset import FederatedDataset
from coterie.experiments.reproduction import Cell, Claim, Explanation, Figures, Found, Reproduction, RunCell, Table
from coterie.training.result import Result
from papers.pictures import Panel, Picture, curves

KINDS = {"single": "one random start", "raced": "best of five after 5 rounds"}
SHOWN = (1, 2, 3, 5, 10, 15, 20, 30)
"""Rounds in the table."""
ROUNDS = 30
RIGHT = 0.999
"""Share of right clusters that counts as found: at most one client in a thousand is wrong."""

NAME = "rotated-mnist 1200x200"


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells of both kinds of start for each seed."""
    return [_cell(kind, seed, quick) for seed in range(seeds) for kind in KINDS]


def _cell(kind: str, seed: int, quick: bool) -> RunCell:
    clients = {"clients": 60, "train_images": 3000} if quick else {"clients": 1200}
    start = {"restarts": 5, "race": 5} if kind == "raced" else {"restarts": 1, "race": 0}
    options = {"rounds": ROUNDS, "evaluate_every": ROUNDS, **start}
    return RunCell(f"{NAME} {kind}", seed, "rotated-mnist", clients, "ifca", options, take)


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the share of clients in the right cluster after each round; in a race, of the leading start."""
    curve = [round(record["identity"], 4) for record in result.records]
    found = next((r + 1 for r, share in enumerate(curve) if min(curve[r:]) >= RIGHT), None)
    return {"identity": curve, "found_after": found}


def tables(found: Found, quick: bool) -> list[Table]:
    """Return a row for each run: the share of clients in the right cluster after some rounds."""
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
    """Return the claims that all clients are in the right cluster, and after which round."""
    made = []
    for kind, title in KINDS.items():
        runs = found.get(f"{NAME} {kind}", {})
        after = [figures["found_after"] for _, figures in sorted(runs.items())]
        reported = f"{sum(a is not None for a in after)} of {len(after)} runs: after round " + ", ".join(
            str(a or "never") for a in after
        )
        holds = all(a is not None for a in after) if after else None
        made.append(
            Claim(f"{title}: all identities right within {ROUNDS} rounds", holds, reported if after else "not run")
        )
    return made


def picture(found: Found) -> Picture:
    """Return the share of clients in the right cluster over the rounds, a curve for each seed."""
    lines = {
        f"{title}, seed {seed}": [(float(t), 100 * share) for t, share in enumerate(figures["identity"], start=1)]
        for kind, title in KINDS.items()
        for seed, figures in sorted(found.get(f"{NAME} {kind}", {}).items())
    }
    return curves([Panel("Rotated MNIST, 1200 clients", "round", "right cluster, %", lines)])


REPRODUCTION = Reproduction(
    "ifca-figure4",
    "Cluster identities over the rounds, rotated MNIST",
    "Ghosh, Chung, Yin, Ramchandran 2020, figure 4",
    "In the paper's curves, all clients are in the right cluster after about 30 rounds. A client is in the right "
    "cluster if that cluster belongs to its rotation under the best one-to-one matching. During a race a quarter of "
    "the clients takes part, and clients that have not taken part yet are not counted.",
    ("mnist",),
    cells,
    seeds=5,
    quick_seeds=2,
    tables=tables,
    claims=claims,
    picture=picture,
    explanations=(
        Explanation(
            "one random start",
            "It ends with 70 % of the clients in the right cluster, as if rotations shared a model; the best of five "
            "starts after five rounds does not. The paper does not say how its start was chosen.",
        ),
    ),
)
