"""The engine `dask` on this machine: speed-up with two workers, overhead of an exchange, and an estimate for clusters.

    python benchmarks/cluster.py                 # all three; a few minutes
    python benchmarks/cluster.py --clients 100000
    python benchmarks/cluster.py --repeats 10 --page docs/cluster.md    # also writes the tables into the page

W1       a round of IFCA as in workloads.py: K=4, 784-200-10, 10 full-batch steps, 480 clients of 50 images
many     a round of IFCA on linear models: K=4, d=10, --clients clients of 5 samples, in Parquet files

Both are timed in this process with one thread, with one worker process and with two, on the same shards. So the models
are the same to the last bit, which is checked. The three take turns, so that other processes on the machine disturb
all alike, and the lowest time counts. The overhead is the time of an exchange with next to no work, for models of
100 kB and 1 MB, with one worker and with two.

The estimate for W workers, each with its own network card, is

    seconds = compute / W + serial + down + up + 2 log2(W) latency + (W - 1) per_worker
    down    = W D / bandwidth if W <= 2, else (2 + log2(W)) D / bandwidth
    up      = (min(W, 4) + max(0, log2(W) - 2)) U / bandwidth

with the bytes D of the models and U of the sums. More than two workers pass models on to each other; sums are added on
the workers along a tree, and the four largest parts of it here. Measured (lowest times) are compute, in this process;
serial, the time of a round with one worker less that in this process; and per_worker, by which an exchange takes longer
with a second worker. A byte or so for each client passes through this process, so for the linear models serial grows
with the clients. It is a model, not a measurement.
"""

import argparse
import math
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np
import torch
from workloads import random_images

import coterie
from coterie.client.tasks.feature_means import FeatureMeans
from coterie.cluster.connection import connected
from coterie.core.clusters import Clusters
from coterie.core.dataset import ClientDirectory, FederatedDataset
from coterie.core.messages import Broadcast
from coterie.data.arrays import stack_shard
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

WORKERS = (1, 2)
BANDWIDTH, LATENCY = 125e6, 0.5e-3
"""Network of the estimate: 1 Gbit/s in bytes per second, and the seconds of one message between machines."""

MANY = (1, 16, 64, 256)
"""Numbers of workers of the estimate."""
FIRST, LAST = "<!-- figures of benchmarks/cluster.py -->", "<!-- end of the figures -->"

Times = dict[str, float]


def plans(data: ClientDirectory, learner: str, shards: int) -> dict[str, Plan]:
    """Return the same run in this process, on one worker and on two."""
    options = {"clusters": 4, "local_steps": 10, "lr": 0.1, "rounds": 10**6, "dtype": "float32", "init": "random"}
    options |= {"restarts": 1, "shards": shards}
    on_workers = {
        f"{count} worker{'s' * (count > 1)}": prepare(
            data, "ifca", learner, options | {"engine": "dask", "workers": f"local:{count}"}
        )
        for count in WORKERS
    }
    return {"in this process": prepare(data, "ifca", learner, options), **on_workers}


def timed(plans: dict[str, Plan], repeats: int) -> Times:
    """Return the lowest seconds of a round of each plan; all start from the same state, and take turns."""
    state = initialize(plans["in this process"]).state
    seconds: dict[str, list[float]] = {name: [] for name in plans}
    models: dict[str, list[np.ndarray]] = {}
    for repeat in range(repeats + 1):
        for name, plan in plans.items():
            started = time.perf_counter()
            with torch.no_grad():
                step = plan.method.step(plan.run, state)
            if repeat:  # the first time, workers load their shards
                seconds[name].append(time.perf_counter() - started)
            models[name] = [p.numpy() for p in step.state.clusters.params.values()]
    first, *others = models.values()
    assert all(np.array_equal(a, b) for other in others for a, b in zip(first, other, strict=True)), "other bits"
    return {name: min(each) for name, each in seconds.items()}


@dataclass
class Table:
    """A table of figures, which is printed row by row and may be written into a page."""

    head: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._print(self.head)

    def add(self, *row: str) -> None:
        """Add and print a row."""
        self.rows.append(row)
        self._print(row)

    def _print(self, row: tuple[str, ...]) -> None:
        print(f"{row[0]:<44}" + "".join(f"{each:>16}" for each in row[1:]), flush=True)

    def markdown(self) -> str:
        """Return the table for a page."""
        line = "| --- |" + " ---: |" * (len(self.head) - 1)
        return "\n".join([f"| {' | '.join(self.head)} |", line, *(f"| {' | '.join(row)} |" for row in self.rows)])


def seconds_of(times: Times) -> tuple[str, ...]:
    """Return the figures of a row: seconds in this process, with one worker and with two, and the speed-up."""
    here, one, two = times.values()
    return f"{here:.2f}", f"{one:.2f}", f"{two:.2f}", f"{one / two:.2f}"


def many_clients(folder: Path, clients: int) -> ClientDirectory:
    """Return clients of 5 samples in Parquet files."""
    random = np.random.default_rng(0)
    x = random.standard_normal((5 * clients, 10), dtype=np.float32)
    y = (x @ random.standard_normal(10, dtype=np.float32)).astype(np.float32)
    data = FederatedDataset("many", stack_shard([str(i) for i in range(clients)], x, y, [5] * clients))
    coterie.to_parquet_dir(data, folder)
    return coterie.from_parquet_dir(folder, client="client", target="target")


