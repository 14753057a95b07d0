"""A round of IFCA against the loop one would write by hand: client by client, one thread, same results.

    python benchmarks/plain_loops.py

Both do the same work on the same data in the same process, in turns; the table gives the ratio of the medians, and the
largest relative difference between the models they end with.
"""

import os
import statistics
import time
from collections.abc import Callable

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"))

import torch
from torch import Tensor, nn

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.core.state import ServerState
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare

ROUNDS = 5
Models = list[dict[str, Tensor]]


def clients_of(plan: Plan) -> list[tuple[Tensor, Tensor]]:
    """Return each client's samples in the data type of the computation."""
    shard = plan.federation.group.train
    return [(shard.x[a:b].flatten(1), shard.y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True)]


def plain_round(
    models: Models,
    clients: list[tuple[Tensor, Tensor]],
    build: Callable[[], nn.Module],
    loss: Callable[..., Tensor],
    lr: float,
    steps: int,
) -> Models:
    """Choose the best model, take gradient steps, average over the clients with the same choice."""
    net = build()
    sums: list[list[dict[str, Tensor]]] = [[] for _ in models]
    for x, y in clients:
        with torch.no_grad():
            values = [float(loss(torch.func.functional_call(net, model, (x,)), y)) for model in models]
        best = values.index(min(values))
        theta = {name: p.clone().requires_grad_() for name, p in models[best].items()}
        for _ in range(steps):
            gradients = torch.autograd.grad(loss(torch.func.functional_call(net, theta, (x,)), y), list(theta.values()))
            theta = {
                n: (p - lr * g).detach().requires_grad_() for (n, p), g in zip(theta.items(), gradients, strict=True)
            }
        sums[best].append({name: p.detach() for name, p in theta.items()})
    return [
        {name: torch.stack([t[name] for t in chosen]).mean(dim=0) for name in model} if chosen else model
        for model, chosen in zip(models, sums, strict=True)
    ]


class Line(nn.Module):
    """<x, weight>, under the names of the learner `linear`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


class Net(nn.Module):
    """64-64-10 with ReLU, under the names of the learner `mlp`."""

    def __init__(self) -> None:
        super().__init__()
        self.layer0, self.layer1 = nn.Linear(64, 64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer1(torch.relu(self.layer0(x)))


def half_squared(output: Tensor, y: Tensor) -> Tensor:
    return ((output - y) ** 2).mean() / 2


def compare(
    name: str, data: FederatedDataset, build: Callable[[], nn.Module], loss: Callable[..., Tensor], steps: int
) -> None:
    options = {"clusters": 4, "restarts": 1, "local_steps": steps, "lr": 0.1, "dtype": "float32", "rounds": ROUNDS}
    plan = prepare(data, "ifca", None, options | {"init": "random"})
    clients = clients_of(plan)
    state = initialize(plan).state
    models = state.clusters.models()
    fast, plain = [], []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        with torch.no_grad():
            state = plan.method.step(plan.run, state).state
        fast.append(time.perf_counter() - started)
        started = time.perf_counter()
        models = plain_round(models, clients, build, loss, 0.1, steps)
        plain.append(time.perf_counter() - started)
    a, b = statistics.median(fast), statistics.median(plain)
    print(f"{name:<34} {a * 1e3:>9.1f} {b * 1e3:>9.1f} {b / a:>7.1f} {difference(state, models):>11.1e}")


def difference(state: ServerState, models: Models) -> float:
    found = state.clusters.models()
    pairs = [(f[name], m[name]) for f, m in zip(found, models, strict=True) for name in m]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in pairs)


if __name__ == "__main__":
    torch.set_num_threads(1)
    print(f"coterie {coterie.__version__}, one thread, float32, K=4; medians of {ROUNDS} rounds")
    print(f"{'round of IFCA':<34} {'ours, ms':>9} {'loop, ms':>9} {'ratio':>7} {'difference':>11}")
    linear = coterie.scenario("mixed-regression", clients=2000, samples="20", dimension=50, groups=4)
    compare("linear, 2000 x 20, 1 step", linear, lambda: Line(50), half_squared, 1)
    compare("linear, 2000 x 20, 10 steps", linear, lambda: Line(50), half_squared, 10)
    ragged = coterie.scenario("mixed-regression", clients=2000, samples="1-60", dimension=50, groups=4)
    compare("linear, 2000 x 1-60, 10 steps", ragged, lambda: Line(50), half_squared, 10)
    digits = coterie.scenario("rotated-digits", clients=60)
    compare("mlp 64-64-10, 60 x 96, 10 steps", digits, Net, nn.functional.cross_entropy, 10)
    many = coterie.scenario("rotated-digits", clients=480)
    compare("mlp 64-64-10, 480 x 12, 10 steps", many, Net, nn.functional.cross_entropy, 10)
