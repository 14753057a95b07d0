"""The one-shot methods from the user's side: results, costs and messages."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError, TrainingError
from coterie.testing.checks import small_federation
from coterie.training.fitting import execute, initialize
from coterie.training.planning import prepare

pytestmark = pytest.mark.filterwarnings("ignore:one-shot")


def two_groups(
    sizes: tuple[int, ...] = (30, 40, 50, 60, 70, 80), d: int = 3, seed: int = 0
) -> coterie.FederatedDataset:
    """Linear clients with alternating models (1, 1, 1) and (-1, -1, -1), with a little noise."""
    random = np.random.default_rng(seed)
    clients, tests, truth = {}, {}, {}
    for i, n in enumerate(sizes):
        x = random.standard_normal((n + 10, d))
        y = x.sum(axis=1) * (1 if i % 2 == 0 else -1) + 0.1 * random.standard_normal(n + 10)
        clients[f"c{i}"], tests[f"c{i}"] = (x[:n], y[:n]), (x[n:], y[n:])
        truth[f"c{i}"] = i % 2
    return coterie.from_arrays(clients, test=tests, truth=truth)


def own_solutions(data: coterie.FederatedDataset) -> np.ndarray:
    train = data.train
    return np.stack(
        [
            np.linalg.lstsq(train.x[a:b].numpy(), train.y[a:b].numpy(), rcond=None)[0]
            for a, b in zip(train.starts, train.stops, strict=True)
        ]
    )


def weights(result: coterie.Result) -> np.ndarray:
    return np.stack([model["weight"] for model in result.models])


@pytest.mark.parametrize("clustering", ["kmeans++", "spectral", "gradient", "convex"])
def test_a_cluster_is_the_mean_of_its_members_solutions(clustering: str):
    data = two_groups()
    solutions = own_solutions(data)
    result = coterie.fit(data, "odcl", clustering=clustering)
    assert result.metrics["ari"] == 1
    for i, client in enumerate(data.clients):
        members = solutions[data.truth == data.truth[i]]
        assert weights(result)[result.assignments[client]] == pytest.approx(members.mean(axis=0), rel=1e-12)


@pytest.mark.parametrize("method", ["odcl", "one-shot"])
@pytest.mark.parametrize("spare", [-1, 0, 1])
def test_groups_are_found_with_as_many_samples_as_coefficients(method: str, spare: int):
    rounds = {"rounds": 1} if method == "one-shot" else {}
    data = two_groups((20 + spare,) * 40, d=20)
    assert coterie.fit(data, method, **rounds).metrics["ari"] == 1
    if spare == 0:
        assert coterie.fit(data, method, ridge=0.0, **rounds).metrics["ari"] < 0.9


def test_a_ridge_by_hand_and_none_with_many_samples():
    data = two_groups((6, 4, 50, 3), d=3)
    alone = coterie.fit(data, "local-erm")
    for client, a, b in zip(data.clients, data.train.starts, data.train.stops, strict=True):
        x, y = data.train.x[a:b].numpy(), data.train.y[a:b].numpy()
        share = 0.1 * min(1, 3 / len(y)) ** 4
        ridge = np.diag((x**2).sum(axis=0)) * (share if share >= 1e-3 else 0)
        expected = np.linalg.solve(x.T @ x + ridge, x.T @ y)
        assert weights(alone)[alone.assignments[client]] == pytest.approx(expected, rel=1e-9)


def test_a_ridge_leaves_the_bias_free():
    data = two_groups((4, 4, 4, 4, 4, 4), d=3)
    moved = replace(data, train=replace(data.train, y=data.train.y + 100, x=data.train.x + 50))
    plain, far = (coterie.fit(each, "local-erm", learner="linear:bias=true") for each in (data, moved))
    assert weights(far) == pytest.approx(weights(plain), rel=1e-6, abs=1e-8)


def test_clients_may_count_by_their_samples():
    data = two_groups()
    result = coterie.fit(data, "odcl", client_weight="samples")
    members = data.truth == 0
    expected = np.average(own_solutions(data)[members], axis=0, weights=data.train.sizes[members])
    assert weights(result)[result.assignments["c0"]] == pytest.approx(expected, rel=1e-12)


def test_the_baselines_by_a_plain_loop():
    data = two_groups()
    solutions, x, y = own_solutions(data), data.train.x.numpy(), data.train.y.numpy()
    local = coterie.fit(data, "local-erm")
    assert weights(local) == pytest.approx(solutions, rel=1e-12)
    naive = coterie.fit(data, "naive-averaging")
    assert weights(naive)[0] == pytest.approx(solutions.mean(axis=0), rel=1e-12)
    oracle = coterie.fit(data, "oracle-averaging")
    pooled = coterie.fit(data, "cluster-oracle")
    owner = np.repeat(data.truth, data.train.sizes)
    for k in range(2):
        assert weights(oracle)[k] == pytest.approx(solutions[data.truth == k].mean(axis=0), rel=1e-12)
        expected = np.linalg.lstsq(x[owner == k], y[owner == k], rcond=None)[0]
        assert weights(pooled)[k] == pytest.approx(expected, rel=1e-9)


def test_the_bytes_of_the_one_exchange():
    # up: 6 clients x 3 numbers of 8 bytes; down: 8 for the round number, then 3 numbers of 8 and the cluster's number
    metrics = coterie.fit(two_groups(), "odcl").metrics
    assert metrics["bytes_up"] == 6 * 3 * 8
    assert metrics["bytes_down"] == 6 * 8 + 6 * (3 * 8 + 8)
    assert metrics["one_shot"]["exchanges"] == 1
    assert coterie.fit(two_groups(), "local-erm").metrics["bytes_up"] == 0


def test_a_run_reports_its_clusters():
    findings = coterie.fit(two_groups(), "odcl").metrics["one_shot"]
    assert (findings["K"], findings["solved"], findings["without_solution"], findings["solver"]) == (2, 6, 0, "exact")
    assert findings["separation"]["separable"]
    assert findings["separation"]["alpha"] > 5
    assert findings["warnings"] == []


def test_overlapping_clusters_give_a_warning():
    # solutions at (-1, 0) and (1, 0), and one at (1, 3): centres 2 apart, but its centre is 3 - 3/11 = 2.7 away from it
    points = [(-1.0, 0.0)] * 10 + [(1.0, 0.0)] * 10 + [(1.0, 3.0)]
    clients = {f"c{i}": (np.eye(2), np.array(point)) for i, point in enumerate(points)}
    with pytest.warns(UserWarning, match="one-shot: clusters overlap"):
        coterie.fit(coterie.from_arrays(clients), "odcl", clusters=2)


def test_few_samples_give_a_warning():
    with pytest.warns(UserWarning, match="1 of 6 clients have fewer samples than the model has coefficients"):
        coterie.fit(two_groups((2, 40, 50, 60, 70, 80)), "odcl")


def test_the_number_of_clusters_is_found():
    for options in ({"clustering": "convex"}, {"clusters": "auto"}):
        result = coterie.fit(two_groups((50,) * 12), "odcl", **options)
        assert len(result.models) == 2, options
        assert result.config["clusters"] == 2


def test_the_oracle_lambda_needs_the_truth():
    data = two_groups()
    assert coterie.fit(data, "odcl", clustering="convex", lam="oracle13").metrics["ari"] == 1
    unknown = coterie.from_arrays({c: (data.train.x[a:b].numpy(), data.train.y[a:b].numpy())
        for c, a, b in zip(data.clients, data.train.starts, data.train.stops, strict=True)})  # fmt: skip
    with pytest.raises(ConfigError, match="oracle13"):
        coterie.fit(unknown, "odcl", clustering="convex", lam="oracle13")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"clusters": 7}, "clusters=7 but there are only 6 clients"),
        ({"lam": -1.0, "clustering": "convex"}, "lam must be a number above 0, or oracle13"),
        ({"lam": float("nan"), "clustering": "convex"}, "lam must be a number above 0"),
        ({"lam": 0.1}, "lam has no effect unless clustering=convex"),
        ({"solver": "sgd"}, "sgd_radius"),
        ({"clustering": "kmean"}, "unknown clustering 'kmean'"),
        ({"rounds": 5}, "rounds has no meaning for method odcl"),
        ({"solver": "exact", "learner": "mlp"}, "mlp predicts classes|solver=exact is for linear and logistic"),
    ],
)
def test_mistakes(options: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        coterie.fit(two_groups(), "odcl", **options)


def test_networks_cannot_be_solved_exactly():
    with pytest.raises(ConfigError, match="solver=exact is for linear and logistic"):
        coterie.fit(small_federation("mlp"), "odcl", learner="mlp:hidden=3", solver="exact")


def test_one_client_and_equal_clients():
    data = two_groups((20,))
    assert coterie.fit(data, "odcl", clusters=1).metrics["clients"] == 1
    x, y = data.train.x.numpy(), data.train.y.numpy()
    same = coterie.from_arrays({f"c{i}": (x, y) for i in range(5)})
    assert len(coterie.fit(same, "odcl", clusters="auto").models) == 1
    assert len(coterie.fit(same, "odcl", clustering="convex").models) == 1


def labels(separable: bool) -> coterie.FederatedDataset:
    random = np.random.default_rng(0)
    clients = {}
    for i in range(6):
        x = random.standard_normal((40, 2))
        y = (x[:, 0] > 0).astype(int) ^ (i % 2)
        if not separable or i > 1:
            y = np.where(random.random(40) < 0.2, 1 - y, y)
        clients[f"c{i}"] = (x, y)
    return coterie.from_arrays(clients)


def test_clients_without_a_solution_join_by_their_loss():
    result = coterie.fit(labels(separable=True), "odcl", learner="logistic", solver="exact", clusters=2)
    assert result.metrics["one_shot"]["without_solution"] == 2
    groups = [result.assignments[f"c{i}"] for i in range(6)]
    assert groups[0::2] == [groups[0]] * 3
    assert groups[1::2] == [1 - groups[0]] * 3


def test_no_client_has_a_solution():
    x = np.random.default_rng(0).standard_normal((4, 9))
    data = coterie.from_arrays({f"c{i}": (x, np.array([0, 1, 0, 1])) for i in range(3)})
    with pytest.raises(TrainingError, match=r"none of the 3 clients that answered has a solution.*l2"):
        coterie.fit(data, "odcl", learner="logistic", solver="exact", clusters=2)
    assert coterie.fit(data, "odcl", learner="logistic:l2=0.01", clusters=1).metrics["clients"] == 3


def test_a_client_without_onboarding_is_missing_until_the_end():
    plan = prepare(two_groups(), "one-shot", None, {"rounds": 3, "clusters": 2})
    late = Simulated(plan.federation.group, missing={-1: ("c2",)})
    result = execute(initialize(replace(plan, run=replace(plan.run, federation=late))), None)
    assert [record["missing"] for record in result.records] == [["c2"]] * 3
    assert "c2" not in result.assignments


def test_then_trains_inside_the_clusters_that_were_found():
    # fedavg inside the true clusters, from the mean of the solutions: the oracle with these first models
    data = two_groups()
    result = coterie.fit(data, "one-shot", rounds=4, local_steps=3, lr=0.05)
    start = torch.from_numpy(weights(coterie.fit(data, "oracle-averaging", client_weight="samples")))
    options = {"rounds": 4, "local_steps": 3, "lr": 0.05, "client_weight": "samples"}
    initialized = initialize(prepare(data, "oracle", None, options))
    clusters = replace(initialized.state.clusters, params={"weight": start})
    oracle = execute(replace(initialized, state=replace(initialized.state, clusters=clusters)), None)
    for client, k in zip(data.clients, data.truth, strict=True):
        assert weights(result)[result.assignments[client]] == pytest.approx(weights(oracle)[k], rel=1e-9)


def test_after_a_one_shot_initialisation_the_method_continues():
    data = two_groups()
    start = coterie.fit(data, "odcl")
    given = coterie.fit(data, "ifca", init=start, rounds=3)
    initialized = coterie.fit(data, "ifca", init="odcl", rounds=3)
    assert weights(initialized) == pytest.approx(weights(given), rel=1e-12)
    assert initialized.metrics["bytes_up"] == given.metrics["bytes_up"] + 6 * 3 * 8
    assert initialized.config["init"] == "odcl"


def test_inexact_solutions_are_close_to_the_exact_ones():
    data = two_groups((50,) * 6)
    exact, inexact = (coterie.fit(data, "odcl", **o) for o in ({}, {"solver": "sgd", "sgd_radius": 4.0}))
    assert inexact.metrics["ari"] == 1
    assert weights(inexact) == pytest.approx(weights(exact), abs=0.02)


def test_a_killed_run_continues_with_the_clusters_it_found(tmp_path):
    def kill(record: dict) -> None:
        if record["round"] == 2:
            raise KeyboardInterrupt

    data, options = two_groups(), {"rounds": 5, "checkpoint_every": 1, "clusters": "auto"}
    whole = coterie.fit(data, "one-shot", out=tmp_path / "whole", **options)
    with pytest.raises(KeyboardInterrupt):
        coterie.fit(data, "one-shot", out=tmp_path / "cut", callbacks=[kill], **options)
    cut = coterie.resume(tmp_path / "cut", data)
    assert np.array_equal(weights(cut), weights(whole))
    assert cut.assignments == whole.assignments


def test_cluster_oracle_with_clients_that_count_alike():
    """One feature of 1: the model is a mean. Clients of 1 and 3 samples at 0 and 4: 3 by samples, 2 by clients."""
    arrays = {"a": (np.ones((1, 1)), np.zeros(1)), "b": (np.ones((3, 1)), np.full(3, 4.0))}
    data = coterie.from_arrays(arrays, truth=[0, 0])
    means = {}
    for pool in ("samples", "clients"):
        result = coterie.fit(data, "cluster-oracle", learner="linear:bias=false", pool=pool)
        means[pool] = float(result.models[0]["weight"].ravel()[0])
    assert means == {"samples": pytest.approx(3.0), "clients": pytest.approx(2.0)}
    labels = {client: (x, np.arange(len(x)) % 2) for client, (x, _) in arrays.items()}
    data = coterie.from_arrays(labels, truth=[0, 0])
    with pytest.raises(ConfigError, match="pool=clients is for learner linear"):
        coterie.fit(data, "cluster-oracle", learner="logistic:l2=0.1", pool="clients")
