"""IFCA on linear models: a round's time in units of one pass over the data, its growth in m, and its memory.

    python benchmarks/linear_round.py            # the table
    python benchmarks/linear_round.py --quick    # a fifth of the clients

The unit is one one-thread `numpy.sum` over the same float32 array, measured in the same process between the rounds:
machines are noisy, ratios less so. Both are processor time, which other processes disturb little; with several threads
a round is wall-clock time. Memory is the peak resident size minus that after the imports, over the size of the training
arrays; every case runs in a separate process. The rounds belong to a run of a thousand rounds, which is long enough
for compiled code.
"""

import argparse
import os
import subprocess
import sys
import time
from dataclasses import astuple, dataclass
from itertools import islice

import numpy as np
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import stack_shard
from coterie.training.fitting import initialize
from coterie.training.loop import train
from coterie.training.planning import prepare


@dataclass(frozen=True)
class Case:
    """Clients, samples n of each, features d, clusters K, local steps, threads."""

    clients: int
    samples: int = 20
    dimension: int = 50
    clusters: int = 4
    steps: int = 1
    threads: int = 1


@dataclass(frozen=True)
class Cost:
    """Seconds of a round and of a pass over the data, and peak memory relative to the data."""

    round: float
    data_pass: float
    memory: float


def resident() -> int:
    """Return the present resident set size, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_memory() -> int:
    """Return the largest resident set size so far, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def forget_peak() -> None:
    """Reset the largest resident set size."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def population(case: Case) -> FederatedDataset:
    """Return linear data with as many groups as clusters, created in place: memory only holds the training arrays."""
    random = np.random.default_rng(0)
    truth = np.arange(case.clients) % case.clusters
    models = random.standard_normal((case.clusters, case.dimension)).astype(np.float32)
    x = np.empty((case.clients * case.samples, case.dimension), dtype=np.float32)
    y = np.empty(len(x), dtype=np.float32)
    for first in range(0, case.clients, 1000):
        rows = slice(first * case.samples, min(first + 1000, case.clients) * case.samples)
        random.standard_normal(out=x[rows], dtype=np.float32)
        group = np.repeat(truth[first : first + 1000], case.samples)
        y[rows] = np.einsum("nd,nd->n", x[rows], models[group])
    ids = [str(index) for index in range(case.clients)]
    return FederatedDataset("benchmark", stack_shard(ids, x, y, [case.samples] * case.clients))


def measure(case: Case) -> Cost:
    """Measure fifteen rounds with a pass over the data after each; the best of each counts."""
    torch.set_num_threads(case.threads)
    clock = time.process_time if case.threads == 1 else time.perf_counter
    before = resident()
    data = population(case)
    options = {"clusters": case.clusters, "local_steps": case.steps, "lr": 0.01, "rounds": 1000, "dtype": "float32"}
    plan = prepare(data, "ifca", "linear", options | {"init": "random"})
    x = data.train.x.numpy()
    times, passes = [], []
    with torch.no_grad():
        started = clock()
        for done in islice(train(plan.method, plan.run, initialize(plan).state), 15):
            times.append(clock() - started)
            started = clock()
            np.sum(x)
            passes.append(clock() - started)
            assert done.state.loss.isfinite().all()
            started = clock()
    memory = (peak_memory() - before) / (x.nbytes + data.train.y.numpy().nbytes)
    return Cost(min(times), min(passes), memory)


def measure_apart(case: Case) -> Cost:
    """Measure in a separate process, so that its memory can be told apart."""
    command = [sys.executable, __file__, "--case", *map(str, astuple(case))]
    answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return Cost(*map(float, answer.split()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the clients")
    parser.add_argument("--case", nargs=6, type=int, metavar=("M", "N", "D", "K", "STEPS", "THREADS"))
    chosen = parser.parse_args()
    if chosen.case:
        print(*astuple(measure(Case(*chosen.case))))
        sys.exit()
    print(f"coterie {coterie.__version__}: n=20, d=50, K=4, float32, one thread")
    print(f"{'clients':>8} {'steps':>6} {'ms/round':>9} {'ms/pass':>9} {'passes':>7} {'memory':>8}")
    scale = 5 if chosen.quick else 1
    for clients, steps in ((2500, 1), (5000, 1), (10000, 1), (20000, 1), (40000, 1), (10000, 10)):
        cost = measure_apart(Case(clients // scale, steps=steps))
        print(
            f"{clients // scale:>8} {steps:>6} {cost.round * 1e3:>9.1f} {cost.data_pass * 1e3:>9.2f} "
            f"{cost.round / cost.data_pass:>7.1f} {cost.memory:>8.2f}",
            flush=True,
        )
