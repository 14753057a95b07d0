"""Server optimizers in whole runs against plain loops, including splits, merges and resumed runs.

The plain loops follow algorithm 2 of "Adaptive federated optimization" cluster by cluster, in NumPy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import hash_ids
from coterie.core.registry import register
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.sampling import choose
from coterie.errors import ConfigError
from coterie.methods import IFCA, FedAvg, FullBatch, ServerAdam, ServerOptimizer, ServerSGD, ServerYogi, Tiered
from coterie.testing.checks import Case
from coterie.tiers import Assigned, ProcedureStep, UpdateCosine
from coterie.tiers.view import View

LR, STEPS, ROUNDS, SEED, SHARE = 0.1, 2, 7, 3, 0.6
RUN: dict[str, Any] = {"learner": "linear", "rounds": ROUNDS, "seed": SEED, "dtype": "float64", "participation": SHARE}
OPTIMIZERS = {
    "sgd": (ServerSGD(lr=0.7), {"server_lr": 0.7}),
    "momentum": (ServerSGD(lr=0.5, momentum=0.9), {"server_optimizer": "sgd:lr=0.5,momentum=0.9"}),
    "nesterov": (
        ServerSGD(lr=0.5, momentum=0.9, nesterov=True),
        {"server_optimizer": "sgd:momentum=0.9,nesterov=true", "server_lr": 0.5},
    ),
    "adam": (ServerAdam(lr=0.1, beta2=0.9), {"server_optimizer": "adam:lr=0.1,beta2=0.9"}),
    "yogi": (ServerYogi(lr=0.1, tau=0.01), {"server_optimizer": "yogi:lr=0.1,tau=0.01"}),
}


def population() -> FederatedDataset:
    """Linear clients of two groups with unequal sizes."""
    random = np.random.default_rng(0)
    clients = {}
    for i, size in enumerate((3, 8, 20, 5, 11, 30, 2, 9, 14)):
        x = random.standard_normal((size, 4))
        clients[f"c{i}"] = (x, x @ np.full(4, 1.0 if i % 2 else -1.0) + 0.1 * random.standard_normal(size))
    return coterie.from_arrays(clients)


def samples(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = data.train.x.numpy(), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


@dataclass
class PlainServer:
    """One cluster's optimizer, step by step as the paper states it."""

    name: str
    momentum: np.ndarray | float = 0.0
    first: np.ndarray | float = 0.0
    second: np.ndarray | float | None = None

    def moved(self, model: np.ndarray, delta: np.ndarray) -> np.ndarray:
        if self.name == "sgd":
            return model + 0.7 * delta
        if self.name in ("momentum", "nesterov"):
            self.momentum = 0.9 * self.momentum + delta
            return model + 0.5 * (self.momentum if self.name == "momentum" else delta + 0.9 * self.momentum)
        tau, beta2 = (1e-3, 0.9) if self.name == "adam" else (0.01, 0.99)
        second = np.full_like(delta, tau**2) if self.second is None else self.second
        self.first = 0.9 * self.first + 0.1 * delta
        if self.name == "adam":
            self.second = beta2 * second + (1 - beta2) * delta**2
        else:
            self.second = second - (1 - beta2) * delta**2 * np.sign(second - delta**2)
        return model + 0.1 * self.first / (np.sqrt(self.second) + tau)

    def copy(self) -> PlainServer:
        return PlainServer(self.name, self.momentum, self.first, self.second)

    @classmethod
    def merged(cls, servers: list[PlainServer], sizes: list[int]) -> PlainServer:
        """Return the moments after a merge: the parents' mean, weighted by their numbers of clients."""

        def mean(values: list[Any]) -> Any:
            return sum(size * value for size, value in zip(sizes, values, strict=True)) / sum(sizes)

        second = None if servers[0].second is None else mean([one.second for one in servers])
        return cls(
            servers[0].name, mean([one.momentum for one in servers]), mean([one.first for one in servers]), second
        )


