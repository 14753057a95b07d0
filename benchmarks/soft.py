"""A round of FedEM and FedRC: against FedAvg, against the loop one would write by hand, and with more clusters.

    python benchmarks/soft.py            # K=3 against FedAvg and against the loop
    python benchmarks/soft.py --growth   # K from 1 to 50

Random data, 2 local epochs, batches of 20, one thread. What is compared runs in turns in one process, round by round;
the medians of the processor time count. FedAvg does not score with mini-batches: what the others are compared with
includes a pass that scores its model on all training samples, as they score each of theirs. The loop trains one client
and one model at a time by autograd, with the same batches; the difference is the largest between its models and ours
after five rounds, over the largest entry. With --growth every K runs in a separate process; memory is the peak beyond
what was held before the first round.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import numpy as np
import torch
from linear_round import forget_peak, peak_memory
from torch import Tensor, nn

import coterie
from coterie.core.keys import Purpose, keys_for_clients, permutations
from coterie.core.state import ServerState
from coterie.evaluate.clients import training_losses
from coterie.learners.cnn import SmallCNN
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

ROUNDS, FEW_ROUNDS, WARM = 15, 5, 2
CLUSTERS = 3
GROWTH = (1, 2, 3, 5, 10, 20, 50)
CLASSES, EPOCHS, BATCH, LR = 10, 2, 20, 0.1
RAREST = 1e-8
Model = dict[str, Tensor]


class Net(nn.Module):
    """64-64-32-10 with ReLU, under the names of the learner `mlp`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer0, self.layer1, self.layer2 = nn.Linear(64, 64), nn.Linear(64, 32), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer2(torch.relu(self.layer1(torch.relu(self.layer0(x)))))


class Softmax(nn.Module):
    """Softmax regression, under the names of the learner `logistic`."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(CLASSES, 64)), nn.Parameter(torch.zeros(CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Workload:
    name: str
    learner: str
    clients: int
    samples: int
    features: tuple[int, ...]
    build: Callable[[], nn.Module]


WORKLOADS = (
    Workload("mlp 64-64-32-10, 48 x 120", "mlp:hidden=64-32", 48, 120, (64,), Net),
    Workload("mlp 64-64-32-10, 480 x 12", "mlp:hidden=64-32", 480, 12, (64,), Net),
    Workload("logistic 64-10, 48 x 120", "logistic", 48, 120, (64,), Softmax),
    Workload("cnn 14x14, 24 x 120", "cnn", 24, 120, (14, 14), lambda: SmallCNN(1, 14, 14, 8, 64, CLASSES)),
)

GROWING = Workload("mlp 64-64-32-10, 60 x 120", "mlp:hidden=64-32", 60, 120, (64,), Net)
"""The first workload, with a client for each of 50 clusters."""


def plan_of(work: Workload, method: str, **options: object) -> Plan:
    """Return random features, and labels by a random linear rule for each third of the clients."""
    random = np.random.default_rng(0)
    x = random.standard_normal((work.clients, work.samples, *work.features)).astype(np.float32)
    rules = random.standard_normal((CLUSTERS, int(np.prod(work.features)), CLASSES))
    labels = [(rows.reshape(work.samples, -1) @ rules[i % CLUSTERS]).argmax(axis=1) for i, rows in enumerate(x)]
    data = coterie.from_arrays(list(zip(x, labels, strict=True)))
    common = {"learner": work.learner, "dtype": "float32", "local_epochs": EPOCHS, "batch_size": BATCH, "lr": LR}
    return prepare(data, method, None, {**common, "rounds": 1000, "init": "random", **options})


class Ours:
    """The rounds of a plan."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.state: ServerState = initialize(plan).state

    def __call__(self) -> None:
        plan = self.plan
        with torch.no_grad():
            self.state = plan.method.step(plan.run, self.state).state


class FedAvgScored(Ours):
    """A round of FedAvg, and its model scored on the training samples of all clients."""

    def __call__(self) -> None:
        super().__call__()
        with torch.no_grad():
            training_losses(self.plan.federation, self.state.clusters, None, self.state.round)


