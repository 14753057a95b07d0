"""Groups found once, before training: PACFL and FedGroup against plain loops, by hand, and in whole runs."""

from __future__ import annotations

from itertools import combinations, product

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles

import coterie
from coterie.core.blocks import cut
from coterie.errors import ConfigError, TrainingError
from coterie.methods.fedgroup import nearest_by_cosine
from coterie.server.clustering.agglomerate import agglomerate, merges
from coterie.testing.checks import small_federation
from coterie.tiers.distance import CosineGaps, PrincipalAngles, decomposed_cosines
from coterie.tiers.tree_test import cut_tree
from coterie.training.fitting import initialize
from coterie.training.planning import Plan, prepare


def turn(degrees: float) -> tuple[float, float]:
    return np.cos(np.radians(degrees)), np.sin(np.radians(degrees))


def apart(distance: PrincipalAngles, *bases: np.ndarray) -> np.ndarray:
    """Return the distances of clients with these bases (d, p), one part each."""
    return distance.server_pairwise({"subspace": torch.from_numpy(np.stack(bases))[:, None]})


# ---- principal angles ---------------------------------------------------------------------------------------------


def test_the_angle_of_two_lines_whatever_their_signs():
    c, s = turn(30)
    lines = [np.array([[1.0], [0.0]]), np.array([[c], [s]]), np.array([[-c], [-s]]), np.array([[0.0], [1.0]])]
    found = apart(PrincipalAngles(1), *lines)
    assert found == pytest.approx(
        np.array([[0, 30, 30, 90], [30, 0, 0, 60], [30, 0, 0, 60], [90, 60, 60, 0]]), abs=3e-6
    )
    assert (np.diag(found) == 0).all()
    assert found[0, [1, 3]] == pytest.approx([30, 90], rel=1e-9)


def test_planes_in_four_dimensions():
    # e1 is turned by 20 degrees towards e3 and e2 by 50 towards e4: these are the principal angles of the planes
    (c, s), (C, S) = turn(20), turn(50)
    plane, turned = np.eye(4)[:, :2], np.array([[c, 0], [0, C], [s, 0], [0, S]])
    mixed = turned @ np.array([turn(77), turn(167)])  # another basis of the same plane
    for other in (turned, mixed):
        assert apart(PrincipalAngles(2), plane, other)[0, 1] == pytest.approx(20, rel=1e-9)
        assert apart(PrincipalAngles(2, angle="sum"), plane, other)[0, 1] == pytest.approx(70, rel=1e-9)


def test_planes_that_share_a_line():
    c, s = turn(40)
    one, other = np.eye(3)[:, :2], np.array([[1, 0], [0, c], [0, s]])
    assert apart(PrincipalAngles(2), one, other)[0, 1] == pytest.approx(0, abs=3e-6)
    assert apart(PrincipalAngles(2, angle="sum"), one, other)[0, 1] == pytest.approx(40, abs=3e-6)


def test_a_line_and_a_plane_have_one_angle():
    c, s = turn(35)
    line, plane = np.array([[c, 0], [0, 0], [s, 0]]), np.eye(3)[:, :2]
    for angle in ("least", "sum"):
        assert apart(PrincipalAngles(2, angle=angle), line, plane)[0, 1] == pytest.approx(35, rel=1e-9)


PADDED = (1, 2, 13, 14, 17, 18, 29, 30, 5)
"""Numbers of samples that share padded blocks; small clients lack classes."""


def plain_bases(x: np.ndarray, p: int) -> np.ndarray:
    """Return the first p left singular vectors of the d x n matrix of samples, or all if there are fewer."""
    u, s, _ = np.linalg.svd(x.reshape(len(x), -1).T, full_matrices=False)
    return u[:, : min(p, int((s > 1e-10 * s[0]).sum()))]


def samples(data: coterie.FederatedDataset) -> list[tuple[np.ndarray, np.ndarray]]:
    train = data.train
    return [(train.x[a:b].double().numpy(), train.y[a:b].numpy())
        for a, b in zip(train.starts, train.stops, strict=True)]  # fmt: skip


