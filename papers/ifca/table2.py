"""IFCA, table 2: FEMNIST, a shared body and K last layers, against one global model and local models.

Ghosh, Chung, Yin, Ramchandran: An Efficient Framework for Clustered Federated Learning, 2020, section 6.3.
"""

from __future__ import annotations

from coterie.core.dataset import FederatedDataset
from coterie.experiments.reproduction import (
    Cell,
    Claim,
    Explanation,
    Figures,
    Found,
    Reproduction,
    RunCell,
    Table,
    mean_of,
    spread,
    values_of,
)
from coterie.training.result import Result
from papers.pictures import Pair, Picture, bars

PAPER = {
    "ifca k=2": "87.99 ± 0.35",
    "ifca k=3": "87.89 ± 0.52",
    "one-shot k=2": "87.41 ± 0.39",
    "one-shot k=3": "87.38 ± 0.37",
    "global": "84.45 ± 0.51",
    "local": "75.85 ± 0.72",
}
MORE = ("ifca k=4", "ifca k=5")
"""Numbers of clusters above 3: the paper has no figures, but says that three clusters stay in use."""
ROUNDS, QUICK_ROUNDS, QUICK_WRITERS = 40, 3, 12
EPOCHS_ALONE = 20
"""Passes of a local model over its writer's images; in the federation a writer makes 8 in 40 rounds."""


def cells(seeds: int, quick: bool) -> list[Cell]:
    """Return the cells of all methods, seed by seed."""
    return [_cell(name, seed, quick) for seed in range(seeds) for name in (*PAPER, *MORE)]


def _cell(name: str, seed: int, quick: bool) -> RunCell:
    rounds = QUICK_ROUNDS if quick else ROUNDS
    writers = {"writers": QUICK_WRITERS} if quick else {}
    options: dict[str, object] = {"rounds": rounds, "evaluate_every": 10}
    method = {"global": "fedavg", "local": "local"}.get(name, name.split(" k=")[0])
    if " k=" in name:
        options |= {"clusters": int(name[-1])}
    if method == "local":
        rounds = QUICK_ROUNDS if quick else EPOCHS_ALONE
        options = {"rounds": rounds, "evaluate_every": rounds, "participation": 1.0}
    return RunCell(f"femnist {name}", seed, "femnist", writers, method, options, take)


def take(cell: RunCell, data: FederatedDataset, result: Result) -> Figures:
    """Return the mean accuracy over the writers, each with its own model, in percent; the clusters in use."""
    sizes = sorted(result.records[-1].get("sizes", []), reverse=True)
    return {
        "accuracy": round(100 * result.metrics["accuracy"], 3),
        "in_use": result.metrics["clusters"],
        "sizes": sizes,
        "rounds": result.metrics["rounds"],
    }


def tables(found: Found, quick: bool) -> list[Table]:
    """Return the paper's table as rows, with larger K below."""
    rows = []
    for name in (*PAPER, *MORE):
        cell = f"femnist {name}"
        ours = spread(values_of(found, cell, "accuracy"))
        sizes = "; ".join(
            "+".join(map(str, figures["sizes"]))
            for _, figures in sorted(found.get(cell, {}).items())
            if figures["sizes"]
        )
        rows.append([name, PAPER.get(name, ""), ours, sizes if " k=" in name else ""])
    return [Table("Table 2: test accuracy, %", ["method", "paper", "ours", "writers in each cluster, by seed"], rows)]


def claims(found: Found, quick: bool) -> list[Claim]:
    """Return the claims about the order of the methods and about K."""
    best, world, alone = (mean_of(found, f"femnist {name}", "accuracy") for name in ("ifca k=2", "global", "local"))
    order = None if best is None or world is None or alone is None else best > world > alone
    shown = ", ".join(
        f"{name} {'not run' if value is None else f'{value:.2f}'}"
        for name, value in (("IFCA k=2", best), ("global", world), ("local", alone))
    )
    three = mean_of(found, "femnist ifca k=3", "accuracy")
    near = None if best is None or three is None else abs(best - three) <= 1
    both = values_of(found, "femnist ifca k=2", "in_use")
    used = {name: values_of(found, f"femnist {name}", "in_use") for name in MORE}
    counts = [count for values in used.values() for count in values]
    return [
        Claim("IFCA (k=2) above the global model above local models", order, shown),
        Claim(
            "with k=2 both clusters are in use",
            all(count == 2 for count in both) if both else None,
            ", ".join(f"{count:.0f} of 2" for count in both) or "not run",
        ),
        Claim(
            "k=2 and k=3 are alike (within a point)",
            near,
            "not run" if best is None or three is None else f"{best:.2f} and {three:.2f}",
        ),
        Claim(
            "for k > 3 three clusters stay in use",
            all(count == 3 for count in counts) if counts else None,
            "; ".join(
                f"{name}: {', '.join(f'{v:.0f}' for v in values)} in use" for name, values in used.items() if values
            )
            or "not run",
        ),
    ]


def picture(found: Found) -> Picture:
    """Return the paper's accuracies next to ours."""
    pairs = [
        Pair(name, float(text.split()[0]), mean_of(found, f"femnist {name}", "accuracy"))
        for name, text in PAPER.items()
    ]
    return bars("Table 2: test accuracy (all writers in the paper, 200 here)", "%", pairs)


REPRODUCTION = Reproduction(
    "ifca-table2",
    "Test accuracy on FEMNIST",
    "Ghosh, Chung, Yin, Ramchandran 2020, table 2",
    "On the available writers (200 of 3,597 in the copy that was used here), so the figures are not those of the "
    "paper; the order of the methods can be compared. All layers except the last are shared among clusters. Accuracy "
    "is the mean over writers, each with the model of its cluster.",
    ("femnist",),
    cells,
    seeds=3,
    quick_seeds=1,
    tables=tables,
    claims=claims,
    picture=picture,
    explanations=(
        Explanation("with k=2 both clusters are in use", "Two of three random starts collapse: see `ifca-collapse`."),
    ),
)
