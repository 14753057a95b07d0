"""How often clusters=auto finds the number of true groups: the answers, seed by seed.

    python benchmarks/choosing.py                      # five seeds of everything; an hour on one core
    python benchmarks/choosing.py --seeds 2 --only opposite

Every seed draws new data; diverse-shift-b needs 'coterie data get fashion-mnist'. What is behind the numbers is in
docs/choosing-clusters.md.
"""

import argparse
import warnings
from typing import Any

import torch

import coterie

LINES = {"clients": 30, "dimension": 4}
ALIKE = {"label_shift": "none", "corruptions": False, "noise": 0.0}
SWAPPED = {"label_shift": "dirichlet_symmetric"}
SHORT = {"clients": 40}
PACE = {"averaging": "responsibility"}

Case = tuple[str, dict[str, Any], dict[str, Any], int]
"""Scenario, its options, those of the run, and the number of true groups."""
CASES: dict[str, Case] = {
    **{f"ifca, lines {g}": ("mixed-regression", LINES | {"groups": g}, {"rounds": 30}, g) for g in (1, 2, 3, 4)},
    **{
        f"ifca, lines {g}, one start": ("mixed-regression", LINES | {"groups": g}, {"rounds": 30, "restarts": 1}, g)
        for g in (1, 2, 3)
    },
    "ifca, digits, all alike": ("noisy-labels", ALIKE, {}, 1),
    "ifca, opposite labels": ("opposite-labels", SHORT, {"rounds": 60}, 2),
    "ifca, rotated digits": ("rotated-digits", {}, {}, 4),
    "ifca, diverse shift": ("diverse-shift", SWAPPED, {"restarts": 5}, 3),
    "ifca, diverse-shift-b": ("diverse-shift-b", {}, {}, 3),
    "ifca, few classes a client": ("noisy-labels", {"noise": 0.0}, {}, 1),
    **{
        f"fedem, lines {g}": ("mixed-regression", LINES | {"groups": g}, {"rounds": 60, "restarts": 3}, g)
        for g in (1, 2, 3)
    },
    **{
        f"fedem, lines {g}, by responsibility": (
            "mixed-regression",
            LINES | {"groups": g},
            {"rounds": 60, "restarts": 3, **PACE},
            g,
        )
        for g in (1, 2, 3)
    },
    "fedem, digits, all alike": ("noisy-labels", ALIKE, {}, 1),
    "fedem, opposite labels": ("opposite-labels", SHORT, {"rounds": 60}, 2),
    "fedem, opposite labels, by responsibility": ("opposite-labels", SHORT, {"rounds": 60, **PACE}, 2),
    "fedem, diverse shift, by responsibility": ("diverse-shift", SWAPPED, PACE, 3),
    "fedrc, digits, all alike": ("noisy-labels", ALIKE, {}, 1),
    "fedrc, opposite labels": ("opposite-labels", SHORT, {"rounds": 60}, 2),
    "fedrc, opposite labels, by responsibility": ("opposite-labels", SHORT, {"rounds": 60, **PACE}, 2),
    "fedrc, diverse shift, by responsibility": ("diverse-shift", SWAPPED, PACE, 3),
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=100, help="the rule was chosen on data of seeds below 100")
    parser.add_argument("--only", default="", help="cases whose names hold this text")
    said = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(f"{'':<44} {'groups':>6} {'right':>6}  answers (agreement of the trial runs)", flush=True)
    for name, (scenario, of_scenario, options, groups) in CASES.items():
        if said.only not in name:
            continue
        answers = []
        for seed in range(said.first, said.first + said.seeds):
            data = coterie.scenario(scenario, seed=seed, **of_scenario)
            result = coterie.fit(data, name.partition(",")[0], clusters="auto", seed=seed, **options)
            found = result.metrics["chosen"]
            answers.append((found["clusters"], found["table"][found["clusters"] - 1]["agreement"]))
        right = f"{sum(groups == K for K, _ in answers)}/{len(answers)}"
        shown = ", ".join(f"{K} ({agreed:.2f})" for K, agreed in answers)
        print(f"{name:<44} {groups:>6} {right:>6}  {shown}", flush=True)