def subspaces_of(data: coterie.FederatedDataset, distance: PrincipalAngles) -> torch.Tensor:
    """Return the rows of all clients, in order."""
    rows = torch.zeros(len(data.clients), 3 if distance.per_class else 1, 16, distance.p, dtype=torch.float64)
    for block in cut(data.train, data.train.hashes, 0):
        rows[torch.from_numpy(block.positions)] = distance.client_summary(None, block, 3)["subspace"].double()
    return rows


@pytest.mark.parametrize("per_class", [False, True])
def test_a_client_sends_the_leading_directions_of_its_own_samples(per_class: bool):
    data = small_federation("logistic", PADDED)
    assert any(block.mask is not None for block in cut(data.train, data.train.hashes, 0))
    rows = subspaces_of(data, PrincipalAngles(3, per_class)).numpy()
    for row, (x, y) in zip(rows, samples(data), strict=True):
        parts = [x[y == c] for c in range(3)] if per_class else [x]
        for found, part in zip(row, parts, strict=True):
            plain = plain_bases(part, 3) if len(part) else np.zeros((16, 0))
            assert (found[:, plain.shape[1] :] == 0).all()  # fewer samples than directions
            assert found @ found.T == pytest.approx(plain @ plain.T, abs=1e-9)  # the same space, up to signs


