"""Share of seeds in which IFCA finds the rotations of the digits: one start, the best of five, a race of five.

    python benchmarks/starts.py            # ten seeds
    python benchmarks/starts.py --seeds 3

Success is an adjusted Rand index of 1 with the true rotations after 40 rounds.
"""

import argparse
from statistics import mean
from typing import Any

import torch

import coterie

WAYS: dict[str, dict[str, Any]] = {
    "one start": {"restarts": 1},
    "best of five to the end": {"restarts": 5, "race": 0},
    "race of five, 5 rounds, 25 %": {"restarts": 5, "race": 5, "race_share": 0.25},
}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds = range(parser.parse_args().seeds)
    torch.set_num_threads(1)
    print(f"{'ifca on rotated-digits':<30} {'success':>8} {'accuracy':>9} {'MB up':>7} {'MB down':>8} {'seconds':>8}")
    for name, options in WAYS.items():
        found = []
        for seed in seeds:
            data = coterie.scenario("rotated-digits", seed=seed)
            found.append(coterie.fit(data, "ifca", seed=seed, evaluate_every=40, **options).metrics)
        success = sum(m["ari"] == 1.0 for m in found)
        figures = [mean(m[key] for m in found) for key in ("accuracy", "bytes_up", "bytes_down", "seconds")]
        accuracy, up, down, seconds = figures
        share = f"{success}/{len(found)}"
        print(f"{name:<30} {share:>8} {accuracy:>9.4f} {up / 1e6:>7.1f} {down / 1e6:>8.1f} {seconds:>8.2f}")
