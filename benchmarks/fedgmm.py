"""FedGMM with Gaussians paired with every model, or tied to one: accuracy, number of clusters, adjusted Rand index.

    python -m benchmarks.fedgmm --seeds 3000 3002

30 clients of scikit-learn's digits in three groups (`benchmarks/scoreboard`), mlp, 60 rounds, K=3.
"""

from __future__ import annotations

import argparse
import warnings

import torch

import coterie
from benchmarks.scoreboard.scenarios import scenarios


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--seeds", type=int, nargs=2, default=(3000, 3002), help="first seed, and the one after the last"
    )
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, tuple[str, dict[str, object]]] = {
        "paired": ("fedgmm", {}),
        "tied": ("fedgmm", {"gaussians": "tied"}),
        "fedem": ("fedem", {}),
    }
    print("| digits | " + " | ".join(ways) + " |\n|" + " --- |" * (len(ways) + 1))
    for kind in ("concept", "feature", "all", "none"):
        cells: dict[str, list[str]] = {way: [] for way in ways}
        for seed in range(*given.seeds):
            data = scenarios()[f"digits {kind}"].draw(seed).data
            for way, (method, options) in ways.items():
                settings = {"learner": "mlp", "rounds": 60, "clusters": 3, "seed": seed, "evaluate_every": 60}
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    result = coterie.fit(data, method, **settings, **options)
                found = result.metrics
                clusters = len(set(result.assignments.values()))
                cells[way].append(f"{100 * found['accuracy']:.1f} ({clusters}, {found['ari']:.2f})")
        print(f"| {kind} | " + " | ".join(", ".join(cells[way]) for way in ways) + " |", flush=True)


if __name__ == "__main__":
    main()
