"""IFCA on linear models: a round's time in units of one pass over the data, its growth in m, and its memory.

    python benchmarks/linear_round.py            # the table
    python benchmarks/linear_round.py --quick    # a fifth of the clients

The unit is one one-thread `numpy.sum` over the same float32 array, measured in the same process between the rounds:
machines are noisy, ratios less so. Memory is the peak resident size minus that after the imports, over the size of the
training arrays; every case runs in a process of its own.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
import torch

import coterie
from coterie.core.population import Population
from coterie.fitting import prepare
from coterie.scenarios.arrays import stack_shard
from coterie.server.loop import rounds

SAMPLES, DIMENSION, CLUSTERS = 20, 50, 4


def resident() -> int:
    """Resident set size now, in bytes."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak() -> int:
    """Largest resident set size so far, in bytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def population(clients: int) -> Population:
    """Linear data of four groups, made in place so that nothing but the training arrays is ever held."""
    random = np.random.default_rng(0)
    truth = np.arange(clients) % CLUSTERS
    models = random.standard_normal((CLUSTERS, DIMENSION)).astype(np.float32)
    x = np.empty((clients * SAMPLES, DIMENSION), dtype=np.float32)
    y = np.empty(len(x), dtype=np.float32)
    for first in range(0, clients, 1000):
        rows = slice(first * SAMPLES, min(first + 1000, clients) * SAMPLES)
        random.standard_normal(out=x[rows], dtype=np.float32)
        group = np.repeat(truth[first : first + 1000], SAMPLES)
        y[rows] = np.einsum("nd,nd->n", x[rows], models[group])
    ids = [str(index) for index in range(clients)]
    return Population("benchmark", stack_shard(ids, x, y, [SAMPLES] * clients))


def measure(clients: int, steps: int) -> None:
    """Print: clients, steps, milliseconds of a round, of a pass, their ratio, memory over data."""
    before = resident()
    data = population(clients)
    options = {"clusters": CLUSTERS, "local_steps": steps, "lr": 0.01, "rounds": 100, "dtype": "float32"}
    plan = prepare(data, "ifca", "linear", "random", options)
    x = data.train.x.numpy()
    times, passes = [], []
    with torch.no_grad():
        begun = time.perf_counter()
        for done in rounds(plan.method, plan.federation, plan.first_state(), 12, 0, None):
            times.append(time.perf_counter() - begun)
            begun = time.perf_counter()
            np.sum(x)
            passes.append(time.perf_counter() - begun)
            assert done.state.loss.isfinite().all()
            begun = time.perf_counter()
    memory = (peak() - before) / (x.nbytes + data.train.y.numpy().nbytes)
    a, b = statistics.median(times[2:]), statistics.median(passes[2:])
    print(f"{clients:>8} {steps:>6} {a * 1e3:>9.1f} {b * 1e3:>9.2f} {a / b:>7.1f} {memory:>8.2f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the clients")
    parser.add_argument("--case", nargs=2, type=int, metavar=("CLIENTS", "STEPS"), help="one case, in this process")
    chosen = parser.parse_args()
    if chosen.case:
        measure(*chosen.case)
        sys.exit()
    print(f"coterie {coterie.__version__}: n={SAMPLES}, d={DIMENSION}, K={CLUSTERS}, float32, one thread")
    print(f"{'clients':>8} {'steps':>6} {'ms/round':>9} {'ms/pass':>9} {'passes':>7} {'memory':>8}")
    scale = 5 if chosen.quick else 1
    for clients, steps in ((2500, 1), (5000, 1), (10000, 1), (20000, 1), (40000, 1), (10000, 10)):
        subprocess.run([sys.executable, __file__, "--case", str(clients // scale), str(steps)], check=True)
