"""How often the tests of splits are wrong on clients that all follow one distribution.

    python -m benchmarks.false_splits                       # 400 draws of each kind
    python -m benchmarks.false_splits --draws 40 --rate 0.2

Runs `cfl` with defaults, but 45 rounds (four trials), on drawn regressions without groups, and counts the runs in which
any p-value was below its level, and those that split a cluster. Both should be at most the rate (`--false-splits`).
A split also needs an expected gain above zero, so that there are fewer of them.
"""

from __future__ import annotations

import argparse
import warnings

import coterie
from benchmarks.scoreboard.regressions import Regression
from coterie.core.threads import one_thread

KINDS = {
    "linear": Regression(groups=1, clients=30, samples=30),
    "linear, few samples": Regression(groups=1, clients=30, samples=8),
    "linear, 4 to 400 samples": Regression(groups=1, clients=30, unequal=True),
    "linear, heavy tails": Regression(groups=1, clients=30, samples=30, heavy=True),
    "logistic, 12 samples": Regression(classes=True, groups=1, clients=30, samples=12),
    "logistic, 4 to 400 samples": Regression(classes=True, groups=1, clients=30, unequal=True),
}
FIRST_SEED, ROUNDS = 7000, 45


def errors(kind: str, seed: int, rate: float) -> tuple[bool, bool]:
    """Return whether any p-value of a run was below its level, and whether the run split a cluster."""
    data = KINDS[kind](seed).data
    result = coterie.fit(data, "cfl", seed=seed, rounds=ROUNDS, false_splits=rate, evaluate_every=ROUNDS)
    tests = [test for record in result.records for test in record.tests]
    return any(test["value"] < test["threshold"] for test in tests), len(result.models) > 1


def main() -> None:
    """Print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=400)
    parser.add_argument("--rate", type=float, default=0.05, help="largest probability of a false split in a run")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    print(f"| {given.draws} draws, rate {given.rate:g} | p-value below its level | split |\n| --- | ---: | ---: |")
    with one_thread():
        for kind in KINDS:
            found = [errors(kind, FIRST_SEED + draw, given.rate) for draw in range(given.draws)]
            low, split = (sum(each) / len(found) for each in zip(*found, strict=True))
            print(f"| {kind} | {100 * low:.1f} % | {100 * split:.1f} % |", flush=True)


if __name__ == "__main__":
    main()
