"""One-shot clustering where clients have about as many samples as coefficients: with and without a ridge.

    python benchmarks/few_samples.py             # ten seeds that had no part in the choice of the default
    python benchmarks/few_samples.py --seeds 3

90 clients in three groups of linear models of 20 coefficients, k-means++ with K given. The numbers are the adjusted
Rand index of the clusters with the true groups, and the mean distance of a client's cluster model from its true one.
"""

import argparse
import warnings
from statistics import mean

import numpy as np
import torch

import coterie

RIDGES = (0.0, 0.1, 0.3)
CASES = {"noise 0.2": (0.2, 0.0), "noise 1": (1.0, 0.0), "noise 0.2, AR(.8)": (0.2, 0.8)}
SAMPLES = (10, 15, 19, 20, 21, 25, 30, 40, 100, 400)
CLIENTS, GROUPS, FEATURES, FIRST = 90, 3, 20, 100


def drawn(noise: float, rho: float, samples: int, seed: int) -> tuple[coterie.FederatedDataset, np.ndarray]:
    """Return the clients of one seed, and their true models (m, p)."""
    random = np.random.default_rng([seed, samples])
    truth, places = np.arange(CLIENTS) % GROUPS, np.arange(FEATURES)
    root = np.linalg.cholesky(np.where(places[:, None] == places, 1.0, rho ** np.abs(places[:, None] - places)))
    x = random.standard_normal((CLIENTS, samples, FEATURES)) @ root.T
    own = (random.standard_normal((GROUPS, FEATURES)) / np.sqrt(FEATURES))[truth]
    y = np.einsum("mnp,mp->mn", x, own) + noise * random.standard_normal((CLIENTS, samples))
    return coterie.from_arrays(list(zip(x, y, strict=True)), truth=truth.tolist()), own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=FIRST)
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| data | samples | " + " | ".join(f"ridge {ridge:g}: ARI, distance" for ridge in RIDGES) + " |")
    print("| --- | --- |" + " --- |" * len(RIDGES))
    for name, (noise, rho) in CASES.items():
        for samples in SAMPLES:
            cells = []
            for ridge in RIDGES:
                agreement, distance = [], []
                for seed in range(given.first, given.first + given.seeds):
                    data, own = drawn(noise, rho, samples, seed)
                    result = coterie.fit(data, "odcl", clusters=GROUPS, ridge=ridge, seed=seed)
                    models = np.stack([model["weight"] for model in result.models])
                    found = models[[result.assignments[client] for client in data.clients]]
                    agreement.append(float(result.metrics["ari"]))
                    distance.append(float(np.linalg.norm(found - own, axis=1).mean()))
                cells.append(f"{mean(agreement):.2f}, {mean(distance):.3f}")
            print(f"| {name} | {samples} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
