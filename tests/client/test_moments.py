"""Client side of moment descent against plain loops over pairs of samples."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.client.tasks import AnchorStep, FeatureProducts, HeldOutChoice, MomentProduct
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import Broadcast
from coterie.data.arrays import stack_shard
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.linear import Linear

SIZES = [1, 2, 5, 3, 5]
A, P, Q = 3, 4, 2
RANDOM = np.random.default_rng(0)
X = RANDOM.standard_normal((sum(SIZES), P))
Y = RANDOM.standard_normal(sum(SIZES))
THETA, BASIS = RANDOM.standard_normal((A, P)), RANDOM.standard_normal((A, P, Q))
STOPS = np.cumsum(SIZES)
CLIENTS = [(X[b - n : b], Y[b - n : b]) for b, n in zip(STOPS, SIZES, strict=True)]


def shard():
    return stack_shard([f"c{i}" for i in range(len(SIZES))], X, Y, SIZES)


def product(moments: str, turned: bool = False, copies: np.ndarray | None = None):
    params = {"basis": torch.from_numpy(BASIS)} | ({} if copies is not None else {"anchor": torch.from_numpy(THETA)})
    each = {} if copies is None else {"copies": torch.from_numpy(copies)}
    sent = Broadcast(-1, Clusters(params, A), each=each)
    return MomentProduct(moments, turned).run(ClientGroup(Linear(P), shard()), sent)


def gradients(x: np.ndarray, y: np.ndarray, theta: np.ndarray) -> np.ndarray:
    return (y - x @ theta)[:, None] * x


def test_all_pairs_is_the_mean_over_ordered_pairs_weighted_by_samples():
    reply = product("all-pairs")
    expected = np.zeros((A, P, Q))
    for x, y in CLIENTS:
        for a in range(A):
            eps = gradients(x, y, THETA[a])
            pairs = [np.outer(eps[i], eps[j]) for i, j in permutations(range(len(y)), 2)]
            if pairs:
                expected[a] += len(y) * np.mean(pairs, axis=0) @ BASIS[a]
    np.testing.assert_allclose(reply.sums["product"], expected, rtol=1e-10)
    assert float(reply.sums["mass"]) == 2 + 5 + 3 + 5  # the client of one sample has no pair
    assert float(reply.sums["samples"]) == 15
    np.testing.assert_allclose(float(reply.sums["energy"]), (X[1:] ** 2).sum(), rtol=1e-12)


def test_with_copies_each_factor_has_its_own_and_the_product_is_symmetric():
    copies = RANDOM.standard_normal((len(SIZES), 2, A, P))
    expected = np.zeros((A, P, Q))
    for (x, y), (one, two) in zip(CLIENTS, copies, strict=True):
        for a in range(A):
            first, second = gradients(x, y, one[a]), gradients(x, y, two[a])
            pairs = [np.outer(first[i], second[j]) for i, j in permutations(range(len(y)), 2)]
            if pairs:
                mean = np.mean(pairs, axis=0)
                expected[a] += len(y) * (mean + mean.T) / 2 @ BASIS[a]
    np.testing.assert_allclose(product("all-pairs", copies=copies).sums["product"], expected, rtol=1e-10)


@pytest.mark.parametrize("turned", [False, True])
def test_two_points_takes_the_first_two_samples(turned):
    expected = np.zeros((A, P, Q))
    for x, y in CLIENTS:
        for a in range(A):
            if len(y) > 1:
                eps = gradients(x, y, THETA[a])
                matrix = np.outer(eps[0], eps[1])
                expected[a] += (matrix.T if turned else matrix) @ BASIS[a]
    reply = product("two-points", turned)
    np.testing.assert_allclose(reply.sums["product"], expected, rtol=1e-10)
    assert float(reply.sums["mass"]) == 4


def step(x: np.ndarray, y: np.ndarray, theta: np.ndarray, basis: np.ndarray, floor=0.0, fresh=None, t=0, rule="paper"):
    each = {"anchor": torch.from_numpy(theta[None]), "basis": torch.from_numpy(basis[None])}
    each["floor"] = torch.tensor([floor], dtype=torch.float64)
    part = stack_shard(["one"], x, y, [len(y)])
    sent = Broadcast(-1, Clusters({}, 0), scalars={"step": 0.5}, each=each)
    rows = AnchorStep(fresh, t, rule).run(ClientGroup(Linear(x.shape[1]), part), sent).rows
    return rows["anchor"][0].numpy(), float(rows["sigma"][0])


def test_a_step_by_hand():
    # x = 1, 2 and y = 3, 4 at theta = 0: eps = 3, 8; the mean over pairs is 3 * 8 = 24, its root 4.899
    moved, sigma = step(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]), np.zeros(1), np.ones((1, 1)))
    assert sigma == pytest.approx(np.sqrt(24))
    assert moved == pytest.approx([np.sqrt(24) / 2])  # upwards: both gradients point there


def test_the_sign_comes_from_the_local_mean():
    moved, _ = step(np.array([[1.0], [2.0]]), np.array([-3.0, -4.0]), np.zeros(1), np.ones((1, 1)))
    assert moved == pytest.approx([-np.sqrt(24) / 2])
    moved, _ = step(np.array([[1.0], [2.0]]), np.array([-3.0, -4.0]), np.zeros(1), -np.ones((1, 1)))
    assert moved == pytest.approx([-np.sqrt(24) / 2]), "the basis has no direction of its own"


def test_an_anchor_below_the_floor_does_not_move():
    moved, sigma = step(np.array([[1.0], [2.0]]), np.array([3.0, 4.0]), np.zeros(1), np.ones((1, 1)), floor=4.9)
    assert sigma == pytest.approx(np.sqrt(24))
    assert moved == pytest.approx([0.0])


def test_a_step_in_a_subspace_against_plain_linear_algebra():
    x, y = CLIENTS[2]
    basis = np.linalg.qr(BASIS[0])[0]
    eps = gradients(x, y, THETA[0]) @ basis
    matrix = np.mean([np.outer(eps[i], eps[j]) for i, j in permutations(range(len(y)), 2)], axis=0)
    left, values, _ = np.linalg.svd(matrix)
    direction = left[:, 0] * np.sign(left[:, 0] @ eps.mean(axis=0))
    moved, sigma = step(x, y, THETA[0], basis)
    assert sigma == pytest.approx(np.sqrt(values[0]))
    np.testing.assert_allclose(moved, THETA[0] + 0.5 * np.sqrt(values[0]) * basis @ direction, rtol=1e-10)


def test_a_line_search_ends_at_the_least_squared_error_along_the_direction():
    x, y = CLIENTS[2]
    basis = np.linalg.qr(BASIS[0])[0]
    short, _ = step(x, y, THETA[0], basis)
    moved, _ = step(x, y, THETA[0], basis, rule="line-search")
    along = short - THETA[0]
    assert np.linalg.matrix_rank(np.stack([moved - THETA[0], along]), tol=1e-10) == 1
    assert (y - x @ moved) @ (x @ along) == pytest.approx(0, abs=1e-10)


def test_least_squares_in_the_subspace_against_plain_linear_algebra():
    x, y = CLIENTS[2]
    basis = BASIS[0]
    z, n = x @ basis, len(y)
    ridge = (z**2).sum() / Q * Q / n
    expected = basis @ np.linalg.solve(z.T @ z + ridge * np.eye(Q), z.T @ (y - x @ THETA[0]))
    moved, sigma = step(x, y, THETA[0], basis, rule="least-squares")
    np.testing.assert_allclose(moved, THETA[0] + expected, rtol=1e-10)
    eps = gradients(x, y, THETA[0]) @ basis
    matrix = np.mean([np.outer(eps[i], eps[j]) for i, j in permutations(range(n), 2)], axis=0)
    assert sigma == pytest.approx(np.sqrt(np.linalg.svd(matrix)[1][0]))
    stayed, _ = step(x, y, THETA[0], basis, floor=sigma, rule="least-squares")
    np.testing.assert_array_equal(stayed, THETA[0])


def test_steps_of_anchors_of_different_sizes_do_not_depend_on_each_other():
    each = {
        "anchor": torch.from_numpy(np.tile(THETA[0], (4, 1))),
        "basis": torch.from_numpy(np.tile(BASIS[0], (4, 1, 1))),
    }
    each["floor"] = torch.zeros(4, dtype=torch.float64)
    part = stack_shard([f"c{i}" for i in range(4)], X[1:], Y[1:], SIZES[1:])
    for rule in ("paper", "line-search", "least-squares"):
        sent = Broadcast(-1, Clusters({}, 0), scalars={"step": 0.5}, each=each)
        rows = AnchorStep(rule=rule).run(ClientGroup(Linear(P), part), sent).rows
        for place, (x, y) in enumerate(CLIENTS[1:]):
            alone, _ = step(x, y, THETA[0], BASIS[0], rule=rule)
            np.testing.assert_allclose(rows["anchor"][place].numpy(), alone, rtol=1e-9)


def test_feature_products_are_those_of_all_rows():
    reply = FeatureProducts().run(ClientGroup(Linear(P), shard()), Broadcast(-1, Clusters({}, 0)))
    np.testing.assert_allclose(reply.sums["products"], X.T @ X, rtol=1e-12)
    assert float(reply.sums["samples"]) == len(X)


def test_held_out_choice_against_a_plain_loop():
    members = np.array([[1, 0, 0], [0, 1, 1]])
    sent = Broadcast(
        -1, Clusters({"centre": torch.from_numpy(THETA)}, A), common={"members": torch.from_numpy(members).double()}
    )
    reply = HeldOutChoice().run(ClientGroup(Linear(P), shard()), sent)
    losses = []
    for x, y in CLIENTS[1:]:
        errors = (y - THETA @ x.T) ** 2
        halves = errors[:, ::2].mean(axis=1), errors[:, 1::2].mean(axis=1)
        own = []
        for inside in (np.array([0]), np.array([1, 2])):
            both = [other[inside[one[inside].argmin()]] for one, other in (halves, halves[::-1])]
            own.append(np.mean(both))
        losses.append(own)
    expected = np.array(losses)
    np.testing.assert_allclose(reply.sums["loss"], expected.sum(axis=0), rtol=1e-10)
    np.testing.assert_allclose(reply.sums["products"], expected.T @ expected, rtol=1e-10)
    assert float(reply.sums["clients"]) == 4  # one sample cannot be halved


def test_fresh_samples_are_paired_halves_of_the_iterations_own():
    x, y = RANDOM.standard_normal((12, P)), RANDOM.standard_normal(12)
    basis = np.linalg.qr(BASIS[0])[0]
    eps = gradients(x[6:12], y[6:12], THETA[0]) @ basis  # l = 3: iteration 1 has samples 6 to 11
    matrix = eps[:3].T @ eps[3:] / 3
    left, values, _ = np.linalg.svd(matrix)
    direction = left[:, 0] * np.sign(left[:, 0] @ eps.mean(axis=0))
    moved, sigma = step(x, y, THETA[0], basis, fresh=3, t=1)
    assert sigma == pytest.approx(np.sqrt(values[0]))
    np.testing.assert_allclose(moved, THETA[0] + 0.5 * np.sqrt(values[0]) * basis @ direction, rtol=1e-10)


def test_another_learner_is_refused():
    clusters = Clusters({"basis": torch.from_numpy(BASIS), "anchor": torch.from_numpy(THETA)}, A)
    with pytest.raises(ConfigError, match="linear regression"):
        MomentProduct("all-pairs").run(
            ClientGroup(make_learner("logistic", Profile((P,), 3)), shard()), Broadcast(-1, clusters)
        )