class Loop:
    """FedEM or FedRC client by client, model by model; starts from the models of `ours`."""

    def __init__(self, work: Workload, ours: Ours, ratio: bool) -> None:
        shard = ours.plan.federation.group.train
        self.net, self.ratio, self.round = work.build(), ratio, 0
        self.hashes = shard.hashes
        self.clients = [(shard.x[a:b], shard.y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True)]
        self.models: list[Model] = [{n: p.clone() for n, p in m.items()} for m in ours.state.clusters.models()]
        K = len(self.models)
        self.weights = [torch.full((K,), 1 / K) for _ in self.clients]
        self.shares = torch.full((K, CLASSES), 1 / CLASSES)

    def __call__(self) -> None:
        keys = keys_for_clients(0, Purpose.BATCHES, self.round, self.hashes)
        n = len(self.clients[0][1])
        orders = [permutations(keys, np.full(len(keys), n), n, epoch) for epoch in range(EPOCHS)]
        sums = [{name: torch.zeros_like(p) for name, p in model.items()} for model in self.models]
        counts = torch.zeros_like(self.shares)
        for i, (x, y) in enumerate(self.clients):
            gamma = self._responsibilities(x, y, self.weights[i])
            self.weights[i] = gamma.mean(dim=0)
            counts += gamma.T @ nn.functional.one_hot(y, CLASSES).to(gamma)
            order = torch.from_numpy(np.stack([each[i] for each in orders]))
            for k, model in enumerate(self.models):
                for name, p in self._trained(model, x, y, gamma[:, k], order).items():
                    sums[k][name] += p
        self.models = [{name: p / len(self.clients) for name, p in total.items()} for total in sums]
        if self.ratio:
            floored = counts.clamp_min(RAREST)
            self.shares = floored / floored.sum(dim=1, keepdim=True)
        self.round += 1

    def _responsibilities(self, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        """Return the responsibilities, (n, K)."""
        with torch.no_grad():
            said = [torch.func.functional_call(self.net, model, (x,)) for model in self.models]
            fit = torch.stack([-nn.functional.cross_entropy(out, y, reduction="none") for out in said], dim=1)
            return torch.softmax(weights.log() + fit - self.shares.log().T[y], dim=1)

    def _trained(self, model: Model, x: Tensor, y: Tensor, gamma: Tensor, order: Tensor) -> Model:
        theta = {name: p.clone().requires_grad_() for name, p in model.items()}
        for rows in (rows for epoch in order for rows in epoch.split(BATCH)):
            out = torch.func.functional_call(self.net, theta, (x[rows],))
            loss = (gamma[rows] * nn.functional.cross_entropy(out, y[rows], reduction="none")).mean()
            gradients = torch.autograd.grad(loss, list(theta.values()))
            with torch.no_grad():
                for p, gradient in zip(theta.values(), gradients, strict=True):
                    p -= LR * gradient
        return {name: p.detach() for name, p in theta.items()}


def difference(ours: Ours, loop: Loop) -> float:
    """Return the largest difference of the models, relative to the largest entry."""
    pairs = zip(ours.state.clusters.models(), loop.models, strict=True)
    return max(float((a[name] - b[name]).abs().max() / b[name].abs().max()) for a, b in pairs for name in b)


def in_turns(works: list[Callable[[], None]], count: int, warm: int = 0) -> list[float]:
    """Return the median processor time of `count` rounds of each, alternating, after `warm` uncounted rounds."""
    times: list[list[float]] = [[] for _ in works]
    for _ in range(warm + count):
        for work, found in zip(works, times, strict=True):
            started = time.process_time()
            work()
            found.append(time.process_time() - started)
    return [statistics.median(found[warm:]) for found in times]


def compare(work: Workload) -> None:
    plans = {method: plan_of(work, method, clusters=CLUSTERS, averaging="all") for method in ("fedem", "fedrc")}
    single = plan_of(work, "fedavg")
    each = [Ours(single), FedAvgScored(single), *(Ours(plan) for plan in plans.values())]
    bare, unit, *soft = in_turns(each, ROUNDS, WARM)
    print(f"{work.name:<26} {'fedavg':<6} {1e3 * bare:>9.1f} {bare / unit:>9.2f}")
    print(f"{'':<26} {'scored':<6} {1e3 * unit:>9.1f} {1:>9.2f}")
    for (method, plan), seconds in zip(plans.items(), soft, strict=True):
        print(
            f"{'':<26} {method:<6} {1e3 * seconds:>9.1f} {seconds / unit:>9.2f} {against_loop(work, plan)}", flush=True
        )


def against_loop(work: Workload, plan: Plan) -> str:
    """Return milliseconds of the loop, their ratio to ours, and the largest difference of the models."""
    ours = Ours(plan)
    loop = Loop(work, ours, plan.method.name == "fedrc")
    mine, plain = in_turns([ours, loop], FEW_ROUNDS)
    return f"{1e3 * plain:>9.0f} {plain / mine:>6.1f} {difference(ours, loop):>11.1e}"


def grow(method: str, K: int) -> None:
    """Print milliseconds a round and megabytes of one case."""
    ours = Ours(plan_of(GROWING, method, clusters=K))
    forget_peak()
    held = peak_memory()
    seconds = in_turns([ours], FEW_ROUNDS, WARM)[0]
    print(f"{method:<7} {K:>4} {1e3 * seconds:>10.1f} {1e3 * seconds / K:>10.1f} {(peak_memory() - held) / 1e6:>8.0f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--growth", action="store_true", help="more clusters instead")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    if chosen.one:
        return grow(chosen.one[0], int(chosen.one[1]))
    if chosen.growth:
        print(f"{GROWING.name}\n{'method':<7} {'K':>4} {'ms/round':>10} {'ms/model':>10} {'MB':>8}", flush=True)
        for method in ("fedem", "fedrc"):
            for K in GROWTH:
                subprocess.run([sys.executable, __file__, "--one", method, str(K)], check=True)
        return None
    print(f"{'K=3':<26} {'round':<6} {'ms':>9} {'x scored':>9} {'loop, ms':>9} {'ratio':>6} {'difference':>11}")
    for work in WORKLOADS:
        compare(work)
    return None


if __name__ == "__main__":
    main()
