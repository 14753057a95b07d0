"""ICFL and StoCFL against plain loops, client by client."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import coterie
from coterie.core.clusters import Clusters
from coterie.core.dataset import FederatedDataset
from coterie.core.keys import Purpose, hash_ids, key_for
from coterie.core.messages import Broadcast
from coterie.core.sampling import choose
from coterie.data.arrays import from_arrays
from coterie.errors import ConfigError, DivergenceWarning
from coterie.learners.logistic import Logistic
from coterie.testing.checks import small_federation
from coterie.tiers.procedure import SplitBySpectrum, linked_parts, two_means
from coterie.training.fitting import execute, initialize
from coterie.training.planning import Plan, prepare
from coterie.training.result import Result

LR, STEPS, ROUNDS = 0.3, 3, 6
Model = dict[str, np.ndarray]


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def clients_of(data: FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    x, y = data.train.x.numpy().reshape(len(data.train.x), -1), data.train.y.numpy()
    return [(x[a:b], y[a:b]) for a, b in zip(data.train.starts, data.train.stops, strict=True)]


def run(data: FederatedDataset, method: str, **options: object) -> tuple[Model, Plan, Result]:
    """Return the initial model, the plan, and the result."""
    settings = {"rounds": ROUNDS, "lr": LR, "local_steps": STEPS, "seed": 1, "dtype": "float64"} | options
    initialized = initialize(prepare(data, method, "logistic", settings))
    first = {name: v.numpy().copy() for name, v in initialized.state.clusters.models()[0].items()}
    return first, initialized.plan, execute(initialized, None)


def trained(start: Model, x: np.ndarray, y: np.ndarray, steps: int, lam: float = 0, to: Model | None = None) -> Model:
    model = {n: v.copy() for n, v in start.items()}
    for _ in range(steps):
        error = softmax(x @ model["weight"].T + model["bias"])
        error[np.arange(len(y)), y] -= 1
        gradient = {"weight": error.T @ x / len(y), "bias": error.mean(axis=0)}
        for n in model:
            pull = lam * (model[n] - to[n]) if to is not None else 0
            model[n] = model[n] - LR * (gradient[n] + pull)
    return model


def mean(models: list[Model], by: list[int]) -> Model:
    return {n: sum(w * m[n] for w, m in zip(by, models, strict=True)) / sum(by) for n in models[0]}


def vector(model: Model) -> np.ndarray:
    return np.concatenate([model["bias"].ravel(), model["weight"].ravel()])


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def assert_models(result: Result, models: list[Model]) -> None:
    for found, expected in zip(result.models, models, strict=True):
        for name, value in expected.items():
            assert found[name] == pytest.approx(value, rel=1e-9, abs=1e-12)


def lloyd(points: np.ndarray) -> np.ndarray:
    """Return whether each point is in the part of the first one, point by point and pair by pair."""
    pairs = [(i, j) for i in range(len(points)) for j in range(i)]
    i, j = max(pairs, key=lambda pair: np.linalg.norm(points[pair[0]] - points[pair[1]]))
    centres = [points[i], points[j]]
    for _ in range(100):
        near = np.array([np.linalg.norm(p - centres[0]) <= np.linalg.norm(p - centres[1]) for p in points])
        centres = [points[near].mean(axis=0), points[~near].mean(axis=0)]
    return near == near[0]


def test_icfl_against_a_plain_loop():
    data = small_federation("logistic")
    alpha0 = 0.4
    first, _, result = run(data, "icfl", alpha0=alpha0, max_clusters=5)
    clients = clients_of(data)
    order = np.argsort(hash_ids(data.clients))
    cluster, models, grown = np.zeros(len(clients), dtype=int), [first], []
    for t in range(ROUNDS):
        made = [trained(models[cluster[i]], x, y, STEPS) for i, (x, y) in enumerate(clients)]
        updates = [vector(made[i]) - vector(models[cluster[i]]) for i in range(len(clients))]
        sizes = [len(y) for _, y in clients]
        new, before = [], cluster.copy()
        for k in range(len(models)):
            members = [i for i in order if before[i] == k]
            new.append(mean([made[i] for i in members], [sizes[i] for i in members]))
        room = 5 - len(models)
        for k in range(len(models)):
            members = np.array([i for i in order if before[i] == k])
            if len(members) < 2 or not room:
                continue
            cosines = np.array([[cosine(updates[i], updates[j]) for j in members] for i in members])
            values, vectors = np.linalg.eig(cosines)
            leading = np.argsort(-values.real)[:2]
            eps2 = math.log(1 - alpha0) / (1 - math.log(4))
            if values.real[leading[0]] / len(members) >= 1 - (math.e / 4) ** (t / eps2):
                continue
            stays = lloyd(vectors.real[:, leading])
            room -= 1
            for part in (members[stays], members[~stays]):
                model = mean([made[i] for i in part], [sizes[i] for i in part])
                if part[0] == members[0]:
                    new[k] = model
                else:
                    cluster[part] = len(new)
                    new.append(model)
        models = new
        grown.append(len(models))
    assert [record["K"] for record in result.records] == grown
    assert len(set(grown)) > 2, "there must be several splits to see"
    assert [result.assignments[c] for c in data.clients] == cluster.tolist()
    assert_models(result, models)


def test_the_threshold_of_icfl():
    """eps2 = ln .15 / (1 - ln 4) = 4.911; (e/4)^(10/4.911) = exp(-.3863 * 2.0362) = .4554."""
    step = SplitBySpectrum(alpha0=0.85)
    assert step.server_threshold(0) == 0
    assert step.server_threshold(10) == pytest.approx(1 - 0.4554, abs=1e-4)
    assert step.server_threshold(30) == pytest.approx(0.9055, abs=1e-4)
    assert step.server_threshold(10_000) == pytest.approx(1)


def test_the_paper_s_icfl_ends_with_nearly_one_cluster_per_client():
    """The threshold exceeds every alpha below 1, so only `max_clusters` stops the splits."""
    data = small_federation("logistic")
    _, _, result = run(data, "icfl", alpha0=0.2, rounds=40)
    assert len(result.models) == len(data.clients)
    _, _, capped = run(data, "icfl", alpha0=0.2, rounds=40, max_clusters=3)
    assert len(capped.models) == 3


@pytest.mark.parametrize("alpha0", [1.0, 1.5])
def test_an_alpha0_that_never_rises_is_refused(alpha0: float):
    with pytest.raises(ConfigError, match="alpha0"):
        coterie.fit(small_federation("logistic"), "icfl", learner="logistic", alpha0=alpha0)


def test_two_means_depends_neither_on_the_order_nor_on_the_signs_of_axes():
    random = np.random.default_rng(0)
    points = np.concatenate([random.normal(0, 1, (7, 2)), random.normal(4, 1, (5, 2))])
    found = two_means(points)
    assert set(map(tuple, found)) == {tuple(range(7)), tuple(range(7, 12))}
    order = random.permutation(12)
    again = two_means((points * [-1, 1])[order])
    assert {frozenset(order[part]) for part in again} == {frozenset(part.tolist()) for part in found}


# ---- StoCFL --------------------------------------------------------------------------------------------------


def plain_stocfl(
    data: FederatedDataset, first: Model, plan: Plan, tau: float, lam: float, share: float, compare: str = "sampled"
) -> tuple[list[Model], dict[int, int], list[int], Model]:
    """Clusters as lists of clients in the order of arrival; union-find over sorted pairs."""
    clients, hashes = clients_of(data), hash_ids(data.clients)
    assert isinstance(plan.learner, Logistic)
    initial = plan.learner.start([key_for(1, Purpose.ONBOARDING)], plan.federation.group.train.x.dtype)  # type: ignore[attr-defined]
    anchor = {n: p[0].numpy() for n, p in initial.items()}
    psi: dict[int, np.ndarray] = {}
    groups: list[list[int]] = []
    models: list[Model | None] = []
    omega, grown = first, []
    for t in range(ROUNDS):
        asked = choose(hashes, share, 1, t)
        for i in sorted((i for i in asked if i not in psi), key=lambda i: hashes[i]):
            psi[i] = vector(anchor) - vector(trained(anchor, *clients[i], steps=1))
            groups.append([i])
            models.append(None)
        seen = [[i for i in members if i in asked or compare == "all"] for members in groups]
        shown = [np.mean([psi[i] for i in members], axis=0) if members else None for members in seen]
        root = list(range(len(groups)))
        both = [(a, b) for a in range(len(groups)) for b in range(a) if seen[a] and seen[b]]
        pairs = [(cosine(shown[a], shown[b]), a, b) for a, b in both]
        for similar, a, b in sorted(pairs, reverse=True):
            if similar >= tau:
                root = [min(root[a], root[b]) if r in (root[a], root[b]) else r for r in root]
        parts = [[g for g in range(len(groups)) if root[g] == r] for r in sorted(set(root))]
        keeps = [max(part, key=lambda g: (models[g] is not None, len(groups[g]), -g)) for part in parts]
        models = [models[g] for g in keeps]
        groups = [[i for g in part for i in groups[g]] for part in parts]
        models = [omega if model is None else model for model in models]
        new, common, sizes = [], [], []
        for members, model in zip(groups, models, strict=True):
            here = [i for i in members if i in asked]
            made = [trained(model, *clients[i], steps=STEPS, lam=lam, to=omega) for i in here]
            n = [len(clients[i][1]) for i in here]
            new.append(mean(made, n) if here else model)
            common += [trained(omega, *clients[i], steps=STEPS) for i in here]
            sizes += n
        models, omega = new, mean(common, sizes)
        grown.append(len(groups))
    return models, {i: k for k, members in enumerate(groups) for i in members}, grown, omega


@pytest.mark.parametrize(("tau", "share"), [(0.1, 1.0), (0.5, 1.0), (0.8, 1.0), (0.35, 0.3), (0.5, 0.3), (0.7, 0.3)])
@pytest.mark.parametrize("compare", ["sampled", "all"])
def test_stocfl_against_a_plain_loop(tau: float, share: float, compare: str):
    data = small_federation("logistic")
    first, plan, result = run(data, "stocfl", tau=tau, lam=0.4, participation=share, compare=compare)
    models, cluster, grown, _ = plain_stocfl(data, first, plan, tau, 0.4, share, compare)
    assert [record["K"] for record in result.records] == grown
    assert result.assignments == {data.clients[i]: k for i, k in sorted(cluster.items())}
    assert_models(result, models)


def test_the_plain_loops_cover_merges_and_several_numbers_of_clusters():
    data = small_federation("logistic")
    seen = []
    for tau in (0.35, 0.5, 0.7):
        _, _, result = run(data, "stocfl", tau=tau, participation=0.3)
        seen += [e["parents"] for record in result.records for e in record.get("events", ())]
    assert any(len(parents) > 1 for event in seen for parents in event), "old clusters must unite somewhere"
    assert any(not parents for event in seen for parents in event), "clusters must be born"


def test_stocfl_with_one_cluster_and_no_pull_is_fedavg():
    data = small_federation("logistic")
    _, _, one = run(data, "stocfl", tau=-1.0, lam=0.0, batch_size=4)
    _, _, other = run(data, "fedavg", batch_size=4, client_weight="samples")
    assert len(one.models) == 1
    assert_models(one, [{n: np.asarray(v) for n, v in other.models[0].items()}])


@pytest.mark.parametrize(("options", "told"), [({"tau": 0.1}, 1), ({}, 2)])
def test_bytes_of_stocfl(options: dict[str, float], told: int):
    """P numbers of 8 bytes: up 2P a client and round and once P, or P for each half; down 2P, and no anchor."""
    data = small_federation("logistic")
    _, _, stocfl = run(data, "stocfl", rounds=2, **options)
    _, _, fedavg = run(data, "fedavg", rounds=2)
    P, m = 8 * (16 * 3 + 3), len(data.clients)
    up = [record["bytes_up"] for record in stocfl.records]
    plain = fedavg.records[0]["bytes_up"]
    cluster_row, slot = 8, 8  # the index of the overall model's one slot
    assert up[1] - plain == m * (P + slot)
    assert up[0] - up[1] == m * told * P
    down = [record["bytes_down"] for record in stocfl.records]
    plain = fedavg.records[0]["bytes_down"]
    assert down[1] - plain == m * (P + cluster_row)  # the slot that it receives
    assert down[0] - down[1] == m * 16  # round and lr of the onboarding request


def homogeneous(seed: int) -> FederatedDataset:
    random = np.random.default_rng(seed)
    teacher = random.standard_normal((10, 3))
    clients = {}
    for index in range(20):
        x = random.standard_normal((60, 10))
        clients[f"c{index}"] = (x, (x @ teacher + 0.3 * random.standard_normal((60, 3))).argmax(axis=1))
    return from_arrays(clients)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("share", [1.0, 0.2])
def test_homogeneous_clients_end_in_one_cluster(seed: int, share: float):
    settings = {"rounds": 15, "lr": 0.3, "local_epochs": 1, "batch_size": 20, "seed": seed, "participation": share}
    result = coterie.fit(homogeneous(seed), "stocfl", learner="mlp:hidden=20", **settings)
    assert len(result.models) == 1


def test_clients_that_join_a_cluster_at_once_need_no_own_model():
    """In the first round all clients are onboarded, and one model is sent."""
    data = homogeneous(0)
    initialized = initialize(prepare(data, "stocfl", "mlp:hidden=20", {"rounds": 1, "lr": 0.3, "local_steps": 1}))
    assert initialized.state.clusters.K == 1
    result = execute(initialized, None)
    assert result.records[0]["events"][0]["parents"] == [[]]
    assert result.records[0]["sizes"] == [20]


@pytest.mark.parametrize("tau", [0.3, 0.6])
def test_the_record_contains_merges_and_their_reasons(tau: float):
    _, _, result = run(small_federation("logistic"), "stocfl", tau=tau, participation=0.3)
    for event in (event for record in result.records for event in record.get("events", ())):
        unites = any(len(parents) > 1 for parents in event["parents"])
        assert event["kind"] == ("merge" if unites else "arrival")
        assert ("merge, cosine" in event["reason"]) == unites


def test_onboarding_rows_depend_neither_on_the_round_nor_on_other_clients():
    data = small_federation("mlp")
    options = {"batch_size": 4, "local_epochs": 2, "dtype": "float64", "seed": 1}
    plan = prepare(data, "stocfl", "mlp:hidden=6", options)

    def told(round_: int, who: list[int]) -> np.ndarray:
        sent = Broadcast(round_, Clusters({}, K=1), scalars={"lr": LR})
        return plan.federation.ask(plan.tiers.onboarding_task(1), sent, np.array(who)).reply.rows["anchor"].numpy()

    everybody = told(0, list(range(9)))
    assert told(5, [7, 3]) == pytest.approx(everybody[[7, 3]], rel=1e-9, abs=1e-12)


def test_clients_with_infinite_onboarding_rows_are_named():
    """One client's features are so large that its steps on the frozen network overflow; the others continue."""
    random = np.random.default_rng(2)
    clients = {f"c{i}": (random.standard_normal((12, 4)), random.integers(0, 2, 12)) for i in range(5)}
    clients["huge"] = (clients["c0"][0] * 1e150, clients["c0"][1])
    settings = {"rounds": 2, "lr": 0.1, "batch_size": 4, "local_epochs": 1, "dtype": "float64", "tau": -1.0}
    result = coterie.fit(from_arrays(clients), "stocfl", learner="mlp:hidden=5", **settings)
    assert [record["rejected"] for record in result.records] == [["huge"], ["huge"]]
    assert [record["missing"] for record in result.records] == [[], []]
    assert "huge" not in result.assignments


