"""FedGMM and FedSoft against plain loops, and FedEM with hard responsibilities against IFCA."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

import coterie
from coterie.core.dataset import FederatedDataset
from coterie.errors import ConfigError
from coterie.testing.checks import small_federation
from coterie.tiers.assignment import AssignmentRule, EMMixture
from coterie.training.fitting import execute, initialize
from coterie.training.measures import dying
from coterie.training.planning import prepare

ROUNDS, LR, STEPS, K = 4, 0.2, 3, 2
Model = dict[str, np.ndarray]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def clients_of(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = data.train.x.numpy().reshape(len(data.train.x), -1), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


def likelihood(model: Model, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return softmax(x @ model["weight"].T + model["bias"])[np.arange(len(y)), y]


def stepped(model: Model, x: np.ndarray, y: np.ndarray, focus: np.ndarray, pull: float, to: Model) -> Model:
    """Gradient steps on the mean of focus times cross-entropy, plus (pull/2) the squared distance to `to`."""
    moved = {name: value.copy() for name, value in model.items()}
    for _ in range(STEPS):
        error = softmax(x @ moved["weight"].T + moved["bias"])
        error[np.arange(len(y)), y] -= 1
        error *= focus[:, None] / len(y)
        gradient = {"weight": error.T @ x, "bias": error.sum(axis=0)}
        moved = {n: v - LR * (gradient[n] + pull * (v - to[n])) for n, v in moved.items()}
    return moved


def initialized_with(data: FederatedDataset, method: str, **options: object):
    plan = prepare(
        data,
        method,
        "logistic",
        {"clusters": K, "rounds": ROUNDS, "lr": LR, "local_steps": STEPS, "seed": 1, "init": "random"} | options,
    )
    initialized = initialize(plan)
    return initialized, [
        {name: v.numpy() for name, v in model.items()} for model in initialized.state.clusters.models()
    ]


def assert_models(found: list[Model], expected: list[Model]) -> None:
    for one, other in zip(found, expected, strict=True):
        for name, value in other.items():
            assert one[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def normal(z: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> float:
    return float(np.prod(np.exp(-((z - mean) ** 2) / (2 * variance)) / np.sqrt(2 * np.pi * variance)))


@pytest.mark.parametrize("gaussians", ["tied", None, 3])
def test_fedgmm_against_a_plain_loop(gaussians: int | str | None):
    data = small_federation("logistic")
    initialized, models = initialized_with(data, "fedgmm", gaussians=gaussians)
    objective = initialized.plan.tiers.objective
    result = execute(initialized, None)
    clients = clients_of(data)
    G = gaussians if isinstance(gaussians, int) else K
    pairs = [(k, k) for k in range(K)] if gaussians == "tied" else [(a, b) for a in range(G) for b in range(K)]
    pi = [np.full(len(pairs), 1 / len(pairs)) for _ in clients]
    density = None
    likelihoods = []
    for _ in range(ROUNDS):
        moments = np.zeros((G, 1 + 2 * 16))
        sums, mass, total = [{n: np.zeros_like(v) for n, v in m.items()} for m in models], np.zeros(K), 0.0
        for i, (x, y) in enumerate(clients):
            p = np.stack([likelihood(m, x, y) for m in models], axis=1)
            L = np.zeros((len(y), len(pairs)))
            for j in range(len(y)):
                for c, (a, b) in enumerate(pairs):
                    if density is not None:
                        seen = normal(x[j], *density[a])
                    elif gaussians == "tied":
                        seen = 1.0
                    else:  # the first time by random directions
                        seen = float(first_direction(objective, x)[j] == a)
                    L[j, c] = pi[i][c] * seen * p[j, b]
            total += np.log(L.sum(axis=1)).sum()
            gamma = L / L.sum(axis=1, keepdims=True)
            pi[i] = gamma.mean(axis=0)
            for c, (a, _) in enumerate(pairs):
                moments[a] += np.concatenate([[gamma[:, c].sum()], gamma[:, c] @ x, gamma[:, c] @ x**2])
            for k in range(K):
                own = sum(gamma[:, c] for c, (_, b) in enumerate(pairs) if b == k)
                local = stepped(models[k], x, y, own, 0.0, models[k])
                mass[k] += own.sum()
                for name in sums[k]:
                    sums[k][name] += own.sum() * local[name]
        models = [{name: v / mass[k] for name, v in sums[k].items()} for k in range(K)]
        whole = moments.sum(axis=0)
        mean = whole[1:17] / whole[0]
        pooled = whole[17:] / whole[0] - mean**2
        density = []
        for m in moments:
            centre = m[1:17] / m[0]
            floor = 1e-3 * np.maximum(pooled, 1e-3 * pooled.mean())
            density.append((centre, np.maximum(m[17:] / m[0] - centre**2, floor)))
        likelihoods.append(total / sum(len(y) for _, y in clients))
    assert_models(result.models, models)
    assert [record["likelihood"] for record in result.records] == pytest.approx(likelihoods, rel=1e-9)
    by_model = np.array([[sum(w[c] for c, (_, b) in enumerate(pairs) if b == k) for k in range(K)] for w in pi])
    assert result.weights == pytest.approx(by_model, rel=1e-9, abs=1e-12)
    # a client's held-out samples are predicted by the density of their features
    test, row = data.test, result.clients[3]
    x = test.x[test.starts[3] : test.stops[3]].numpy().reshape(-1, 16)
    y = test.y[test.starts[3] : test.stops[3]].numpy()
    mixed = np.zeros((len(y), 3))
    for j in range(len(y)):
        share = np.array([pi[3][c] * normal(x[j], *density[a]) for c, (a, _) in enumerate(pairs)])
        for c, (_, b) in enumerate(pairs):
            mixed[j] += share[c] / share.sum() * softmax(x[j] @ models[b]["weight"].T + models[b]["bias"])
    assert result.predict(x.reshape(-1, 4, 4), client=data.clients[3]).tolist() == mixed.argmax(axis=1).tolist()
    assert row["score"] == pytest.approx((mixed.argmax(axis=1) == y).mean())
    assert row["loss"] == pytest.approx(-np.log(mixed[np.arange(len(y)), y]).mean(), rel=1e-9)


def first_direction(objective, x: np.ndarray) -> np.ndarray:
    from coterie.core.keys import Purpose, generator, key_for

    ways = generator(key_for(objective.seed, Purpose.EMBEDDING, 1)).standard_normal((1, objective.gaussians, 16))[0]
    return np.asarray(((x - x.mean(axis=0)) @ ways.T).argmax(axis=1))


@pytest.mark.parametrize("every", [1, 2])
def test_fedsoft_against_a_plain_loop(every: int):
    lam, sigma = 0.3, 1e-2
    data = small_federation("logistic")
    initialized, centres = initialized_with(data, "fedsoft", lam=lam, least_share=sigma, count_every=every)
    result = execute(initialized, None)
    clients = clients_of(data)
    own: list[Model | None] = [None] * len(clients)
    u = np.zeros((len(clients), K))
    for t in range(ROUNDS):
        sums, mass = [{n: np.zeros_like(v) for n, v in c.items()} for c in centres], np.zeros(K)
        for i, (x, y) in enumerate(clients):
            if t % every == 0:
                wins = np.stack([likelihood(c, x, y) for c in centres]).argmax(axis=0)
                share = np.array([(wins == k).mean() for k in range(K)])
                share = np.where(share > 0, share, sigma)
                u[i] = share / share.sum()
            mixture = {n: sum(u[i, k] * centres[k][n] for k in range(K)) for n in centres[0]}
            own[i] = stepped(own[i] or mixture, x, y, np.ones(len(y)), lam, mixture)
            for k in range(K):
                mass[k] += u[i, k] * len(y)
                for n in sums[k]:
                    sums[k][n] += u[i, k] * len(y) * own[i][n]
        centres = [{n: v / mass[k] for n, v in sums[k].items()} for k in range(K)]
    assert_models(result.models, centres)
    assert result.weights == pytest.approx(u, rel=1e-9)
    # clients are scored, and predict, by their own models
    x = data.test.x[data.test.starts[3] : data.test.stops[3]].numpy().reshape(-1, 16)
    y = data.test.y[data.test.starts[3] : data.test.stops[3]].numpy()
    said = softmax(x @ own[3]["weight"].T + own[3]["bias"])
    assert result.predict(x.reshape(-1, 4, 4), client=data.clients[3]).tolist() == said.argmax(axis=1).tolist()
    assert result.clients[3]["loss"] == pytest.approx(-np.log(said[np.arange(len(y)), y]).mean(), rel=1e-9)


@dataclass(frozen=True)
class AllOrNothing(EMMixture):
    """Responsibilities of 0 and 1: all of a client's samples to the cluster that explains them best together."""

    name: ClassVar[str] = "all-or-nothing"

    def client_respond(self, cost: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        won = cost.mean(dim=1).argmin(dim=2)
        gamma = torch.nn.functional.one_hot(won, cost.shape[3]).to(cost)[:, None].expand(cost.shape)
        return gamma, -(gamma * cost).sum(dim=3)


def test_fedem_with_responsibilities_of_zero_and_one_is_ifca_step_by_step(monkeypatch):
    monkeypatch.setitem(AssignmentRule.members, "all-or-nothing", AllOrNothing)
    data = small_federation(
        "logistic", sizes=(6, 6, 6, 6, 6, 6, 6, 6, 6)
    )  # a mean over padding would not be the client's
    options = {"clusters": 3, "rounds": 1, "lr": LR, "local_steps": STEPS, "seed": 2, "client_weight": "samples"}
    models: object = "random"
    for _ in range(4):
        hard = coterie.fit(data, "ifca", learner="logistic", averaging="members", init=models, **options)
        plan = prepare(data, "fedem", "logistic", options | {"averaging": "responsibility", "init": models})
        plan = replace(plan, run=replace(plan.run, tiers=replace(plan.tiers, assignment=AllOrNothing())))
        soft = execute(initialize(plan), None)
        assert_models(soft.models, hard.models)
        assert soft.records[0]["assignments"] == hard.records[0]["assignments"]
        models = hard.models


def test_joint_density_tells_groups_by_features_alone_and_needs_no_labels():
    """Two groups with the same labels given x; only the distribution of x differs."""
    random = np.random.default_rng(3)
    clients, truth = {}, {}
    for i in range(10):
        x = random.standard_normal((40, 4)) + 3 * (i % 2)
        clients[f"c{i}"] = (x, (x[:, 0] > x[:, 1]).astype(int))
        truth[f"c{i}"] = i % 2
    data = coterie.from_arrays(clients, truth=truth)
    result = coterie.fit(data, "fedgmm", learner="logistic", clusters=2, gaussians="tied", rounds=20, lr=0.1, seed=0)
    assert result.metrics["ari"] == 1
    near, far = random.standard_normal((2, 30, 4)) + np.array([0.0, 3.0])[:, None, None]
    here = result.weigh(near)
    assert here.max() > 0.99
    assert result.weigh(far).argmax() != here.argmax()
    labels = (near[:, 0] > near[:, 1]).astype(int)
    assert result.weigh(near, labels).argmax() == here.argmax()
    assert (result.predict(near) == result.predict(near, cluster=int(here.argmax()))).all()
    both = result.predict(np.concatenate([near, far]))  # each sample by the cluster with the nearest inputs
    parts = [result.predict(near, cluster=int(here.argmax())), result.predict(far, cluster=1 - int(here.argmax()))]
    assert (both == np.concatenate(parts)).mean() > 0.95


@pytest.mark.parametrize("method", ["fedgmm", "fedsoft"])
def test_extra_arrays_are_stored_in_the_run_folder(method, tmp_path):
    data = small_federation("logistic")
    result = coterie.fit(data, method, learner="logistic", clusters=2, rounds=3, lr=0.2, out=tmp_path / "run")
    again = coterie.load(tmp_path / "run")
    x = data.test.x.numpy()
    for client in data.clients:
        assert result.predict(x, client=client).tolist() == again.predict(x, client=client).tolist()


def test_an_embedding_without_a_head_is_refused():
    data = small_federation("logistic")
    with pytest.raises(ConfigError, match=r"embedding=start needs a network .* but the learner is logistic"):
        coterie.fit(data, "fedgmm", learner="logistic", embedding="start")


def test_a_cluster_below_a_tenth_of_its_equal_share_is_dying():
    # K = 4: equal shares of 1/4, a tenth of that is 0.025
    assert dying(torch.tensor([0.5, 0.451, 0.025, 0.024])) == [3]
    assert dying(torch.tensor([0.5, 0.5])) == []


def test_the_records_contain_the_share_of_each_cluster():
    data = small_federation("logistic")
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=40, lr=0.5, local_steps=10, seed=1)
    for record in result.records:
        assert sum(record["shares"]) == pytest.approx(1, abs=1e-5)
        few = [k for k, share in enumerate(record["shares"]) if share < 0.1 / 2]
        assert record.get("dying", []) == few