def overhead(workers: int, model_bytes: int, repeats: int) -> tuple[float, float]:
    """Return the median and the lowest seconds of an exchange with next to no work."""
    data = coterie.scenario("mixed-regression", clients=32)
    plan = prepare(data, "ifca", None, {"clusters": 2, "rounds": 1, "engine": "dask", "workers": f"local:{workers}"})
    broadcast = Broadcast(0, Clusters({"weight": torch.zeros(25, model_bytes // 100)}, 25))
    seconds = []
    for repeat in range(repeats + 5):
        started = time.perf_counter()
        plan.federation.ask(FeatureMeans(classes=None), broadcast, np.arange(32))
        if repeat >= 5:
            seconds.append(time.perf_counter() - started)
    return median(seconds), min(seconds)


def bare_task(repeats: int) -> tuple[float, float]:
    """Return the median and the lowest seconds of Dask for the smallest possible task."""
    client, seconds = connected("local:1").client, []
    for repeat in range(repeats):
        started = time.perf_counter()
        client.submit(abs, -1, key=f"bare-{repeat}", pure=False).result()
        seconds.append(time.perf_counter() - started)
    return median(seconds), min(seconds)


def estimate(compute: float, serial: float, size: int, per_worker: float) -> Callable[[int], float]:
    """Return the seconds of a round as a function of the number of workers; see above."""

    def seconds(workers: int) -> float:
        levels = math.log2(workers)
        copies = workers if workers <= 2 else 2 + levels
        copies += min(workers, 4) + max(0.0, levels - 2)
        return (
            compute / workers + serial + copies * size / BANDWIDTH + 2 * levels * LATENCY + (workers - 1) * per_worker
        )

    return seconds


def write(page: Path, tables: Sequence[Table], load: float) -> None:
    """Replace the tables of a page, which are between two comments.

    Args:
        page: The page.
        tables: The tables.
        load: Load of the machine before the measurement.
    """
    busy = (
        f"Before the measurement, the load of the machine was {load:.1f} on {os.cpu_count()} cores; two workers need "
        "two free cores to show what they bring."
    )
    before, _, rest = page.read_text().partition(FIRST)
    _, last, after = rest.partition(LAST)
    assert last, f"{page} has no {FIRST} ... {LAST}"
    page.write_text("\n\n".join([before + FIRST, busy, *(table.markdown() for table in tables), LAST + after]))


def main(clients: int, repeats: int, page: Path | None) -> None:
    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    rounds = Table(("seconds of a round", "in one process", "one worker", "two workers", "speed-up"))
    images = timed(plans(random_images(480, 50), "mlp:hidden=200", 16), repeats)
    rounds.add("W1, 480 clients x 50 images", *seconds_of(images))
    with tempfile.TemporaryDirectory() as place:
        many = timed(plans(many_clients(Path(place) / "many", clients), "linear", 16), repeats)
    rounds.add(f"linear, {clients:,} clients x 5 samples", *seconds_of(many))

    exchanges = Table(("milliseconds of an exchange", "median", "lowest"))
    exchanges.add("smallest task of Dask alone", *milliseconds(bare_task(200)))
    found = {}
    for size in (100_000, 1_000_000):
        for count in WORKERS:
            found[size, count] = overhead(count, size, 200)
            name = f"{size // 1000} kB of models, {count} worker{'s' * (count > 1)}"
            exchanges.add(name, *milliseconds(found[size, count]))

    per_worker = max(0.0, found[100_000, 2][1] - found[100_000, 1][1])
    model = 4 * (784 * 200 + 200 + 200 * 10 + 10)
    serial = [max(0.0, times["1 worker"] - times["in this process"]) for times in (images, many)]
    estimates = Table(("estimated seconds of a round (speed-up)", *map(str, MANY), "GB of traffic"))
    for name, compute, fixed, size in (
        ("W1, 4,800 clients x 50", 10 * images["in this process"], serial[0], 4 * model),
        (f"linear, {10 * clients:,} clients", 10 * many["in this process"], 10 * serial[1], 4 * 4 * 10),
    ):
        seconds = estimate(compute, fixed, size, per_worker)
        shown = [f"{seconds(workers):.2f} ({seconds(1) / seconds(workers):.0f})" for workers in MANY]
        estimates.add(name, *shown, f"{2 * MANY[-1] * size / 1e9:.3f}")
    if page is not None:
        write(page, (rounds, exchanges, estimates), load)


def milliseconds(times: tuple[float, float]) -> tuple[str, str]:
    """Return the median and the lowest time as texts."""
    return f"{1000 * times[0]:.1f}", f"{1000 * times[1]:.1f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000, help="number of clients with linear models")
    parser.add_argument("--repeats", type=int, default=3, help="number of timed rounds")
    parser.add_argument("--page", type=Path, help="page whose tables are replaced")
    chosen = parser.parse_args()
    main(chosen.clients, chosen.repeats, chosen.page)
