"""Do methods that find the number of clusters find the true one?

    python benchmarks/groups_found.py [--seeds 5] [--first 0] [--only tests]

Rotated digits (4 groups), the digits of one rotation alone (1 group), opposite labels (2 groups; labels contradict each
other and images are alike). Prints K and the adjusted Rand index of every seed. Settings are those of docs/adaptive.md.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping

import coterie
from coterie.core.dataset import FederatedDataset

COMMON = {"learner": "mlp:hidden=64", "local_steps": 10}
DATA: Mapping[str, tuple[Callable[[int], FederatedDataset], dict[str, object]]] = {
    "rotated-digits": (lambda seed: coterie.scenario("rotated-digits", seed=seed), {"lr": 0.5}),
    "one rotation": (lambda seed: one_rotation(seed), {"lr": 0.5}),
    "opposite-labels": (lambda seed: coterie.scenario("opposite-labels", seed=seed), {"lr": 0.2}),
}
SETTINGS: Mapping[str, dict[str, object]] = {
    "cfl by tests": {"rounds": 40},
    "icfl by tests": {"rounds": 40},
    "hcfl by tests": {"rounds": 40},
    "hcfl+ by tests": {"rounds": 40},
    "cfl": {"warmup": 10, "thresholds": "relative", "eps1": 0.5, "eps2": 1.2, "rounds": 40},
    "cfl with a gate": {"warmup": 10, "thresholds": "relative", "eps1": 0.5, "eps2": 0.0, "gate": 0.6, "rounds": 40},
    "hcfl+ with rho 0.3": {"backbone": "fedem", "averaging": "all", "rho": 0.3, "grace": 0, "rounds": 40},
    "hcfl+ with hard parts": {"backbone": "fesem", "rho": 0.17, "rounds": 40},
    "stocfl with tau 0.55": {"tau": 0.55, "rounds": 10},
    "stocfl with tau 0.5": {"tau": 0.5, "rounds": 10},
    "pacfl": {"rounds": 10},
}


def one_rotation(seed: int) -> FederatedDataset:
    """Return the clients of rotated digits with upright images."""
    whole = coterie.scenario("rotated-digits", seed=seed)
    train, clients = whole.train, {}
    for i in range(len(train)):
        if whole.truth is not None and whole.truth[i] == 0:
            rows = slice(train.starts[i], train.stops[i])
            clients[train.ids[i]] = (train.x[rows].numpy(), train.y[rows].numpy())
    return coterie.from_arrays(clients, truth=dict.fromkeys(clients, 0))


def main() -> None:
    """Print a line for each setting and data set."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--only", default="", help="only settings whose name contains this")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    for name, settings in SETTINGS.items():
        if arguments.only not in name:
            continue
        for data, (make, more) in DATA.items():
            found = []
            for seed in range(arguments.first, arguments.first + arguments.seeds):
                options = COMMON | more | settings | {"evaluate_every": settings["rounds"], "seed": seed}
                result = coterie.fit(make(seed), name.split()[0], **options)
                found.append(f"{len(result.models)} ({result.metrics['ari']:.2f})")
            print(f"{name:20} {data:16} {', '.join(found)}", flush=True)


if __name__ == "__main__":
    main()
