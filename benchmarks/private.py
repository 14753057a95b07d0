"""Cost of privacy: accuracy and ARI against epsilon, for local and central noise and several numbers of clients.

    python benchmarks/private.py [--clients 40 400 4000] [--epsilon 2 8 32] [--seeds 3] [--clip 1]

Rotated digits, logistic regression (650 parameters a cluster), 10 rounds of 10 full-batch steps, delta 1e-5. There are
only 1440 training digits, so each client draws 30 of its rotation with replacement: more clients mean less noise in a
mean, not more information. Means and standard deviations over seeds. All runs have one random start, with and without
privacy.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.data.scenarios.rotated_digits import upright_digits
from coterie.data.scenarios.rotated_images import QUARTERS, Upright, rotated

EACH = 30
COMMON = {"learner": "logistic", "rounds": 10, "local_steps": 10, "lr": 0.5, "evaluate_every": 10}
CLIP_ALONE = "clip alone"
"""Noise that is too small to matter, to measure the effect of the clip alone."""
WAYS = ("none", CLIP_ALONE, "central", "local")


def population(clients: int, seed: int) -> FederatedDataset:
    """Return clients of equal size whose samples are drawn with replacement."""
    random = np.random.default_rng(seed)
    digits = upright_digits(random)
    drawn = random.integers(len(digits.y_train), size=clients // 4 * EACH)
    more = Upright(digits.x_train[drawn], digits.y_train[drawn], digits.x_test, digits.y_test)
    return rotated("resampled-digits", more, QUARTERS, clients, random, options={})


def figures(method: str, way: str, budget: float, clip: float, data: list[FederatedDataset]) -> tuple[str, str, str]:
    """Return accuracy and ARI over the seeds, and the noise for the budget."""
    own = {"clusters": 4, "restarts": 1} if method == "ifca" else {}
    private = {} if way == "none" else {"privacy": way, "privacy_epsilon": budget, "privacy_clip": clip}
    if way == CLIP_ALONE:
        private = {"privacy": "central", "privacy_noise": 0.05, "privacy_clip": clip}
    found = [coterie.fit(each, method, seed=seed, **COMMON, **own, **private) for seed, each in enumerate(data)]
    accuracy = [100 * result.metrics["accuracy"] for result in found]
    ari = [result.metrics["ari"] for result in found]
    noise = found[0].config.get("privacy_noise")
    said = found[0].config.get("privacy_choice")
    reported = "" if noise is None else f"{noise:.2f}" + ("" if said is None else f", choice {said:.2f}")
    spread = f"{np.mean(accuracy):.1f} ± {np.std(accuracy):.1f}"
    return spread, f"{np.mean(ari):.2f}" if method == "ifca" else "", reported


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, nargs="+", default=[40, 400, 4000])
    parser.add_argument("--epsilon", type=float, nargs="+", default=[2, 8, 32])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--clip", type=float, default=1.0)
    chosen = parser.parse_args()
    print("| clients | method | privacy | epsilon | accuracy, % | ARI | noise | seconds |\n" + "| --- " * 8 + "|")
    for clients in chosen.clients:
        data = [population(clients, seed) for seed in range(chosen.seeds)]
        for method in ("fedavg", "ifca"):
            for way in WAYS:
                for budget in chosen.epsilon if way in ("central", "local") else [float("inf")]:
                    clock = time.perf_counter()
                    accuracy, ari, noise = figures(method, way, budget, chosen.clip, data)
                    spent = (time.perf_counter() - clock) / chosen.seeds
                    cells = (clients, method, way, f"{budget:g}", accuracy, ari, noise, f"{spent:.1f}")
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)


if __name__ == "__main__":
    main()
