"""Three published workloads compared with a plain per-client torch loop in the same run.

    python benchmarks/workloads.py            # all three; some minutes
    python benchmarks/workloads.py --part 20  # W1 on a twentieth of the clients instead of a tenth
    python benchmarks/workloads.py --memory   # the peak memory of a round of W1, all 4800 clients of 50 samples
    python benchmarks/workloads.py --fit      # a fit of W2's size as a user calls it, and its time outside rounds
    python benchmarks/workloads.py --small    # a hundred rounds of 60 clients x 96 samples, d=5, as a user calls them

W1  a round of IFCA as on rotated MNIST: K=4, 784-200-10, 10 full-batch steps, every client, cluster choice included;
    n=200 (1200 clients) and n=50 (4800 clients)
W2  a round of IFCA on linear models: 100 clients x 100 samples, d=1000, K=2, one gradient step; one start, 30 at once
W3  a round of FedAvg with the same network: 10 clients of 600 images, batches of 50, one epoch

Data are random: this is about speed only. The loop computes only the gradients it needs. Both sides are timed in turns
with one and with two threads, and the best counts; so other processes on the machine disturb both alike. The loop's
share of the GEMM peak, by the operations of the direct form, shows how good it is; ours may need fewer operations
than that. The peak is measured between the two, so it is what the machine gave at the time.
"""

import argparse
import time
from collections.abc import Callable

import numpy as np
import torch
from linear_round import forget_peak, peak_memory, resident
from torch import Tensor, nn

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.core.state import ServerState
from coterie.data.arrays import stack_shard
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

THREADS = (1, 2)
SQUARE = torch.randn(2048, 2048)

Timed = tuple[float, int]
"""Seconds, and the best number of threads."""


def in_turns(*works: Callable[[], object], repeats: int) -> list[Timed]:
    """Return the lowest time of each piece of work over thread counts and repetitions."""
    best: list[Timed] = [(float("inf"), 0)] * len(works)
    for threads in THREADS:
        torch.set_num_threads(threads)
        for repeat in range(repeats + 1):
            for index, work in enumerate(works):
                started = time.perf_counter()
                work()
                if repeat:  # the first time is for warming up
                    best[index] = min(best[index], (time.perf_counter() - started, threads))
    return best


def product() -> object:
    """Return the large product whose speed is the GEMM peak."""
    return SQUARE @ SQUARE


def gflops(product_time: Timed) -> float:
    """Return the GFLOP/s of `product`."""
    return 2 * len(SQUARE) ** 3 / product_time[0] / 1e9


def random_images(clients: int, samples: int) -> FederatedDataset:
    random = np.random.default_rng(0)
    x = random.random((clients * samples, 784), dtype=np.float32)
    y = random.integers(0, 10, len(x))
    return FederatedDataset("images", stack_shard([str(i) for i in range(clients)], x, y, [samples] * clients))


def random_lines(clients: int, samples: int, dimension: int) -> FederatedDataset:
    random = np.random.default_rng(0)
    x = random.standard_normal((clients * samples, dimension), dtype=np.float32)
    y = x @ random.standard_normal(dimension, dtype=np.float32)
    return FederatedDataset("lines", stack_shard([str(i) for i in range(clients)], x, y, [samples] * clients))


def one_round(plan: Plan, state: ServerState) -> Callable[[], object]:
    """A round from the same state, repeated."""

    def work() -> object:
        with torch.no_grad():
            return plan.method.step(plan.run, state)

    return work


def loop_ifca_mlp(plan: Plan, state: ServerState, steps: int, lr: float) -> Callable[[], object]:
    """Return a loop over clients: losses of all models without gradients, then steps on the best one."""
    clients = _clients(plan)
    models = state.clusters.models()

    def loss(theta: list[Tensor], x: Tensor, y: Tensor) -> Tensor:
        hidden = torch.relu(nn.functional.linear(x, theta[0], theta[1]))
        return nn.functional.cross_entropy(nn.functional.linear(hidden, theta[2], theta[3]), y)

    def work() -> object:
        sums = [[torch.zeros_like(p) for p in model.values()] for model in models]
        for x, y in clients:
            with torch.no_grad():
                values = [float(loss(list(model.values()), x, y)) for model in models]
            best = values.index(min(values))
            theta = [p.clone().requires_grad_() for p in models[best].values()]
            for _ in range(steps):
                gradients = torch.autograd.grad(loss(theta, x, y), theta)
                with torch.no_grad():
                    for p, g in zip(theta, gradients, strict=True):
                        p.sub_(g, alpha=lr)
            with torch.no_grad():
                for total, p in zip(sums[best], theta, strict=True):
                    total.add_(p)
        return sums

    return work


