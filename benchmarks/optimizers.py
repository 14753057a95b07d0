"""A round of FedAvg with local SGD, SGD with momentum and Adam, against each other and against torch.optim.

    python benchmarks/optimizers.py           # some minutes
    python benchmarks/optimizers.py --quick   # a fifth of the clients

Plain SGD takes a learner's fastest path; any other optimizer steps every client's own model. Both ratios are of times
that were measured in turns in this process, with one thread: `over sgd` compares with the round of plain SGD, `loop`
is how many times longer a plain loop over the clients with torch.optim takes. Data are random: this is about speed
only.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import nn

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import stack_shard
from coterie.learners.cnn import SmallCNN
from coterie.learners.optimizers import SGD, Adam, Optimizer
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

LR, REPEATS = 0.01, 5
OPTIMIZERS: dict[str, tuple[Optimizer, Callable[..., torch.optim.Optimizer]]] = {
    "sgd": (SGD(), lambda parameters: torch.optim.SGD(parameters, lr=LR)),
    "sgd, momentum": (SGD(momentum=0.9), lambda parameters: torch.optim.SGD(parameters, lr=LR, momentum=0.9)),
    "adam": (Adam(), lambda parameters: torch.optim.Adam(parameters, lr=LR)),
}


@dataclass(frozen=True)
class Workload:
    """A learner, the module that the loop trains instead of it, and what each client does."""

    learner: str
    net: Callable[[], nn.Module]
    features: tuple[int, ...]
    classes: int | None
    clients: int
    samples: int
    steps: int | None = None
    """Full-batch steps; None: one epoch of mini-batches of 20."""

    @property
    def name(self) -> str:
        length = f"{self.steps} full steps" if self.steps else "1 epoch"
        return f"{self.learner.partition(':')[0]}, {self.clients} x {self.samples}, {length}"


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


def line() -> nn.Module:
    return nn.Sequential(nn.Linear(50, 1, bias=False), nn.Flatten(0))


WORKLOADS = (
    Workload("linear", line, (50,), None, 500, 40, 10),
    Workload("linear", line, (50,), None, 500, 40),
    Workload("mlp:hidden=64", perceptron, (784,), 10, 200, 40, 10),
    Workload("mlp:hidden=64", perceptron, (784,), 10, 200, 40),
    Workload("cnn:channels=8,hidden=64", lambda: SmallCNN(1, 28, 28, 8, 64, 10), (28, 28), 10, 20, 40, 5),
    Workload("cnn:channels=8,hidden=64", lambda: SmallCNN(1, 28, 28, 8, 64, 10), (28, 28), 10, 20, 40),
)


def plan_of(work: Workload) -> Plan:
    random = np.random.default_rng(0)
    x = random.standard_normal((work.clients * work.samples, *work.features), dtype=np.float32)
    y = random.standard_normal(len(x)).astype(np.float32) if work.classes is None else random.integers(0, 10, len(x))
    shard = stack_shard([str(i) for i in range(work.clients)], x, y, [work.samples] * work.clients)
    length = {"local_steps": work.steps} if work.steps else {"local_epochs": 1, "batch_size": 20}
    options = {"lr": LR, "rounds": 10**6, "dtype": "float32"} | length
    return prepare(FederatedDataset("random", shard), "fedavg", work.learner, options | {"init": "random"})


def ours(plan: Plan, optimizer: Optimizer) -> Callable[[], object]:
    """Return a round from the same state, to be repeated."""
    tiers = replace(plan.tiers, local=replace(plan.tiers.local, optimizer=optimizer))
    run = replace(plan.run, tiers=tiers)
    state = initialize(plan).state

    def round_() -> object:
        with torch.no_grad():
            return plan.method.step(run, state)

    return round_


def loop(plan: Plan, work: Workload, build: Callable[..., torch.optim.Optimizer]) -> Callable[[], object]:
    """Return a loop over the clients, each with a new optimizer on a copy of the model."""
    shard, net = plan.federation.group.train, work.net()
    first = {name: p.clone() for name, p in net.state_dict().items()}
    loss_of = nn.MSELoss() if work.classes is None else nn.CrossEntropyLoss()

    def round_() -> object:
        sums = {name: torch.zeros_like(p) for name, p in first.items()}
        for start, stop in zip(shard.starts, shard.stops, strict=True):
            x, y = shard.x[start:stop], shard.y[start:stop]
            net.load_state_dict(first)
            optimizer = build(net.parameters())
            for rows in [slice(None)] * work.steps if work.steps else torch.randperm(len(y)).split(20):
                optimizer.zero_grad()
                loss_of(net(x[rows]), y[rows]).backward()
                optimizer.step()
            for name, p in net.state_dict().items():
                sums[name] += p
        return sums

    return round_


def least_seconds(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest time of each piece of work, all measured in turns."""
    best = dict.fromkeys(works, float("inf"))
    for repeat in range(REPEATS + 1):
        for name, work in works.items():
            started = time.perf_counter()
            work()
            if repeat:  # the first time is for warming up
                best[name] = min(best[name], time.perf_counter() - started)
    return best


def show(work: Workload) -> None:
    plan = plan_of(work)
    works = {name: ours(plan, optimizer) for name, (optimizer, _) in OPTIMIZERS.items()}
    loops = {f"{name}, loop": loop(plan, work, build) for name, (_, build) in OPTIMIZERS.items()}
    seconds = least_seconds(works | loops)
    for name in OPTIMIZERS:
        over, times = seconds[name] / seconds["sgd"], seconds[f"{name}, loop"] / seconds[name]
        print(f"{work.name:<34} {name:<14} {1e3 * seconds[name]:>9.1f} {over:>9.2f} {times:>9.1f}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a fifth of the clients")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"coterie {coterie.__version__}, float32, one thread")
    print(f"{'a round of fedavg':<34} {'optimizer':<14} {'ms':>9} {'over sgd':>9} {'loop':>9}")
    for workload in WORKLOADS:
        show(replace(workload, clients=workload.clients // 5) if quick else workload)
