"""CFL and HCFL+ against plain loops, client by client."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform
from torch import nn

import coterie
from coterie.client.shared_body import compared_features
from coterie.core.dataset import FederatedDataset, Profile
from coterie.core.keys import hash_ids
from coterie.learners import make_learner
from coterie.methods import HCFLPlus, find_method
from coterie.testing.checks import small_federation
from coterie.training.fitting import execute, initialize
from coterie.training.planning import prepare

LR, STEPS = 0.3, 3
Model = dict[str, np.ndarray]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def clients_of(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = data.train.x.numpy().reshape(len(data.train.x), -1), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


def run(data: FederatedDataset, method: str, learner: str, **options: object):
    settings = {"rounds": 6, "lr": LR, "local_steps": STEPS, "seed": 1, "dtype": "float64"} | options
    initialized = initialize(prepare(data, method, learner, settings))
    first = [{name: v.numpy().copy() for name, v in model.items()} for model in initialized.state.clusters.models()]
    return first, execute(initialized, None)


def two_parts(apart: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    labels = cut_tree(linkage(squareform(apart, checks=False), "complete"), 2)[:, 0]
    return np.flatnonzero(labels == labels[0]), np.flatnonzero(labels != labels[0])


def test_cfl_against_a_plain_loop():
    """Two consecutive splits: the second must find its clients by id, not by their position in the cluster."""
    data = small_federation("logistic")
    eps1, eps2, warmup = 5.0, 0.01, 2
    first, result = run(data, "cfl", "logistic", eps1=eps1, eps2=eps2, warmup=warmup, least=3)
    clients = clients_of(data)
    order = np.argsort(hash_ids(data.clients))
    cluster, models, grown = np.zeros(len(clients), dtype=int), first, []
    for t in range(6):
        change: list[Model] = []
        for i, (x, y) in enumerate(clients):
            model = {n: v.copy() for n, v in models[cluster[i]].items()}
            for _ in range(STEPS):
                error = softmax(x @ model["weight"].T + model["bias"])
                error[np.arange(len(y)), y] -= 1
                model["weight"] -= LR * error.T @ x / len(y)
                model["bias"] -= LR * error.mean(axis=0)
            change.append({n: model[n] - models[cluster[i]][n] for n in model})
        flat = np.stack([np.concatenate([c["bias"].ravel(), c["weight"].ravel()]) for c in change])

        def made(k: int, members: np.ndarray) -> Model:
            n = np.array([len(clients[i][1]) for i in members])
            old = models[k]  # noqa: B023 - used at once
            return {m: old[m] + sum(w * change[i][m] for w, i in zip(n, members, strict=True)) / n.sum() for m in old}  # noqa: B023

        new = [made(k, np.flatnonzero(cluster == k)) for k in range(len(models))]
        before = cluster.copy()
        for k in range(len(models)):
            members = np.array([i for i in order if before[i] == k])
            if t < warmup or len(members) < 3:
                continue
            norm = np.linalg.norm(flat[members], axis=1)
            if np.linalg.norm(flat[members].mean(axis=0)) < eps1 and norm.max() > eps2:
                unit = flat[members] / norm[:, None]
                apart = np.clip(1 - unit @ unit.T, 0, 2)
                np.fill_diagonal(apart, 0)
                a, b = two_parts(apart)
                new[k] = made(k, members[a])
                new.append(made(k, members[b]))
                cluster[members[b]] = len(new) - 1
        models = new
        grown.append(len(models))
    assert [record["K"] for record in result.records] == grown
    assert len(set(grown)) > 2, "there must be several splits to see"
    assert [result.assignments[c] for c in data.clients] == cluster.tolist()
    for found, expected in zip(result.models, models, strict=True):
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("backbone", ["fedem", "fedrc"])
@pytest.mark.parametrize("mu", [0.0, 0.4])
def test_hcfl_plus_against_a_plain_loop(backbone: str, mu: float):
    data = small_federation("mlp")
    rho = 0.1
    options = {"backbone": backbone, "mu": mu, "rho": rho, "max_clusters": 4, "averaging": "all", "grace": 0}
    first, result = run(data, "hcfl+", "mlp:hidden=6", order="heads-first", **options)
    clients = clients_of(data)
    order = np.argsort(hash_ids(data.clients))
    body = {n: first[0][n] for n in ("layer0.weight", "layer0.bias")}
    heads = [{n: m[n] for n in ("layer1.weight", "layer1.bias")} for m in first]
    wt = [np.ones(1) for _ in clients]
    ws = [np.ones((len(y), 1)) for _, y in clients]
    tables, shares, grown, objective = np.zeros((len(clients), 1, 3)), None, [], []
    for _ in range(6):
        K, value = len(heads), 0.0  # value: eq. 2
        n_all = np.array([len(y) for _, y in clients], dtype=float)
        body_sum, trained, protos, counts, means = None, [], [], [], []
        tables = np.zeros((len(clients), K, 3))
        for i, (x, y) in enumerate(clients):
            pre = x @ body["layer0.weight"].T + body["layer0.bias"]
            z = np.maximum(pre, 0)
            hot = np.eye(3)[y]
            counts.append(hot.sum(axis=0))
            protos.append(hot.T @ z / np.maximum(hot.sum(axis=0), 1)[:, None])
            means.append(z.mean(axis=0))
            p = np.stack([softmax(z @ h["layer1.weight"].T + h["layer1.bias"])[np.arange(len(y)), y] for h in heads], 1)
            L = p / shares[:, y].T if shares is not None and backbone == "fedrc" else p
            value += np.log((ws[i] * L).sum(axis=1)).sum()
            if mu:
                value -= (1 - mu) / mu * (wt[i] * np.log(wt[i] / ws[i])).sum()
            tilde = wt[i] * L / (wt[i] * L).sum(axis=1, keepdims=True)
            gamma = ws[i] * L / (ws[i] * L).sum(axis=1, keepdims=True)
            wt[i] = tilde.mean(axis=0)
            ws[i] = mu * gamma + (1 - mu) * wt[i]
            tables[i] = gamma.T @ hot
            own = [{n: v.copy() for n, v in h.items()} for h in heads]
            for k, h in enumerate(own):
                for _ in range(STEPS):
                    error = (softmax(z @ h["layer1.weight"].T + h["layer1.bias"]) - hot) * gamma[:, k, None] / len(y)
                    h["layer1.weight"] -= LR * error.T @ z
                    h["layer1.bias"] -= LR * error.sum(axis=0)
            local = {n: v.copy() for n, v in body.items()}
            for _ in range(STEPS):
                pre = x @ local["layer0.weight"].T + local["layer0.bias"]
                z2, back = np.maximum(pre, 0), 0
                for k, h in enumerate(own):
                    error = (softmax(z2 @ h["layer1.weight"].T + h["layer1.bias"]) - hot) * gamma[:, k, None] / len(y)
                    back = back + error @ h["layer1.weight"]
                back = back * (pre > 0)
                local["layer0.weight"] -= LR * back.T @ x
                local["layer0.bias"] -= LR * back.sum(axis=0)
            trained.append(own)
            weighted = {n: n_all[i] * v for n, v in local.items()}
            body_sum = weighted if body_sum is None else {n: body_sum[n] + v for n, v in weighted.items()}
        body = {n: v / n_all.sum() for n, v in body_sum.items()}

        def made(k: int, members) -> Model:
            total = sum(n_all[i] for i in members)  # noqa: B023
            return {n: sum(n_all[i] * trained[i][k][n] for i in members) / total for n in trained[0][0]}  # noqa: B023

        heads = [made(k, range(len(clients))) for k in range(K)]
        main = np.array([w.argmax() for w in wt])
        alive = [k for k in range(K) if (main == k).any()]  # decided now, removed after the split
        found = []
        for k in range(K):
            members = np.array([i for i in order if main[i] == k])
            apart = np.zeros((len(members), len(members)))
            for a, i in enumerate(members):
                for b, j in enumerate(members):
                    if a == b:
                        continue
                    both = [c for c in range(3) if counts[i][c] and counts[j][c]]
                    d = max([0.0, *(1 - cosine(protos[i][c], protos[j][c]) for c in both)])
                    if backbone == "fedem":
                        d = max(d, 1 - cosine(means[i], means[j]))
                    apart[a, b] = d * wt[i][k] * wt[j][k]
            found.append((members, np.clip(apart, 0, 2)))
        k = int(np.argmax([one[1].max() if len(one[0]) > 1 else -1 for one in found]))
        members, apart = found[k]
        if K < 4 and len(members) > 1 and apart.max() - apart.mean() >= rho:
            a, b = two_parts(apart)
            heads.append(made(k, members[b]))
            heads[k] = made(k, members[a])
            alive.append(K)
            wt = [np.append(w, w[k] / 2) * np.where(np.arange(len(w) + 1) == k, 0.5, 1) for w in wt]
            ws = [
                np.concatenate([w, w[:, k : k + 1] / 2], 1) * np.where(np.arange(w.shape[1] + 1) == k, 0.5, 1)
                for w in ws
            ]
            tables = np.concatenate([tables, tables[:, k : k + 1]], axis=1)
        heads, tables = [heads[k] for k in alive], tables[:, alive]
        wt = [w[alive] / w[alive].sum() for w in wt]
        ws = [w[:, alive] / w[:, alive].sum(axis=1, keepdims=True) for w in ws]
        totals = np.maximum(tables.sum(axis=0), 1e-8)
        shares = totals / totals.sum(axis=1, keepdims=True)
        grown.append(len(heads))
        objective.append(value / n_all.sum())
    assert [record["K"] for record in result.records] == grown
    assert [record["objective"] for record in result.records] == pytest.approx(objective, rel=1e-9)
    assert max(grown) > 1, "there must be a split to see"
    for model, head in zip(result.models, heads, strict=True):
        for name, value in (body | head).items():
            assert model[name] == pytest.approx(value, rel=1e-8, abs=1e-10)
    assert result.weights == pytest.approx(np.array(wt), rel=1e-8, abs=1e-10)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    size = np.linalg.norm(a) * np.linalg.norm(b)
    return float(a @ b / size) if size else 0.0


@pytest.mark.parametrize("order", ["heads-first", "together"])
@pytest.mark.parametrize("backbone", ["fedem", "fedrc"])
def test_hcfl_plus_without_changes_equals_its_backbone_with_a_shared_body(backbone: str, order: str):
    data = small_federation("mlp")
    common = {"clusters": 3, "order": order, "batch_size": 4}
    options = {"backbone": backbone, "rho": 1e9, "mu": 0.0, "remove": False}
    _, one = run(data, "hcfl+", "mlp:hidden=6", **common, **options)
    _, other = run(data, backbone, "mlp:hidden=6", shared="body", **common)
    for a, b in zip(one.models, other.models, strict=True):
        for name, value in b.items():
            assert a[name] == pytest.approx(value, rel=1e-9, abs=1e-12)
    assert one.weights == pytest.approx(other.weights, rel=1e-9)


def test_one_cluster_trained_together_is_fedavg():
    data = small_federation("mlp")
    _, one = run(data, "hcfl+", "mlp:hidden=6", order="together", max_clusters=1, backbone="fedem")
    _, other = run(data, "fedavg", "mlp:hidden=6")
    for name, value in other.models[0].items():
        assert one.models[0][name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_absent_clients_carry_their_weights_over():
    data = small_federation("mlp")
    _, result = run(data, "hcfl+", "mlp:hidden=6", rho=0.05, participation=0.4, rounds=8, max_clusters=5)
    assert len(result.models) > 2
    assert result.weights.shape == (9, len(result.models))
    assert result.weights.sum(axis=1) == pytest.approx(np.ones(9))
    assert torch.isfinite(torch.tensor(result.weights)).all()


def test_a_penalty_that_heads_would_ignore_is_refused():
    with pytest.raises(coterie.errors.ConfigError, match="leave l2 at 0"):
        coterie.fit(small_federation("mlp"), "hcfl+", learner="mlp:hidden=6,l2=0.1")


def test_a_learner_without_a_head_is_refused():
    with pytest.raises(coterie.errors.ConfigError, match="one fully connected layer with a bias"):
        coterie.fit(small_federation("mlp"), "hcfl+", learner=without_bias)

    with pytest.raises(coterie.errors.ConfigError, match="has frozen them all"):
        coterie.fit(small_federation("mlp"), "hcfl+", learner=frozen_body)


@pytest.mark.parametrize("backbone", ["fedem", "fedrc", "fesem", "fedsoft"])
def test_hcfl_plus_with_a_linear_model_has_whole_models(backbone: str):
    options = {"backbone": backbone, "rho": 0.01, "max_clusters": 3, "learner": "logistic", "rounds": 4}
    result = coterie.fit(small_federation("logistic"), "hcfl+", **options)
    assert len(result.models) > 1
    assert result.config["body"] == "own"
    weights = [model["weight"] for model in result.models]
    assert not np.allclose(weights[0], weights[1])


def test_the_features_of_a_linear_model_are_its_samples():
    x = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]]])
    learner = make_learner("logistic", Profile((2,), 2))
    theta = {name: p[:1] for name, p in learner.start([0], learner.dtype).items()}
    assert compared_features(learner, theta, x.to(learner.dtype)).tolist() == x.tolist()


@pytest.mark.parametrize(("width", "learner"), [(8, "logistic"), (64, "mlp")])
def test_hcfl_plus_is_linear_for_a_few_features_only(width: int, learner: str):
    assert HCFLPlus.usual_learner(Profile((width,), 3)) == learner


def frozen_body() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6).requires_grad_(False), nn.ReLU(), nn.Linear(6, 3))


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 6), nn.ReLU(), nn.Linear(6, 3, bias=False))


class Perceptron(nn.Module):
    """The learner `mlp:hidden=6` as a custom module."""

    def __init__(self) -> None:
        super().__init__()
        self.layer0, self.layer1 = nn.Linear(16, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer1(torch.relu(self.layer0(x.flatten(1))))


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("hcfl+", {"rho": 0.1, "max_clusters": 3}),
        ("hcfl+", {"rho": 0.1, "max_clusters": 3, "order": "together", "batch_size": 4}),
        ("fedem", {"clusters": 2, "shared": "body"}),
    ],
)
def test_a_custom_module_is_trained_like_the_equal_learner(method, options):
    data, settings = small_federation("mlp"), {"rounds": 3, "lr": LR, "seed": 1, "dtype": "float64"} | options
    initialized = initialize(prepare(data, method, "mlp:hidden=6", settings))
    start = [{name: p.numpy().copy() for name, p in model.items()} for model in initialized.state.clusters.models()]
    expected = execute(initialized, None)
    found = coterie.fit(data, method, learner=Perceptron, init=start, **settings)
    assert len(found.models) == len(expected.models) > 1
    for mine, theirs in zip(found.models, expected.models, strict=True):
        for name, value in theirs.items():
            assert mine[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def test_methods_that_need_single_updates_do_not_claim_secure_aggregation():
    for name in ("cfl", "icfl", "hcfl", "hcfl-split", "hcfl+", "fedsoft"):
        assert "could not hide" in find_method(name)().tiers().seen(), name
    for name in ("fedavg", "ifca", "fedem", "fedrc", "stocfl", "odcl"):
        assert "could hide them" in find_method(name)().tiers().seen(), name
