"""The engine `dask` on this machine: speed-up with two workers, overhead of an exchange, and an estimate for clusters.

    python benchmarks/cluster.py                 # all three; a few minutes
    python benchmarks/cluster.py --clients 100000

W1       a round of IFCA as in workloads.py: K=4, 784-200-10, 10 full-batch steps, 480 clients of 50 images
many     a round of IFCA on linear models: K=4, d=10, --clients clients of 5 samples, in Parquet files

Both are timed in this process with one thread, with one worker process and with two, on the same shards. So the models
are the same to the last bit, which is checked. The three take turns, so that other processes on the machine disturb
all alike, and the lowest time counts. The overhead is the time of an exchange with next to no work, for models of
100 kB and 1 MB, with one worker and with two.

The estimate for W workers, each with its own network card, is

    seconds = compute / W + serial + B D / bandwidth + 2 log2(W) (latency + U / bandwidth) + (W - 1) per_worker

with the bytes D of the models down and U of the sums up, and B = min(W, 2) copies that leave the scheduler, since
workers pass large models on to each other. Measured here (lowest times) are compute, in this process; serial, the time
of a round with one worker less that in this process; and per_worker, by which an exchange takes longer with a second
worker. Rows of single clients pass through this process, so for the linear models serial grows with the clients. It is
a model, not a measurement.
"""

import argparse
import math
import tempfile
import time
from collections.abc import Callable
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


def show(name: str, times: Times) -> None:
    here, one, two = times.values()
    print(f"{name:<28} {here:>16.2f} {one:>10.2f} {two:>10.2f} {one / two:>10.2f}", flush=True)


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
        network = min(workers, 2) * size / BANDWIDTH + 2 * math.log2(workers) * (LATENCY + size / BANDWIDTH)
        return compute / workers + serial + network + (workers - 1) * per_worker

    return seconds


def main(clients: int, repeats: int) -> None:
    torch.set_num_threads(1)
    print(f"{'seconds of a round':<28} {'in this process':>16} {'1 worker':>10} {'2 workers':>10} {'speed-up':>10}")
    images = timed(plans(random_images(480, 50), "mlp:hidden=200", 16), repeats)
    show("W1, 480 clients x 50", images)
    with tempfile.TemporaryDirectory() as place:
        many = timed(plans(many_clients(Path(place) / "many", clients), "linear", 16), repeats)
    show(f"linear, {clients:,} clients x 5", many)

    print(f"\n{'ms of an exchange':<28} {'median':>16} {'lowest':>10}")
    print("{:<28} {:>16.1f} {:>10.1f}".format("Dask alone, smallest task", *(1000 * s for s in bare_task(100))))
    found = {}
    for size in (100_000, 1_000_000):
        for count in WORKERS:
            found[size, count] = overhead(count, size, 100)
            name = f"{size // 1000} kB of models, {count} worker{'s' * (count > 1)}"
            print("{:<28} {:>16.1f} {:>10.1f}".format(name, *(1000 * s for s in found[size, count])), flush=True)
    per_worker = max(0.0, found[100_000, 2][1] - found[100_000, 1][1])
    model = 4 * (784 * 200 + 200 + 200 * 10 + 10)
    serial = [max(0.0, times["1 worker"] - times["in this process"]) for times in (images, many)]
    for name, compute, fixed, size in (
        ("W1, 4800 clients x 50", 10 * images["in this process"], serial[0], 4 * model),
        (f"linear, {10 * clients:,} clients", 10 * many["in this process"], 10 * serial[1], 4 * 4 * 10),
    ):
        seconds = estimate(compute, fixed, size, per_worker)
        print(f"\nestimate for {name}: compute {compute:.1f} s, serial {fixed:.1f} s, {size / 1e6:.3g} MB down and up")
        print(f"{'workers':>8} {'seconds':>10} {'speed-up':>10} {'GB of traffic':>14}")
        for workers in (1, 2, 16, 64, 256):
            traffic = 2 * workers * size / 1e9
            print(f"{workers:>8} {seconds(workers):>10.2f} {seconds(1) / seconds(workers):>10.1f} {traffic:>14.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=1_000_000, help="number of clients with linear models")
    parser.add_argument("--repeats", type=int, default=3, help="number of timed rounds")
    chosen = parser.parse_args()
    main(chosen.clients, chosen.repeats)
