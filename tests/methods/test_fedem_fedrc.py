"""Soft methods against plain loops: FedEM and FedRC, and the states that clients keep."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.engines.simulated import Simulated
from coterie.errors import InputError, TrainingError
from coterie.testing.checks import small_federation
from coterie.training.fitting import execute, initialize
from coterie.training.planning import prepare

ROUNDS, LR, STEPS, K = 4, 0.2, 3, 2


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def plain_rounds(data, models, ratio: bool, averaging: str, rounds: int = ROUNDS) -> tuple[list, list, list]:
    """Softmax regression without l2, client by client and sample by sample; weights, models and log-likelihoods."""
    x = data.train.x.numpy().reshape(len(data.train.x), -1)
    y = data.train.y.numpy()
    spans = list(zip(data.train.starts, data.train.stops, strict=True))
    C = data.profile.classes
    w = [np.full(K, 1 / K) for _ in spans]
    shares = np.full((K, C), 1.0)  # before the first counts the ratio is the likelihood itself
    likelihoods = []
    for _ in range(rounds):
        sums = [{n: np.zeros_like(v) for n, v in m.items()} for m in models]
        mass, tables, total = np.zeros(K), np.zeros((K, C)), 0.0
        for i, (a, b) in enumerate(spans):
            n = b - a
            gamma = np.zeros((n, K))
            for j in range(n):
                p = np.array([softmax(x[a + j][None] @ m["weight"].T + m["bias"])[0, y[a + j]] for m in models])
                L = p / shares[:, y[a + j]] if ratio else p
                gamma[j] = w[i] * L / (w[i] * L).sum()
                total += np.log((w[i] * L).sum())
            w[i] = gamma.mean(axis=0)
            for k, model in enumerate(models):
                local = {name: v.copy() for name, v in model.items()}
                for _ in range(STEPS):
                    error = softmax(x[a:b] @ local["weight"].T + local["bias"]) - np.eye(C)[y[a:b]]
                    error *= gamma[:, k, None] / n
                    local["weight"] -= LR * error.T @ x[a:b]
                    local["bias"] -= LR * error.sum(axis=0)
                count = n * w[i][k] if averaging == "responsibility" else n
                mass[k] += count
                for name in sums[k]:
                    sums[k][name] += count * local[name]
                for c in range(C):
                    tables[k, c] += gamma[y[a:b] == c, k].sum()
        models = [{name: v / mass[k] for name, v in sums[k].items()} for k in range(K)]
        counts = np.maximum(tables, 1e-8)
        shares = counts / counts.sum(axis=1, keepdims=True)
        likelihoods.append(total / len(y))
    return w, models, likelihoods


@pytest.mark.parametrize("averaging", ["all", "responsibility"])
@pytest.mark.parametrize("method", ["fedem", "fedrc"])
def test_soft_methods_against_a_plain_loop(method: str, averaging: str):
    data = small_federation("logistic")
    options = {"clusters": K, "rounds": ROUNDS, "lr": LR, "local_steps": STEPS, "averaging": averaging, "seed": 1}
    options["init"] = "random"
    plan = prepare(data, method, "logistic", options)
    initialized = initialize(plan)
    first = [{name: v.numpy() for name, v in model.items()} for model in initialized.state.clusters.models()]
    result = execute(initialized, None)
    w, models, likelihoods = plain_rounds(data, first, method == "fedrc", averaging)
    for found, expected in zip(result.models, models, strict=True):
        assert found["weight"] == pytest.approx(expected["weight"], rel=1e-9, abs=1e-12)
        assert found["bias"] == pytest.approx(expected["bias"], rel=1e-9, abs=1e-12)
    assert result.weights == pytest.approx(np.array(w), rel=1e-9, abs=1e-12)
    assert [record["likelihood"] for record in result.records] == pytest.approx(likelihoods, rel=1e-9)


def test_a_mixture_predicts_by_mixed_probabilities():
    data = small_federation("logistic")
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=3, lr=0.2, init="random")
    client = data.clients[3]
    test = data.test
    x = test.x[test.starts[3] : test.stops[3]].numpy()
    y = test.y[test.starts[3] : test.stops[3]].numpy()
    mixed = sum(
        w * softmax(x.reshape(len(x), -1) @ m["weight"].T + m["bias"])
        for w, m in zip(result.weights[3], result.models, strict=True)
    )
    assert result.predict(x, client=client).tolist() == mixed.argmax(axis=1).tolist()
    row = next(row for row in result.clients if row["id"] == client)
    assert row["score"] == pytest.approx((mixed.argmax(axis=1) == y).mean())
    assert row["loss"] == pytest.approx(-np.log(mixed[np.arange(len(y)), y]).mean(), rel=1e-9)
    with pytest.raises(InputError, match="2 non-negative numbers with sum 1"):
        result.predict_mixed(x, [0.9, 0.9])


def test_the_likelihood_of_a_mixture_with_small_steps_never_falls():
    data = small_federation("logistic")
    result = coterie.fit(
        data, "fedem", learner="logistic", clusters=2, rounds=15, lr=0.05, local_steps=1, init="random"
    )
    rise = np.diff([record["likelihood"] for record in result.records])
    assert (rise > 0).all()


def test_the_error_of_the_previous_round_scales_regression_likelihoods():
    # two groups of linear clients with opposite models: the mixture finds them from a random start
    random = np.random.default_rng(0)
    clients, truth = {}, {}
    for i in range(12):
        x = random.standard_normal((40, 3))
        clients[f"c{i}"] = (x, x.sum(axis=1) * (-1) ** i + 0.1 * random.standard_normal(40))
        truth[f"c{i}"] = i % 2
    data = coterie.from_arrays(clients, truth=truth)
    result = coterie.fit(data, "fedem", clusters=2, rounds=60, lr=0.1, local_steps=5, seed=1)
    assert result.metrics["ari"] == 1
    assert result.weights.max(axis=1).min() > 0.95


def test_fesem_against_a_plain_loop():
    data = small_federation("logistic")
    options = {"clusters": K, "rounds": ROUNDS, "lr": LR, "local_steps": STEPS, "seed": 1, "init": "random"}
    initialized = initialize(prepare(data, "fesem", "logistic", options))
    centres = [{name: v.numpy() for name, v in model.items()} for model in initialized.state.clusters.models()]
    result = execute(initialized, None)
    x, y, C = data.train.x.numpy().reshape(len(data.train.x), -1), data.train.y.numpy(), data.profile.classes
    spans = list(zip(data.train.starts, data.train.stops, strict=True))
    own = []
    for a, b in spans:
        fits = [softmax(x[a:b] @ m["weight"].T + m["bias"])[np.arange(b - a), y[a:b]] for m in centres]
        own.append(int(np.argmin([-np.log(p).mean() for p in fits])))
    for _ in range(ROUNDS):
        trained = []
        for i, (a, b) in enumerate(spans):
            local = {name: v.copy() for name, v in centres[own[i]].items()}
            for _ in range(STEPS):
                error = (softmax(x[a:b] @ local["weight"].T + local["bias"]) - np.eye(C)[y[a:b]]) / (b - a)
                local["weight"] -= LR * error.T @ x[a:b]
                local["bias"] -= LR * error.sum(axis=0)
            trained.append(local)
            own[i] = int(np.argmin([sum(((local[n] - c[n]) ** 2).sum() for n in local) for c in centres]))
        sizes = np.array([b - a for a, b in spans])
        for k in range(K):
            members = [i for i in range(len(spans)) if own[i] == k]
            if members:
                centres[k] = {
                    n: np.average([trained[i][n] for i in members], axis=0, weights=sizes[members]) for n in centres[k]
                }
    assert [result.assignments[c] for c in data.clients] == own
    for found, expected in zip(result.models, centres, strict=True):
        assert found["weight"] == pytest.approx(expected["weight"], rel=1e-9, abs=1e-12)


# ---- states of clients ---------------------------------------------------------------------------------------------


def plan_for(**options):
    settings = {"clusters": 2, "rounds": 4, "lr": 0.2, "local_steps": 2, "seed": 1, "init": "random"} | options
    return prepare(small_federation("logistic"), "fedem", "logistic", settings)


def test_an_absent_client_continues_from_its_own_last_round():
    plan = plan_for()
    away = Simulated(plan.federation.group, missing={1: ("site-4",), 2: ("site-4",)})
    initialized = initialize(replace(plan, run=replace(plan.run, federation=away)))
    kept = []

    def look(record):
        kept.append(plan.federation.group.states.store.arrays["weights"][4].clone())

    execute(initialized, None, [look])
    assert torch.equal(kept[0], kept[1])
    assert torch.equal(kept[1], kept[2])
    assert not torch.equal(kept[2], kept[3])


def test_a_new_run_finds_nothing_of_the_one_before():
    plan = plan_for()
    first = execute(initialize(plan), None)
    again = execute(initialize(plan), None)
    assert np.array_equal(first.weights, again.weights)


def test_a_state_of_another_round_is_an_error():
    plan = plan_for()
    execute(initialize(plan), None)
    initialized = initialize(plan)
    later = replace(initialized.state.with_values(accepted=torch.full((9,), 1)), round=2)
    with pytest.raises(TrainingError, match="continues from round 1, but a client has stored its weights of round 3"):
        execute(replace(initialized, state=later), None)


def test_weights_that_became_zero_can_grow_again():
    from coterie.tiers.assignment import EMMixture

    cost = torch.tensor([[[[0.0, 50.0]]]], dtype=torch.float64).flip(
        3
    )  # the second cluster explains the sample far better
    gamma, _ = EMMixture().client_respond(cost, torch.tensor([[[[1.0, 0.0]]]], dtype=torch.float64))
    assert gamma[0, 0, 0, 1] > 0.99  # e^50 times 1e-12 is far above 1


def test_a_sample_that_nothing_explains_belongs_to_all():
    from coterie.tiers.assignment import EMMixture

    cost = torch.full((1, 1, 1, 2), torch.inf, dtype=torch.float64)
    gamma, _ = EMMixture().client_respond(cost, torch.tensor([[[[0.7, 0.3]]]], dtype=torch.float64))
    assert gamma[0, 0, 0].tolist() == [0.5, 0.5]


def test_the_restart_of_lowest_loss_in_the_last_round_wins():
    data = small_federation("logistic")
    result = coterie.fit(data, "fedem", learner="logistic", clusters=2, rounds=3, lr=0.3, restarts=4, seed=2)
    losses = result.records[-1]["restart_losses"]
    assert result.metrics["restart"] == int(np.argmin(losses))
    assert result.metrics["loss"] == min(losses)
