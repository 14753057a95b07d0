"""A round of phase 2 (FedX-clustering) of the mixed regression papers' second setting against a plain client loop.

    python benchmarks/phase_two.py            # 920 clients (900 x 10 + 20 x 50 samples), d = 100, k = 3, s = 5
    python benchmarks/phase_two.py --growth   # 10^3 to 10^6 clients of 10 samples, d = 100: time and peak memory

The loop goes client by client with numpy: residuals of all models, the smallest one, five gradient steps on it. Both
sides are timed in turns in the same process, one thread; the shortest time counts. Growth runs each size in its own
process, with all threads as in a run, and compares with a pass measured between its rounds: one numpy.sum over the
features.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable

import numpy as np
import torch
from linear_round import forget_peak, peak_memory, resident

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.core.state import ServerState
from coterie.data.arrays import stack_shard
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

STEPS = 5


def plan_for(data: FederatedDataset, dtype: str, starts: int, phase2: str = "fedavg") -> Plan:
    options = {"clusters": 3, "lr": 0.04, "local_steps": STEPS, "rounds": 10**6, "dtype": dtype, "phase2": phase2}
    return prepare(data, "two-phase", "linear", options | {"init": "random", "restarts": starts})


def rounds_of(plan: Plan) -> Callable[[], object]:
    """The next round of a run, repeated: values that are kept between rounds are kept."""
    state = initialize(plan).state

    def work() -> object:
        nonlocal state
        with torch.no_grad():
            state = plan.method.step(plan.run, state).state
        return state

    return work


def plain_loop(data: FederatedDataset, state: ServerState) -> Callable[[], object]:
    """Return a loop over the clients, in float64."""
    shard, lr = data.train, 0.04
    x, y = shard.x.numpy(), shard.y.numpy()
    clients = [(x[a:b], y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True)]
    models = state.clusters.params["weight"].double().numpy()

    def work() -> object:
        sums, total = np.zeros_like(models), 0
        for features, target in clients:
            residual = features @ models.T - target[:, None]
            best = int((residual**2).sum(axis=0).argmin())
            theta = models[best].copy()
            for _ in range(STEPS):
                theta -= lr / len(target) * ((features @ theta - target) @ features)
            sums[best] += len(target) * (theta - models[best])
            total += len(target)
        return models + sums / total

    return work


def least(*works: Callable[[], object], repeats: int = 7) -> list[float]:
    """Return the lowest time of each piece of work, all measured alternately."""
    best = [float("inf")] * len(works)
    for repeat in range(repeats + 1):
        for index, work in enumerate(works):
            started = time.perf_counter()
            work()
            if repeat:
                best[index] = min(best[index], time.perf_counter() - started)
    return best


def compare() -> None:
    data = coterie.scenario(
        "mixed-regression", clients=920, samples="900x10+20x50", dimension=100, test_samples=1, seed=0
    )
    loop = plain_loop(data, initialize(plan_for(data, "float64", 1)).state)
    print(f"{'a round on C.2':<34} {'ours, ms':>9} {'loop, ms':>9} {'ratio':>6}")
    for dtype in ("float64", "float32"):
        for starts in (1, 10):
            for phase2 in ("fedavg", "fedprox"):
                ours, plain = least(rounds_of(plan_for(data, dtype, starts, phase2)), loop)
                ours /= starts
                name = f"{phase2}, {dtype}, {starts} start{'s, each' * (starts > 1)}"
                print(f"{name:<34} {1e3 * ours:>9.2f} {1e3 * plain:>9.1f} {plain / ours:>6.0f}", flush=True)


def one_size(clients: int) -> None:
    """Print the figures of a round with this number of clients of ten samples."""
    random = np.random.default_rng(0)
    models = random.standard_normal((3, 100)).astype(np.float32) / 10
    x = random.standard_normal((clients * 10, 100), dtype=np.float32)
    y = np.einsum("nd,nd->n", x, np.repeat(models[np.arange(clients) % 3], 10, axis=0))
    data = FederatedDataset("lines", stack_shard([str(i) for i in range(clients)], x, y, [10] * clients))
    plan = plan_for(data, "float32", 1)
    work = rounds_of(plan)
    before = resident()
    forget_peak()
    ours, one_pass = least(work, lambda: np.sum(x), repeats=4)
    more = (peak_memory() - before) / x.nbytes
    print(
        f"{clients:>9,} {1e3 * ours:>9.1f} {1e3 * one_pass:>9.1f} {ours / one_pass:>7.1f} {1 + more:>14.2f}", flush=True
    )


def growth() -> None:
    print(f"{'clients':>9} {'round, ms':>9} {'pass, ms':>9} {'passes':>7} {'memory / data':>14}", flush=True)
    for clients in (1_000, 10_000, 100_000, 1_000_000):
        subprocess.run([sys.executable, __file__, "--clients", str(clients)], check=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true", help="grow the number of clients instead")
    parser.add_argument("--clients", type=int, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.clients:
        one_size(chosen.clients)
    elif chosen.growth:
        growth()
    else:
        torch.set_num_threads(1)
        compare()