def loop_ifca_linear(plan: Plan, state: ServerState) -> Callable[[], object]:
    """Return a loop over clients: residuals of all models, and the gradient of the best one."""
    clients = _clients(plan)
    weights = state.clusters.params["weight"]

    def work() -> object:
        sums = torch.zeros_like(weights)
        for x, y in clients:
            residual = x @ weights.T - y[:, None]
            best = int((residual**2).sum(dim=0).argmin())
            sums[best] += residual[:, best] @ x
        return sums

    return work


def loop_fedavg(plan: Plan, state: ServerState, asked: int, batch: int, lr: float) -> Callable[[], object]:
    """Return a loop over clients: one epoch of mini-batches."""
    clients = _clients(plan)[:asked]
    model = state.clusters.models()[0]

    def work() -> object:
        sums = [torch.zeros_like(p) for p in model.values()]
        for x, y in clients:
            theta = [p.clone().requires_grad_() for p in model.values()]
            order = torch.randperm(len(y))
            for first in range(0, len(y), batch):
                rows = order[first : first + batch]
                hidden = torch.relu(nn.functional.linear(x[rows], theta[0], theta[1]))
                loss = nn.functional.cross_entropy(nn.functional.linear(hidden, theta[2], theta[3]), y[rows])
                gradients = torch.autograd.grad(loss, theta)
                with torch.no_grad():
                    for p, g in zip(theta, gradients, strict=True):
                        p.sub_(g, alpha=lr)
            with torch.no_grad():
                for total, p in zip(sums, theta, strict=True):
                    total.add_(p)
        return sums

    return work


def _clients(plan: Plan) -> list[tuple[Tensor, Tensor]]:
    shard = plan.federation.group.train
    return [(shard.x[a:b], shard.y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True)]


def show(name: str, ours: Timed, loop: Timed, flop: float, peak: float, scale: float = 1) -> None:
    share = 100 * flop / loop[0] / 1e9 / peak
    print(
        f"{name:<34} {ours[0] * scale:>8.4f} ({ours[1]}) {loop[0] * scale:>9.4f} ({loop[1]}) "
        f"{loop[0] / ours[0]:>6.1f} {peak:>7.0f} {share:>9.0f} %",
        flush=True,
    )


def first_plan(clients: int, samples: int) -> Plan:
    options = {"clusters": 4, "local_steps": 10, "lr": 0.1, "rounds": 10**6, "dtype": "float32"}
    return prepare(
        random_images(clients, samples), "ifca", "mlp:hidden=200", options | {"init": "random", "restarts": 1}
    )