def plain_angles(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.degrees(subspace_angles(one, other))


@pytest.mark.parametrize("angle", ["least", "sum"])
@pytest.mark.parametrize("per_class", [False, True])
def test_distances_by_a_plain_loop(per_class: bool, angle: str):
    data = small_federation("logistic", PADDED)
    distance = PrincipalAngles(3, per_class, angle)
    found = distance.server_pairwise({"subspace": subspaces_of(data, distance)})
    bases = [
        {c: plain_bases(x[y == c], 3) for c in np.unique(y)} if per_class else {0: plain_bases(x, 3)}
        for x, y in samples(data)
    ]
    for i, j in combinations(range(len(bases)), 2):
        one, other = bases[i], bases[j]
        if angle == "least":
            plain = min(plain_angles(a, b).min() for a, b in product(one.values(), other.values()))
        else:
            both = one.keys() & other.keys()
            plain = np.mean([plain_angles(one[c], other[c]).sum() for c in both]) if both else 270
        assert found[i, j] == found[j, i] == pytest.approx(plain, rel=1e-9)
    assert (np.diag(found) == 0).all()


# ---- agglomeration ------------------------------------------------------------------------------------------------

LINE = np.abs(np.subtract.outer([0.0, 1.0, 3.0, 10.0], [0.0, 1.0, 3.0, 10.0]))


def test_agglomeration_stops_where_the_nearest_are_too_far_apart():
    # 0 and 1 at 1; 3 with them at (3 + 2) / 2 or 3; 10 with all at (10 + 9 + 7) / 3 or 10
    assert agglomerate(LINE, "average").heights == pytest.approx([1, 2.5, 26 / 3], rel=1e-12)
    assert agglomerate(LINE, "complete").heights == pytest.approx([1, 3, 10], rel=1e-12)
    for limit, labels in ((0.9, [0, 1, 2, 3]), (2.4, [0, 0, 1, 2]), (2.6, [0, 0, 0, 1]), (9, [0, 0, 0, 0])):
        assert agglomerate(LINE, "average", limit=limit).labels.tolist() == labels
    assert agglomerate(LINE, "complete", limit=2.6).labels.tolist() == [0, 0, 1, 2]


def test_agglomeration_into_a_given_number():
    for K, labels in ((1, [0, 0, 0, 0]), (2, [0, 0, 0, 1]), (3, [0, 0, 1, 2]), (4, [0, 1, 2, 3])):
        found = agglomerate(LINE, "average", K=K)
        assert (found.K, found.labels.tolist()) == (K, labels)
    assert agglomerate(np.zeros((3, 3)), "complete", K=2).K == 2  # also if all distances are equal
    assert agglomerate(np.zeros((1, 1)), "average", limit=5.0).labels.tolist() == [0]
    with pytest.raises(ConfigError, match="between 1 and the 4 clients"):
        agglomerate(LINE, "average", K=5)


# ---- updates ------------------------------------------------------------------------------------------------------


def test_decomposed_cosines_by_hand():
    # total lengths 5 along e1 and 2 along e2: these are the directions; the last update is zero
    updates = torch.tensor([[3.0, 0, 0], [-4, 0, 0], [0, 2, 0], [0, 0, 0]])
    found = decomposed_cosines(updates, 2)
    assert found.abs().tolist() == [[1, 0], [1, 0], [0, 1], [0, 0]]
    assert found[0, 0] == -found[1, 0]


def test_decomposed_cosines_by_a_plain_svd():
    updates = np.random.default_rng(0).standard_normal((7, 12))
    directions = np.linalg.svd(updates.T, full_matrices=False)[0]
    found = decomposed_cosines(torch.from_numpy(updates), 3).numpy()
    for i, k in product(range(7), range(3)):
        plain = updates[i] @ directions[:, k] / np.linalg.norm(updates[i])
        assert abs(found[i, k]) == pytest.approx(abs(plain), rel=1e-9)


def test_cosine_gaps_by_a_plain_loop():
    updates = np.random.default_rng(1).standard_normal((6, 4))
    unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    found = CosineGaps().server_pairwise({"own_change": torch.from_numpy(updates)})
    for i, j in combinations(range(6), 2):
        gaps = [abs(unit[i] @ unit[z] - unit[j] @ unit[z]) for z in range(6) if z not in (i, j)]
        assert found[i, j] == found[j, i] == pytest.approx(sum(gaps) / 4, rel=1e-9)
    assert (CosineGaps().server_pairwise({"own_change": torch.eye(2)}) == 0).all()  # no third client to compare with


def test_joining_is_by_cosine_and_not_by_length():
    # cosines of (0.9, 1) with (10, 0) and (0.6, 0.8): 0.67 and 0.996; the products are 9 and 1.34
    means = torch.tensor([[10.0, 0.0], [0.6, 0.8]])
    assert nearest_by_cosine(torch.tensor([[0.9, 1.0], [1.0, 0.1]]), means).tolist() == [1, 0]


def two_slopes(m: int = 12, seed: int = 0) -> coterie.FederatedDataset:
    """Linear clients with alternating models (1, 1, 1) and (-1, 1, -1), of different sizes."""
    random = np.random.default_rng(seed)
    clients, truth = {}, {}
    for i in range(m):
        x = random.standard_normal((20 + 3 * i, 3))
        slope = np.array([1.0, 1, 1]) if i % 2 == 0 else np.array([-1.0, 1, -1])
        clients[f"c{i}"], truth[f"c{i}"] = (x, x @ slope + 0.1 * random.standard_normal(len(x))), i % 2
    return coterie.from_arrays(clients, truth=truth)


def plan_of(data: coterie.FederatedDataset, **options: object) -> Plan:
    given = {"clusters": 2, "rounds": 2, "lr": 0.02, "pretrain_steps": 7, "seed": 1}
    return prepare(data, "fedgroup", None, given | options)


def pretrained(data: coterie.FederatedDataset) -> tuple[np.ndarray, np.ndarray]:
    """Return FedAvg's initial model w0, and each client's model after 7 plain steps of 0.02."""
    start = initialize(prepare(data, "fedavg", None, {"seed": 1})).state.clusters.params["weight"][0].numpy()
    models = []
    for x, y in samples(data):
        theta = start
        for _ in range(7):
            theta = theta - 0.02 * x.T @ (x @ theta - y) / len(y)
        models.append(theta)
    return start, np.stack(models)


@pytest.mark.parametrize("measure", ["edc", "madc"])
@pytest.mark.parametrize("client_weight", ["samples", "uniform"])
def test_fedgroup_by_a_plain_loop(measure: str, client_weight: str):
    data = two_slopes()
    initialized = initialize(plan_of(data, measure=measure, client_weight=client_weight))
    groups = initialized.state.choice[:, 0].numpy()
    start = initialized.state.clusters.params["weight"].numpy()
    assert all(len(np.unique(groups[data.truth == g])) == 1 for g in (0, 1))
    _, models = pretrained(data)
    for k in range(2):
        members = groups == k
        mass = data.train.sizes[members] if client_weight == "samples" else None
        assert start[k] == pytest.approx(np.average(models[members], axis=0, weights=mass), rel=1e-9)


def test_other_clients_than_founders_join_by_cosine_and_change_no_model():
    data = two_slopes()
    initialized = initialize(plan_of(data, founders=6, client_weight="uniform"))
    groups, found = initialized.state.choice[:, 0].numpy(), initialized.state.clusters.params["weight"].numpy()
    start, models = pretrained(data)
    assert initialized.found["grouping"]["founders"] == 6
    # the founders are six clients whose means are the models
    fits = [
        chosen
        for chosen in combinations(range(12), 6)
        if len({groups[i] for i in chosen}) == 2
        and all(
            np.allclose(models[[i for i in chosen if groups[i] == k]].mean(axis=0), found[k], rtol=1e-9)
            for k in range(2)
        )
    ]
    assert len(fits) == 1
    for i in set(range(12)) - set(fits[0]):
        update, means = models[i] - start, found - start
        cosines = [update @ mean / np.linalg.norm(update) / np.linalg.norm(mean) for mean in means]
        assert groups[i] == np.argmax(cosines)


def test_founders_do_not_depend_on_other_clients():
    data = two_slopes()
    arrays = dict(zip(data.clients, samples(data), strict=True))

    def models(without: str) -> torch.Tensor:
        some = coterie.from_arrays({c: pair for c, pair in arrays.items() if c != without})
        return initialize(plan_of(some, founders=6)).state.clusters.params["weight"]

    whole = models("no client")
    same = [torch.allclose(models(client), whole, rtol=1e-9) for client in arrays]
    assert sum(same) == 6  # clients that are not founders may be absent


def test_clients_whose_pretraining_diverges_join_by_their_loss():
    data = two_slopes()
    arrays = dict(zip(data.clients, samples(data), strict=True))
    x, y = arrays["c3"]
    arrays["c3"] = (x * 1e60, y * 1e60)
    initialized = initialize(plan_of(coterie.from_arrays(arrays)))
    groups = initialized.state.choice[:, 0].tolist()
    assert initialized.found["grouping"]["diverged"] == 1
    assert initialized.found["grouping"]["exchanges"] == 2
    assert groups[1::2] == [groups[1]] * 6
    assert groups[0::2] == [1 - groups[1]] * 6


def test_no_client_is_left_after_pretraining():
    arrays = {c: (x * 1e60, y * 1e60) for c, (x, y) in zip("abcd", samples(two_slopes(4)), strict=True)}
    with pytest.raises(TrainingError, match=r"diverged for all 4 clients.*smaller lr"):
        initialize(plan_of(coterie.from_arrays(arrays)))


# ---- whole runs ---------------------------------------------------------------------------------------------------


def swapped_digits(clients: int = 16, seed: int = 0) -> coterie.FederatedDataset:
    """Upright digits; every second client has labels 9 - y."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(seed).permutation(1792).reshape(clients, -1)
    x, y = digits.images[order] / 16, digits.target[order]
    pairs = {f"c{i}": (x[i].astype(np.float32), y[i] if i % 2 == 0 else 9 - y[i]) for i in range(clients)}
    return coterie.from_arrays(pairs, truth={f"c{i}": i % 2 for i in range(clients)})


NETWORK = {"learner": "mlp:hidden=32", "rounds": 3, "lr": 0.5}


@pytest.mark.parametrize("seed", range(3))
def test_rotated_digits_are_separated(seed: int):
    data = coterie.scenario("rotated-digits", clients=24, seed=seed)
    for method, options in (
        ("pacfl", {}),
        ("pacfl", {"per_class": True, "clusters": 4}),
        ("fedgroup", {"clusters": 4}),
    ):
        result = coterie.fit(data, method, rounds=3, seed=seed, **options)
        assert (len(result.models), result.metrics["ari"]) == (4, 1.0), (method, options)


def test_updates_detect_swapped_labels_and_samples_do_not():
    data = swapped_digits()
    for options in ({}, {"per_class": True}):
        assert len(coterie.fit(data, "pacfl", **NETWORK, **options).models) == 1, options
        assert abs(coterie.fit(data, "pacfl", clusters=2, **NETWORK, **options).metrics["ari"]) < 0.3, options
    for measure in ("edc", "madc"):
        assert coterie.fit(data, "fedgroup", clusters=2, measure=measure, **NETWORK).metrics["ari"] == 1, measure


def test_class_by_class_sums_of_angles_see_swapped_labels():
    found = coterie.fit(swapped_digits(), "pacfl", clusters=2, per_class=True, angle="sum", **NETWORK)
    assert found.metrics["ari"] == 1


def test_grouping_by_angles_reports_its_results_and_costs():
    data = coterie.scenario("rotated-digits", clients=24, seed=0)
    metrics = coterie.fit(data, "pacfl", rounds=1).metrics
    grouping = metrics["grouping"]
    assert (grouping["clusters"], grouping["answered"], grouping["exchanges"]) == (4, 24, 2)
    assert grouping["bytes_up"] == 24 * 64 * 3 * 4 * (
        1 + 2
    )  # three directions of 64 pixels: of all samples, of each half
    assert grouping["bytes_down"] == 2 * 24 * 8
    assert grouping["widest"] < grouping["nearest"]
    accepted = [test["value"] < test["threshold"] for test in grouping["tests"]]
    assert sum(accepted) == 3, "three cuts make four groups"
    assert metrics["exchanges"] == 3
    trained = coterie.fit(data, "oracle", rounds=1).metrics
    assert metrics["bytes_up"] == trained["bytes_up"] + grouping["bytes_up"]


@pytest.mark.parametrize("angle", ["least", "sum"])
def test_similar_clients_form_one_group(angle):
    """The tests find the groups; with a limit of 7 degrees, small clients would be separate groups."""
    found = []
    for seed in range(8):
        random = np.random.default_rng(seed)
        clients = {f"c{i}": (random.standard_normal((12, 10)), random.integers(0, 2, 12)) for i in range(12)}
        data = coterie.from_arrays(clients)
        found.append(len(coterie.fit(data, "pacfl", rounds=1, angle=angle, learner="logistic").models))
    assert found == [1] * 8


def test_a_tree_is_cut_by_hand():
    """Four points 1, 1, -1, -1 on a line with equal halves; the parts predict exactly, the whole by its mean."""
    points = np.array([1.0, 1.0, -1.0, -1.0])
    products = np.outer(points, points)
    tree = merges(np.abs(points[:, None] - points), "average")
    cut = cut_tree(tree, products, products, np.ones(4), rate=0.05)
    # without itself a client's mean is (1 - 1 - 1) / 3 = -1/3 of the others: (1 + 1/3)^2 against 0
    assert cut.tests[0].gain == pytest.approx(16 / 9)
    # without spread there is no t-test; four random signs are positive with probability 1/16, and two tests count
    assert cut.tests[0].p == 2 / 16
    noisy = products + np.diag([0.1, -0.1, 0.05, 0.0]) + 0.1 * np.array([[0, 1, 2, 0]] * 4)
    assert cut_tree(tree, products, noisy, np.ones(4), rate=0.05).labels.tolist() == [0, 0, 1, 1]


def test_beta_decides_the_number_of_clusters():
    data = coterie.scenario("rotated-digits", clients=24, seed=0)
    assert [len(coterie.fit(data, "pacfl", rounds=1, beta=beta).models) for beta in (0, 7, 20, 90)] == [24, 4, 2, 1]


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("pacfl", {"per_class": True}, "per_class needs labels that are classes"),
        ("pacfl", {"init": "odcl"}, "init has no meaning for method pacfl"),
        ("pacfl", {"directions": 0}, "directions must be a whole number at least 1"),
        ("pacfl", {"clusters": 13}, "only 12 clients"),
        ("ifca", {"init": "pacfl"}, "finds groups but no models"),
        ("fedgroup", {"clusters": 2, "founders": 1}, "clusters must be between 1 and the number of points"),
    ],
)
def test_mistakes(method: str, options: dict, words: str):
    with pytest.raises(ConfigError, match=words):
        coterie.fit(two_slopes(), method, rounds=1, **options)
