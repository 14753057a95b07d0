"""New clients of CFL: by the lowest loss, or by the tree of splits?

    python benchmarks/newcomers.py [--seeds 5]

Every fifth client stays out of the training and comes later with 1, 2, 5 or 10 labelled samples. It is placed right if
most clients of its true group are in the cluster it finds; its accuracy is that of this cluster's model on its held-out
samples. Settings are those of docs/adaptive.md. Prints means over all newcomers of all seeds.
"""

from __future__ import annotations

import argparse
import warnings
from collections import Counter
from collections.abc import Iterator

import numpy as np
from groups_found import COMMON, DATA, SETTINGS

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Shard
from coterie.training.result import Result

SUPPORT = (1, 2, 5, 10)
EVERY = 5
RUNS = {"rotated-digits": "cfl", "opposite-labels": "cfl with a gate"}
Samples = tuple[np.ndarray, np.ndarray]


def of_client(shard: Shard, i: int) -> Samples:
    rows = slice(shard.starts[i], shard.stops[i])
    return shard.x[rows].numpy(), shard.y[rows].numpy()


def without_newcomers(data: FederatedDataset) -> FederatedDataset:
    """Return the other clients, with their true groups."""
    assert data.truth is not None
    stay = [i for i in range(len(data.clients)) if i % EVERY]
    clients = {data.clients[i]: of_client(data.train, i) for i in stay}
    return coterie.from_arrays(clients, truth={data.clients[i]: int(data.truth[i]) for i in stay})


def placed(data: FederatedDataset, result: Result, support: int) -> Iterator[tuple[str, bool, float]]:
    """Return for each new client and procedure whether the cluster is right, and its accuracy."""
    assert data.truth is not None
    assert data.test is not None
    truth = dict(zip(data.clients, data.truth.tolist(), strict=True))
    for i in range(0, len(data.clients), EVERY):
        x, y = (part[:support] for part in of_client(data.train, i))
        like = Counter(k for client, k in result.assignments.items() if truth[client] == data.truth[i])
        found = {"loss": result.assign(x, y), "tree": int(result.weigh(x, y).argmax())}
        query, labels = of_client(data.test, i)
        for way, cluster in found.items():
            hits = result.predict(query, cluster=cluster) == labels
            yield way, cluster == like.most_common(1)[0][0], float(hits.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    warnings.simplefilter("ignore")
    print(f"{'data':<16} {'support':>7} {'way':<5} {'newcomers':>9} {'right':>7} {'accuracy':>9}")
    for name, setting in RUNS.items():
        make, more = DATA[name]
        runs = []
        for seed in range(seeds):
            options = COMMON | more | SETTINGS[setting] | {"seed": seed, "newcomers": "tree", "evaluate_every": 100}
            data = make(seed)
            runs.append((data, coterie.fit(without_newcomers(data), "cfl", **options)))
        for support in SUPPORT:
            rows = [row for data, result in runs for row in placed(data, result, support)]
            for way in ("loss", "tree"):
                right, accuracy = zip(*((r, a) for w, r, a in rows if w == way), strict=True)
                figures = f"{np.mean(right):>7.3f} {np.mean(accuracy):>9.4f}"
                print(f"{name:<16} {support:>7} {way:<5} {len(right):>9} {figures}")


if __name__ == "__main__":
    main()