def first_workload(part: int) -> None:
    for clients, samples in ((1200, 200), (4800, 50)):
        plan = first_plan(clients // part, samples)
        state = initialize(plan).state
        layers = 2 * (784 * 200 + 200 * 10)
        # forward of four models, then ten steps of forward, gradient of the weights and (second layer) of the inputs
        flop = clients // part * samples * (4 * layers + 10 * (2 * layers + 2 * 200 * 10))
        loop = loop_ifca_mlp(plan, state, 10, 0.1)
        ours, plain, peak = in_turns(one_round(plan, state), loop, product, repeats=3)
        show(f"W1 {clients} x {samples} (1/{part} of them)", ours, plain, flop, gflops(peak), part)


def second_plan(starts: int) -> Plan:
    options = {"clusters": 2, "exchange": "gradient", "lr": 0.01, "rounds": 10**6, "dtype": "float32"}
    return prepare(random_lines(100, 100, 1000), "ifca", "linear", options | {"init": "random", "restarts": starts})


def second_workload() -> None:
    flop = 100 * 100 * 1000 * 2 * (2 + 1)  # scoring two models, one gradient
    single = second_plan(1)
    loop = loop_ifca_linear(single, initialize(single).state)
    x = single.data.train.x.numpy()
    for starts in (1, 30):
        plan = second_plan(starts)
        work = one_round(plan, initialize(plan).state)
        ours, plain, sum_, peak = in_turns(work, loop, lambda: np.sum(x), product, repeats=9)
        show(
            f"W2 {starts} start{'s' * (starts > 1)}, per start", (ours[0] / starts, ours[1]), plain, flop, gflops(peak)
        )
        print(f"   {ours[0] / sum_[0]:.1f} numpy.sum passes over the data", end=", ")
        print(f"{100 * starts * flop / ours[0] / 1e9 / gflops(peak):.0f} % of the GEMM peak")


def third_plan() -> Plan:
    options = {
        "local_epochs": 1,
        "batch_size": 50,
        "lr": 0.1,
        "participation": 0.1,
        "rounds": 10**6,
        "dtype": "float32",
    }
    return prepare(random_images(100, 600), "fedavg", "mlp:hidden=200", options | {"init": "random"})


def third_workload() -> None:
    plan = third_plan()
    state = initialize(plan).state
    flop = 10 * 600 * 2 * (2 * 784 * 200 + 3 * 200 * 10)
    loop = loop_fedavg(plan, state, 10, 50, 0.1)
    ours, plain, peak = in_turns(one_round(plan, state), loop, product, repeats=9)
    show("W3 FedAvg, 10 of 100 x 600", ours, plain, flop, gflops(peak))


def memory() -> None:
    """Measure the memory of a round of W1 in addition to its data, by the peak resident size."""
    plan = first_plan(4800, 50)
    state = initialize(plan).state
    data = plan.data.train.x.numpy().nbytes + plan.data.train.y.numpy().nbytes
    before = resident()
    forget_peak()
    one_round(plan, state)()
    more = peak_memory() - before
    print(
        f"W1 4800 x 50, {torch.get_num_threads()} threads: data {data / 1e6:.0f} MB, a round takes {more / 1e6:.0f} MB "
        f"more, {100 * more / data:.0f} %"
    )


def whole_fit(name: str, data: FederatedDataset, **options: object) -> None:
    """Measure two fits in one process, the first with all imports, and the share of evaluation and records."""
    for time_ in ("first", "second"):
        wall, processor = time.perf_counter(), time.process_time()
        result = coterie.fit(data, "ifca", clusters=2, restarts=1, **options)
        wall, processor = time.perf_counter() - wall, time.process_time() - processor
        rounds = sum(record.seconds for record in result.records)
        last = result.records[-1]
        evaluated = sum("rmse" in record for record in result.records)
        print(
            f"{name}, {time_} fit: {wall:.2f} s, processor {processor:.2f} s; {len(result.records)} rounds "
            f"({last.path}) {rounds:.2f} s, outside them {wall - rounds:.2f} s; {evaluated} evaluations",
            flush=True,
        )


def small_federation() -> FederatedDataset:
    random = np.random.default_rng(0)
    x = random.standard_normal((60 * 96, 5))
    y = x[:, 0] * np.repeat(np.arange(60) % 2 * 2 - 1, 96) + random.standard_normal(60 * 96)
    return coterie.from_arrays([(x[a : a + 96], y[a : a + 96]) for a in range(0, len(x), 96)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", type=int, default=10, help="W1 runs on one client in this many; times are scaled up")
    parser.add_argument("--memory", action="store_true", help="peak memory of a round of W1, in this process")
    parser.add_argument("--fit", action="store_true", help="a whole fit of the size of W2")
    parser.add_argument("--small", action="store_true", help="a hundred rounds of a small federation")
    chosen = parser.parse_args()
    if chosen.memory:
        memory()
    elif chosen.fit:
        whole_fit("W2, 300 rounds", coterie.scenario("ifca-synthetic"), rounds=300)
    elif chosen.small:
        whole_fit("60 x 96, 100 rounds", small_federation(), rounds=100)
    else:
        print(f"coterie {coterie.__version__}, float32; in brackets the threads that were best; peak in GFLOP/s")
        print(f"{'a round of':<34} {'ours, s':>12} {'loop, s':>13} {'ratio':>6} {'peak':>7} {'loop/peak':>11}")
        first_workload(chosen.part)
        second_workload()
        third_workload()