def trained(model: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the update of a model by local steps on half the mean squared error."""
    theta = model
    for _ in range(STEPS):
        theta = theta - LR * x.T @ (x @ theta - y) / len(y)
    return theta - model


def plain_run(data: FederatedDataset, start: list[np.ndarray], name: str, by_samples: bool) -> list[np.ndarray]:
    """IFCA, or FedAvg with one model; a cluster that no client chose keeps its model and its moments."""
    models, servers = list(start), [PlainServer(name) for _ in start]
    clients = samples(data)
    for t in range(ROUNDS):
        changes: list[list[np.ndarray]] = [[] for _ in models]
        mass: list[list[float]] = [[] for _ in models]
        for i in choose(hash_ids(data.clients), SHARE, SEED, t):
            x, y = clients[i]
            best = int(np.argmin([np.mean((x @ model - y) ** 2) for model in models]))
            changes[best].append(trained(models[best], x, y))
            mass[best].append(len(y) if by_samples else 1)
        for k in range(len(models)):
            if changes[k]:
                models[k] = servers[k].moved(models[k], np.average(changes[k], axis=0, weights=mass[k]))
    return models


START = [np.array([0.5, 0.2, -0.1, 0.3]), np.array([-0.2, -0.4, 0.1, -0.6]), np.array([40.0, 40.0, 40.0, 40.0])]
"""Models of which no client ever chooses the last one."""


def assert_models(result: Any, expected: list[np.ndarray]) -> None:
    assert len(result.models) == len(expected)
    for found, model in zip(result.models, expected, strict=True):
        np.testing.assert_allclose(found["weight"], model, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("engine", ["simulated", "sequential"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_ifca_is_the_plain_loop(name: str, engine: str):
    data, (optimizer, options) = population(), OPTIMIZERS[name]
    init = [{"weight": model} for model in START]
    mine = IFCA(clusters=3, local=FullBatch(steps=STEPS, lr=LR), server=optimizer)
    typed = coterie.fit(data, mine, init=init, engine=engine, **RUN)
    assert_models(typed, plain_run(data, START, name, by_samples=False))
    named = coterie.fit(data, "ifca", clusters=3, local_steps=STEPS, lr=LR, init=init, engine=engine, **options, **RUN)
    assert_models(named, [model["weight"] for model in typed.models])
    assert named.config == typed.config


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_fedavg_is_the_plain_loop(name: str):
    data, (optimizer, _) = population(), OPTIMIZERS[name]
    mine = FedAvg(local=FullBatch(steps=STEPS, lr=LR), server=optimizer)
    found = coterie.fit(data, mine, init=[{"weight": START[0]}], **RUN)
    assert_models(found, plain_run(data, START[:1], name, by_samples=True))


@pytest.mark.parametrize("name", ["momentum", "adam", "yogi"])
def test_optimizers_differ_from_plain_averaging(name: str):
    """Otherwise the tests above would show nothing."""
    data = population()
    one, other = plain_run(data, START, name, False), plain_run(data, START, "sgd", False)
    assert max(np.abs(a - b).max() for a, b in zip(one, other, strict=True)) > 1e-3


# ---- splits and merges -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Planned(ProcedureStep):
    """Clients are split by the parity of their numbers after round 1, once more after 2, and merged after round 4."""

    splits: ClassVar[bool] = True

    def server_propose(self, view: View) -> Regroup | None:
        if view.round in (1, 2):
            members = view.ids(view.members(0))
            parts = [tuple(c for c in members if first_part(c, view.round) == first) for first in (True, False)]
            new = [NewCluster((0,), "members", part) for part in parts]
            return Regroup((*new, *(NewCluster((k,)) for k in range(1, view.K))), "split", "planned", hard=True)
        if view.round == 4:
            return Regroup((NewCluster((0, 2), "average"), NewCluster((1,))), "merge", "planned")
        return None


def first_part(client: str, round_: int) -> bool:
    return int(client[1:]) % (2 if round_ == 1 else 4) == 0


@pytest.fixture
def _planned() -> Iterator[None]:
    register("planned")(Planned)
    yield
    del ProcedureStep.members["planned"]


def plain_regrouped_run(data: FederatedDataset, start: np.ndarray, name: str) -> list[np.ndarray]:
    """All clients start in one cluster and take part in every round; samples count."""
    models, servers = [start], [PlainServer(name)]
    cluster, clients = np.zeros(len(data.clients), dtype=int), samples(data)
    for t in range(ROUNDS):
        before = list(models)
        changes = [trained(models[cluster[i]], x, y) for i, (x, y) in enumerate(clients)]
        sizes = [len(y) for _, y in clients]

        def mean(who: list[int], changes=changes, sizes=sizes) -> np.ndarray:
            return np.average([changes[i] for i in who], axis=0, weights=[sizes[i] for i in who])

        for k in range(len(models)):
            models[k] = servers[k].moved(models[k], mean([i for i in range(len(clients)) if cluster[i] == k]))
        if t in (1, 2):  # the parts are the means of their members' updated models; both have the moments of the whole
            inside = [i for i in range(len(clients)) if cluster[i] == 0]
            parts = [[i for i in inside if first_part(data.clients[i], t) == first] for first in (True, False)]
            models = [*(before[0] + mean(part) for part in parts), *models[1:]]
            servers = [servers[0], servers[0].copy(), *servers[1:]]
            cluster[cluster > 0] += 1
            cluster[parts[1]] = 1
        if t == 4:
            counts = [int((cluster == k).sum()) for k in (0, 2)]
            models = [(models[0] + models[2]) / 2, models[1]]
            servers = [PlainServer.merged([servers[0], servers[2]], counts), servers[1]]
            cluster = np.where(cluster == 2, 0, cluster)
    return models


def regrouped(name: str) -> Tiered:
    local, optimizer = FullBatch(steps=STEPS, lr=LR), OPTIMIZERS[name][0]
    tiers: dict[str, Any] = {"assignment": Assigned(), "procedure": (Planned(),), "distance": UpdateCosine()}
    return Tiered(local=local, server=optimizer, **tiers)


@pytest.mark.usefixtures("_planned")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_moments_follow_splits_and_a_merge(name: str):
    data = population()
    found = coterie.fit(data, regrouped(name), **RUN | {"participation": 1.0})
    assert [record["K"] for record in found.records] == [1, 2, 3, 3, 2, 2, 2]
    start = coterie.fit(data, "fedavg", **RUN | {"rounds": 1, "server_lr": 1e-300})
    expected = plain_regrouped_run(data, start.models[0]["weight"], name)
    for model, plain in zip(found.models, expected, strict=True):
        np.testing.assert_allclose(model["weight"], plain, rtol=1e-12, atol=1e-12)


@pytest.mark.usefixtures("_planned")
@pytest.mark.parametrize("stop_after", [1, 3, 4, 5])
@pytest.mark.parametrize("name", ["momentum", "adam", "yogi"])
def test_moments_are_resumed(name: str, stop_after: int, tmp_path):
    data, options = population(), RUN | {"participation": 1.0, "checkpoint_every": 1}

    def stop(record):
        if record["round"] == stop_after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, regrouped(name), out=tmp_path / "run", callbacks=[stop], **options)
    resumed, whole = coterie.resume(tmp_path / "run", data), coterie.fit(data, regrouped(name), **options)
    for a, b in zip(resumed.models, whole.models, strict=True):
        np.testing.assert_array_equal(a["weight"], b["weight"])
    assert resumed.assignments == whole.assignments


# ---- methods with a server optimizer ---------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["ifca", "fedem", "fedsoft", "cfl", "stocfl", "hcfl+"])
def test_every_registered_server_optimizer_changes_the_result(method: str):
    """Methods that exchange sums, rows, personal models, overall models and shared bodies."""
    found = {}
    for name in ("", *ServerOptimizer.members):
        text = {"": None, "sgd": "sgd:momentum=0.9"}.get(name, name)
        result = Case(method, "mlp", {} if text is None else {"server_optimizer": text}).run()
        found[name] = np.concatenate([a.ravel() for model in result.models for _, a in sorted(model.items())])
        assert np.isfinite(found[name]).all()
    assert all(len(a) != len(b) or np.abs(a - b).max() > 1e-6 for a, b in _pairs(list(found.values())))


def _pairs(values: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    return ((a, b) for at, a in enumerate(values) for b in values[:at])


@pytest.mark.parametrize("method", ["linear-heads", "linear-heads-found"])
def test_a_server_optimizer_that_would_have_no_effect_is_refused(method: str):
    """The server solves for the heads and takes a plain step on the body."""
    with pytest.raises(ConfigError, match="server_optimizer"):
        Case(method, "representation", {"server_optimizer": "adam"}).plan()


# ---- local optimizers ------------------------------------------------------------------------------------------------


def plain_local(model: np.ndarray, x: np.ndarray, y: np.ndarray, optimizer: str, lr: float) -> np.ndarray:
    """Local steps with momentum, or Adam with bias correction; the optimizer's state is reset in every round."""
    theta, first, second = model, np.zeros_like(model), np.zeros_like(model)
    for step in range(1, STEPS + 1):
        gradient = x.T @ (x @ theta - y) / len(y)
        if optimizer == "sgd:momentum=0.9":
            first = 0.9 * first + gradient
            theta = theta - lr * first
        else:
            first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
            unbiased = np.sqrt(second / (1 - 0.999**step)) + 1e-8
            theta = theta - lr * (first / (1 - 0.9**step)) / unbiased
    return theta - model


@pytest.mark.parametrize("engine", ["simulated", "sequential"])
@pytest.mark.parametrize("optimizer", ["sgd:momentum=0.9", "adam"])
@pytest.mark.parametrize("method", ["fedavg", "ifca", "local"])
def test_local_optimizers_and_schedules_in_whole_runs(method: str, optimizer: str, engine: str):
    data, factor = population(), 0.5
    clients, K = samples(data), {"fedavg": 1, "ifca": 2, "local": 9}[method]
    options: dict[str, Any] = {"local_steps": STEPS, "lr": LR, "optimizer": optimizer, "engine": engine}
    options |= RUN | {"participation": 1.0, "schedule": f"step-decay:every=3,factor={factor}"}
    if method == "local":
        start = coterie.fit(data, "fedavg", **RUN | {"rounds": 1, "server_lr": 1e-300}).models[0]["weight"]
        models = [start] * K
    else:
        models = START[:K]
        options["init"] = [{"weight": model} for model in models]
    found = coterie.fit(data, method, **options | ({"clusters": K} if method == "ifca" else {}))
    for t in range(ROUNDS):
        lr, best = LR * factor ** (t // 3), list(range(K))
        if method != "local":
            best = [int(np.argmin([np.mean((x @ m - y) ** 2) for m in models])) for x, y in clients]
        changes = [plain_local(models[k], x, y, optimizer, lr) for k, (x, y) in zip(best, clients, strict=True)]
        mass = [len(y) if method == "fedavg" else 1 for _, y in clients]
        for k in set(best):
            who = [i for i in range(len(clients)) if best[i] == k]
            mean = np.average([changes[i] for i in who], axis=0, weights=[mass[i] for i in who])
            models = [model + mean if j == k else model for j, model in enumerate(models)]
    for model, plain in zip(found.models, models, strict=True):
        np.testing.assert_allclose(model["weight"], plain, rtol=1e-9, atol=1e-12)
