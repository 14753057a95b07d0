"""Cost of comparing clients at the server, for growing numbers of clients: bounded, and with all pairs.

    python benchmarks/many_clients.py

cfl, icfl: a cluster of all clients is split. stocfl: all clients arrive in one round, and all pairs are compared in any
case, block by block. pacfl: all clients send the leading directions of 20 samples and are grouped, including the work
of the clients. Updates have the size of those of the mlp 64-64-32-10: one of two directions, plus noise twice as long;
samples have 64 numbers and two groups. `found` states whether both groups were found. Every case runs in its own
process with one thread; seconds are processor time, and memory is the peak beyond what was used before.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
import torch
from linear_round import forget_peak, peak_memory

import coterie
from coterie.core.clusters import Clusters
from coterie.core.keys import hash_ids
from coterie.core.regroup import Changes
from coterie.core.state import ServerState
from coterie.core.state_array import Share, StateArray
from coterie.methods import PACFL
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.landmarks import MAX_COMPARED
from coterie.tiers.procedure import MergeAbove, ProcedureStep, SplitByNorm, SplitBySpectrum
from coterie.tiers.view import View
from coterie.training.planning import prepare

CLIENTS, ALL_PAIRS = (1000, 3000, 10_000), 3000
"""Largest number of clients for all pairs: those of 10,000 need minutes, and their eigenvectors longer."""
PARAMETERS, FEATURES, SAMPLES = 6570, 64, 20
LENGTH, TAU = 2.0, 0.1
"""Length of the noise, and StoCFL's threshold: cosines are 0.2 in a group and 0 between groups."""
BOUNDS = {"bounded": MAX_COMPARED, "all": sys.maxsize}
Groups = list[set[int]]


def group(clients: int) -> torch.Tensor:
    """Return the group of each client, (clients,): every second client is in the second group."""
    return torch.arange(clients) % 2


def view_of(clients: int, arrived: bool) -> View:
    """Return the replies of all clients: in one cluster after a round, or in their first round."""
    random = torch.Generator().manual_seed(0)
    ways = torch.nn.functional.normalize(torch.randn(2, PARAMETERS, generator=random), dim=1)
    updates = torch.randn(clients, PARAMETERS, generator=random).mul_(LENGTH / PARAMETERS**0.5)
    updates.add_(ways[group(clients)])
    ids, clusters = tuple(map(str, range(clients))), Clusters({"weight": torch.zeros(1, PARAMETERS)}, K=1)
    slots, ones = torch.zeros(clients, 1, dtype=torch.int64), torch.ones(clients, 1, dtype=torch.float64)
    state = replace(ServerState.fresh(clusters, clients).with_values(choice=slots - int(arrived)), round=30)
    portraits = StateArray(torch.zeros(1, PARAMETERS), ("cluster", None), Share())
    return View(
        state=state.with_arrays({"portraits": portraits}),
        clients=ids,
        answered=np.arange(clients),
        hashes=hash_ids(ids),
        rows={"anchor": updates} if arrived else {},
        changes=None if arrived else Changes(clusters, ids, slots, updates[:, None], ones, ones),
        distance=UpdateCosine(),
    )


def decision(step: ProcedureStep, view: View) -> Callable[[], Groups]:
    """Return the server's step."""

    def decide() -> Groups:
        decided = step.server_propose(view)
        return [] if decided is None else [set(map(int, new.members or ())) for new in decided.clusters]

    return decide


def grouping(clients: int, most: int) -> Callable[[], Groups]:
    """Return the initialisation of PACFL: samples lie near one of two planes."""
    random = np.random.default_rng(0)
    planes = random.standard_normal((2, 2, FEATURES))
    x = random.standard_normal((clients, SAMPLES, 2)) @ planes[group(clients).numpy()]
    x += 0.3 * random.standard_normal(x.shape)
    data = coterie.from_arrays(
        list(zip(x.astype(np.float32), np.zeros((clients, SAMPLES), dtype=np.float32), strict=True))
    )
    method = PACFL(directions=2, beta=30.0)
    plan = prepare(data, method, "linear", {"dtype": "float32"})

    def decide() -> Groups:
        found = method.group(plan.run, K=None, most=most)
        return [set(np.flatnonzero(found.labels == k)) for k in range(found.K)]

    return decide


WORKS: dict[str, Callable[[int, int], Callable[[], Groups]]] = {
    "cfl": lambda clients, most: decision(SplitByNorm(1e9, 0.0, most=most), view_of(clients, False)),
    "icfl": lambda clients, most: decision(SplitBySpectrum(0.01, most=most), view_of(clients, False)),
    "stocfl": lambda clients, most: decision(MergeAbove(TAU), view_of(clients, True)),
    "pacfl": grouping,
}


def measure(method: str, clients: int, bound: str) -> None:
    """Print seconds and megabytes of one case, and whether it found the groups."""
    work = WORKS[method](clients, BOUNDS[bound])
    forget_peak()
    held, started = peak_memory(), time.process_time()
    found = work()
    seconds = time.process_time() - started
    truth = [set(range(first, clients, 2)) for first in (0, 1)]
    right = sorted(map(sorted, found)) == sorted(map(sorted, truth))
    memory = (peak_memory() - held) / 1e6
    print(f"{method:<7} {clients:>7} {bound:<8} {seconds:>8.2f} {memory:>7.0f} {'yes' if right else 'no':>6}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        return measure(chosen.one[0], int(chosen.one[1]), chosen.one[2])
    print(f"{'method':<7} {'clients':>7} {'compared':<8} {'seconds':>8} {'MB':>7} {'found':>6}", flush=True)
    for method in WORKS:
        for clients in CLIENTS:
            for bound in BOUNDS if MAX_COMPARED < clients <= ALL_PAIRS and method != "stocfl" else ("bounded",):
                subprocess.run([sys.executable, __file__, "--one", method, str(clients), bound], check=True)
    return None


if __name__ == "__main__":
    main()
