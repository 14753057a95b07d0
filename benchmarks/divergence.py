"""How often the verdict on divergence is wrong: sound runs that are called diverged, diverged ones that are not.

    python benchmarks/divergence.py             # 8 rounds a run, two seeds; some 15 minutes on one core
    python benchmarks/divergence.py --rounds 0  # as many rounds as each scenario suggests; hours
    python benchmarks/divergence.py --only grunfeld --seeds 5

The first table runs every method on the scenarios that need no download, with default settings. `ratio` is the final
training loss over that of a model that has learned nothing, which is what the verdict goes by (docs/divergence.md).
The second table runs every method on linear regression with one column of another unit, with values near the largest
float and with step sizes that are too large.
"""

import argparse
import math
import warnings
from collections.abc import Iterator

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import CoterieError
from coterie.methods import Method
from coterie.training.result import Result

SCENARIOS = (
    "mixed-regression",
    "odcl-linear",
    "odcl-clusterpath",
    "odcl-logistic",
    "opposite-labels",
    "grunfeld",
    "ifca-synthetic",
    "linear-representation",
    "rotated-digits",
    "few-classes",
    "noisy-labels",
    "mixed-clients",
    "diverse-shift",
    "drift",
)
TOO_LARGE = {
    "column of 60": {"column": 60.0},
    "column of 1e3": {"column": 1e3},
    "column of 1e6": {"column": 1e6},
    "column of 1e300": {"column": 1e300},
    "lr=10": {"lr": 10.0},
    "lr=1000": {"lr": 1e3},
    "lr=1e30": {"lr": 1e30},
    "lr=1e308": {"lr": 1e308},
}
FREE_OF_LR = {"odcl", "moment-descent", "local-erm", "naive-averaging", "oracle-averaging", "cluster-oracle"}
"""Methods without training steps, for which no step size is too large."""
FIRST_SEED = 1000


def ratio(data: FederatedDataset, result: Result) -> float:
    """Return the final training loss over that of an untrained model."""
    loss = math.inf if result.metrics["loss"] is None else float(result.metrics["loss"])
    if data.profile.classes is not None:
        return loss / math.log(data.profile.classes)
    targets = data.train.y[None].double()
    return loss / float(result.learner.loss(torch.zeros_like(targets), targets).mean())


def defaults(name: str, seeds: int, rounds: int) -> Iterator[tuple[str, bool, float]]:
    """Yield method, verdict and ratio of runs with default settings on one scenario."""
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        data = coterie.scenario(name, seed=seed)
        for method, kind in Method.members.items():
            shorter = {"rounds": rounds} if rounds and any(o.name == "rounds" for o in kind.options()) else {}
            try:
                result = coterie.fit(data, method, seed=seed, **shorter)
            except CoterieError:
                continue  # the method is not for such data
            yield method, result.metrics["diverged"], ratio(data, result)


def wide(column: float, seed: int) -> FederatedDataset:
    """Return two groups of clients with one line each, and one column in another unit."""
    random = np.random.default_rng(seed)
    clients = {}
    for i in range(8):
        x = random.standard_normal((40, 3))
        slopes = np.array([1.0, 2.0, -1.0]) * (1 if i % 2 else -1)
        clients[f"c{i}"] = (x * [column, 1, 1], x @ slopes + 0.1 * random.standard_normal(40))
    return coterie.from_arrays(clients, truth={client: int(client[1]) % 2 for client in clients})


def ends(method: str, column: float, lr: float | None, seed: int) -> str:
    """Return the outcome of a run that must diverge."""
    has_rate = any(option.name == "lr" for option in Method.members[method].options())
    options = {"lr": lr if lr is not None else 0.1} if has_rate else {}
    learner = "representation:width=2" if method.startswith("linear-heads") else "linear"
    try:
        result = coterie.fit(wide(column, seed), method, learner=learner, seed=seed, **options)
    except CoterieError as error:
        return f"refused: {error}"
    return "diverged" if result.metrics["diverged"] else f"sound, loss {result.metrics['loss']:.3g}"


def first_table(arguments: argparse.Namespace) -> None:
    print(f"\n{'scenario':<24}{'runs':>6}{'called diverged':>17}{'greatest ratio of the others':>30}")
    for name in arguments.only or SCENARIOS:
        runs = list(defaults(name, arguments.seeds, arguments.rounds))
        sound = max((found for _, diverged, found in runs if not diverged), default=math.nan)
        print(f"{name:<24}{len(runs):>6}{sum(diverged for _, diverged, _ in runs):>17}{sound:>30.3f}", flush=True)
        for method, diverged, found in runs:
            if diverged:
                print(f"  {method}: ratio {found:.3g}")


def second_table(arguments: argparse.Namespace) -> None:
    print(f"\n{'what is too large':<24}{'runs':>6}{'diverged':>10}{'refused':>9}{'sound':>7}")
    for name, case in TOO_LARGE.items():
        found = {
            (method, seed): ends(method, case.get("column", 1.0), case.get("lr"), seed)
            for method in Method.members
            if method != "tiered" and not (method in FREE_OF_LR and "lr" in case)
            for seed in range(FIRST_SEED, FIRST_SEED + arguments.seeds)
        }
        counts = [sum(end.startswith(word) for end in found.values()) for word in ("diverged", "refused", "sound")]
        print(f"{name:<24}{len(found):>6}{counts[0]:>10}{counts[1]:>9}{counts[2]:>7}")
        for (method, seed), end in found.items():
            if end.startswith("sound"):
                print(f"  {method}, seed {seed}: {end}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=8, help="of each run of the first table; 0: as suggested")
    parser.add_argument("--only", nargs="*", help="scenarios of the first table")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    second_table(arguments)
    first_table(arguments)


if __name__ == "__main__":
    main()
