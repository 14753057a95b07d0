"""A round of HCFL+ against one of FedAvg, for more heads and for more clients.

    python benchmarks/adaptive.py            # K from 1 to 50, against FedAvg
    python benchmarks/adaptive.py --cnn      # the same with convolutions, K from 1 to 10
    python benchmarks/adaptive.py --clients  # 100 to 10,000 small clients: cost of comparing them

Random data, 2 local epochs, batches of 20, one thread. K is fixed by a rho that no distance reaches and without
removals. The methods alternate round by round in one process; the figures are medians of the processor time. FedAvg
does not score with mini-batches; `scored` is its round with a pass that scores its model on all training samples. With
--clients all clients are in one cluster, which is the worst case, and every case runs in its own process: a round
without comparisons, one with the default bound, and one that compares all pairs. Memory is the peak beyond what was
used before the first round.
"""

import argparse
import os
import subprocess
import sys
from dataclasses import replace

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import torch
from linear_round import forget_peak, peak_memory
from soft import GROWTH, WORKLOADS, FedAvgScored, Ours, Workload, in_turns, plan_of

from coterie.tiers.procedure import Procedure, SplitByGap
from coterie.training.planning import Plan

ROUNDS, FEW_ROUNDS, WARM = 21, 3, 2
CLIENTS = (100, 300, 1000, 3000, 10_000)
ALL_PAIRS = 3000
"""Largest number of clients; the distances of all pairs of 10,000 need tens of gigabytes."""
NEVER = 1e9
RECIPE = WORKLOADS[0]
CONVOLVING, FEW_HEADS = WORKLOADS[3], (1, 3, 10)
LARGE = replace(RECIPE, clients=max(GROWTH))
"""Number of clients if there are more heads than clients of the recipe."""
SMALL = replace(RECIPE, samples=20)
BOUNDS: dict[str, tuple[SplitByGap, ...]] = {
    "never": (SplitByGap(NEVER, warmup=sys.maxsize),),
    "bounded": (SplitByGap(NEVER),),
    "all": (SplitByGap(NEVER, most=sys.maxsize),),
}


def plus(work: Workload, K: int, backbone: str) -> Plan:
    """HCFL+ with a fixed number of K heads."""
    return plan_of(work, "hcfl+", clusters=K, backbone=backbone, rho=NEVER, remove=False)


def compare(work: Workload, backbone: str, K: int) -> None:
    """Print the time of a round with K heads over one of FedAvg, without and with scores of its model."""
    single = plan_of(work, "fedavg")
    rounds = FEW_ROUNDS if work is CONVOLVING else ROUNDS
    bare, scored, ours = in_turns([Ours(single), FedAvgScored(single), Ours(plus(work, K, backbone))], rounds, WARM)
    print(f"{backbone:<8} {K:>3} {1e3 * bare:>10.1f} {1e3 * ours:>8.1f} {ours / bare:>9.2f} {ours / scored:>9.2f}")


def grow(clients: int, bound: str) -> None:
    """Print milliseconds a round and megabytes of one case."""
    plan = plus(replace(SMALL, clients=clients), 1, "fedrc")
    tiers = replace(plan.tiers, procedure=Procedure(BOUNDS[bound]))
    ours = Ours(replace(plan, run=replace(plan.run, tiers=tiers)))
    forget_peak()
    held = peak_memory()
    seconds = in_turns([ours], FEW_ROUNDS, WARM)[0]
    print(f"{clients:>7} {bound:<9} {1e3 * seconds:>10.1f} {(peak_memory() - held) / 1e6:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", action="store_true", help="more clients instead")
    parser.add_argument("--cnn", action="store_true", help="the same with convolutions")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        return grow(int(chosen.one[0]), chosen.one[1])
    if chosen.clients:
        print(f"{'clients':>7} {'compared':<9} {'ms/round':>10} {'MB':>8}", flush=True)
        for clients in CLIENTS:
            for bound in BOUNDS if clients <= ALL_PAIRS else ("never", "bounded"):
                subprocess.run([sys.executable, __file__, "--one", str(clients), bound], check=True)
        return None
    print(f"{'backbone':<8} {'K':>3} {'fedavg, ms':>10} {'ours':>8} {'x fedavg':>9} {'x scored':>9}")
    for backbone in ("fedem", "fedrc"):
        for K in FEW_HEADS if chosen.cnn else GROWTH:
            compare(CONVOLVING if chosen.cnn else RECIPE if RECIPE.clients >= K else LARGE, backbone, K)
    return None


if __name__ == "__main__":
    main()
