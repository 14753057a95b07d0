"""Effect of other processes on a round: clients divided among threads, or products divided by torch's threads.

    python benchmarks/shared.py           # the machine as it is
    python benchmarks/shared.py --busy 2  # with two busy processes at the same time

Both ways use as many threads as torch takes; the workloads are those of workloads.py, W1 on a twentieth of the clients.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from workloads import first_plan, one_round, second_plan, third_plan

from coterie.core.federation import Replies
from coterie.core.messages import Broadcast
from coterie.core.shard import Positions
from coterie.core.task import Task
from coterie.engines.in_process import InProcess
from coterie.training.fitting import initialize

REPEATS = 5
BURNER = "while True: pass"


class OneShard(InProcess):
    """Run all clients at once in the calling thread: torch divides their products among its threads."""

    def ask(self, task: Task, broadcast: Broadcast, asked: Positions) -> Replies:
        reply = task.run(self.group.take(asked), broadcast.to(np.arange(len(asked))))
        return Replies(reply, reply.nbytes, broadcast.bytes_for(len(asked)))


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Run `count` busy processes, and end them afterwards."""
    burners = [subprocess.Popen(["nice", "-n", "5", sys.executable, "-c", BURNER]) for _ in range(count)]
    try:
        yield
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


def main() -> None:
    plans = {
        "W1 60 x 200": first_plan(60, 200),
        "W1 240 x 50": first_plan(240, 50),
        "W2 1 start": second_plan(1),
        "W2 30 starts": second_plan(30),
        "W3": third_plan(),
    }
    print(f"{'a round of':<14} {'products cut, s':>16} {'clients cut, s':>16} {'ratio':>6}")
    for name, plan in plans.items():
        whole = replace(plan, run=replace(plan.run, federation=OneShard(plan.federation.group)))
        works = [one_round(each, initialize(plan).state) for each in (whole, plan)]
        times: list[list[float]] = [[], []]
        for _ in range(REPEATS + 1):
            for work, found in zip(works, times, strict=True):
                started = time.perf_counter()
                work()
                found.append(time.perf_counter() - started)
        first, second = (min(found[1:]) for found in times)
        print(f"{name:<14} {first:>16.3f} {second:>16.3f} {first / second:>6.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--busy", type=int, default=0, help="number of busy processes to start")
    chosen = parser.parse_args()
    print(f"{torch.get_num_threads()} threads, {chosen.busy} busy processes of our own")
    with busy(chosen.busy):
        main()