def test_a_run_without_finite_onboarding_rows_says_what_to_change():
    data = from_arrays({f"c{i}": (np.full((12, 4), 1e150) * (i + 1), np.arange(12) % 2) for i in range(3)})
    with pytest.warns(DivergenceWarning, match="lower lr"):
        coterie.fit(data, "stocfl", learner="mlp:hidden=5", lr=0.1, batch_size=4, local_epochs=1, dtype="float64")


def test_rotations_are_found():
    """With the documented settings, clients that arrive one by one end in the same four clusters as all at once."""
    settings = {"tau": 0.5, "batch_size": 10, "local_epochs": 1, "evaluate_every": 100}
    for seed in (0, 1):
        data = coterie.scenario("rotated-digits", seed=seed)
        for share, rounds, compare in ((1.0, 3, "sampled"), (0.2, 15, "all")):
            given = {"rounds": rounds, "participation": share, "compare": compare, **settings}
            found = coterie.fit(data, "stocfl", seed=seed, **given)
            assert len(found.models) == 4
            assert found.records[-1]["ari"] == 1.0


def test_linked_parts_follow_chains(monkeypatch: pytest.MonkeyPatch):
    """0-3-4 form a chain of 40 degrees each, 1 and 2 have other directions; the block ends inside the chain."""
    angles = np.radians([0, 130, 220, 40, 80])
    vectors = torch.from_numpy(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    monkeypatch.setattr("coterie.tiers.procedure.BLOCK", 2)
    parts, largest = linked_parts(vectors, math.cos(math.radians(45)))
    assert [part.tolist() for part in parts] == [[0, 3, 4], [1], [2]]
    expected = [math.cos(math.radians(d)) for d in (40, 50, 140, 40)]
    assert largest == pytest.approx([*expected, -1], abs=1e-9)
