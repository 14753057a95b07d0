"""Is the number of groups found before training? StoCFL, FedGroup and one-shot: K and adjusted Rand index.

    python -m benchmarks.counting_groups --seeds 3000 3002 --only digits --only linear --only logistic
    python -m benchmarks.counting_groups --only linear --participation 0.2

The scenarios are those of `benchmarks/scoreboard`. `silhouette` and `held-out` are the two rules of `one-shot
--clusters auto`. `--participation` is that of StoCFL, in 15 rounds; with all clients a single round shows the groups.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Mapping

import numpy as np
import torch

import coterie
from benchmarks.scoreboard.scenarios import scenarios
from coterie.core.dataset import FederatedDataset


def found(data: FederatedDataset, method: str, options: Mapping[str, object]) -> tuple[int, float]:
    """Return the number of clusters and the adjusted Rand index of the clients that have one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = coterie.fit(data, method, evaluate_every=100, **options)
    return len({label for label in result.assignments.values() if label is not None}), result.metrics["ari"] or 0.0


def cell(rows: list[tuple[int, float]]) -> str:
    """Return how often each number was found, and the mean index: `3 (4), 2 (1); 0.91`."""
    counts = Counter(K for K, _ in rows).most_common()
    return ", ".join(f"{K} ({times})" for K, times in counts) + f"; {np.mean([ari for _, ari in rows]):.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs=2, default=(3000, 3003), help="first seed, one after the last")
    parser.add_argument("--only", action="append", help="first word of the names of scenarios; by default all")
    parser.add_argument("--participation", type=float, default=1.0, help="share of the clients in a round of StoCFL")
    given = parser.parse_args()
    torch.set_num_threads(1)
    ways: dict[str, tuple[str, dict[str, object]]] = {
        "stocfl": ("stocfl", {"rounds": 15, "participation": given.participation}),
        "fedgroup": ("fedgroup", {"rounds": 1}),
        "silhouette": ("one-shot", {"rounds": 1, "clusters": "auto", "count_groups": "silhouette"}),
        "held-out": ("one-shot", {"rounds": 1, "clusters": "auto", "count_groups": "held-out"}),
    }
    if given.participation == 1:
        ways["stocfl"][1]["rounds"] = 1
    print("| scenario | " + " | ".join(ways) + " |\n|" + " --- |" * (len(ways) + 1))
    for name, scenario in scenarios().items():
        if given.only and name.split()[0] not in given.only:
            continue
        learner = {"learner": scenario.learner} if scenario.learner else {}
        rows: dict[str, list[tuple[int, float]]] = {way: [] for way in ways}
        for seed in range(*given.seeds):
            data = scenario.draw(seed).data
            for way, (method, options) in ways.items():
                rows[way].append(found(data, method, {**options, **learner, "seed": seed}))
        print(f"| {name} | " + " | ".join(cell(rows[way]) for way in ways) + " |", flush=True)


if __name__ == "__main__":
    main()
