"""Local empirical risk minimisation: by hand, against scikit-learn and a plain loop, and where there is no minimum."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression

from coterie.core.dataset import Profile
from coterie.learners.linear import linear
from coterie.learners.logistic import Logistic, logistic
from coterie.learners.minimum import Solved, minimise
from coterie.learners.projected import ProjectedSgd
from tests.core.make import make_block


def solve(learner, clients) -> tuple[dict[str, np.ndarray], Solved]:
    solved = minimise(learner.glm(make_block(clients)))
    return {name: value.numpy() for name, value in learner.from_coefficients(solved.theta).items()}, solved


def classes(random: np.random.Generator, n: int, d: int, C: int) -> tuple[np.ndarray, np.ndarray]:
    x = random.standard_normal((n, d))
    y = (x @ random.standard_normal((d, C)) + random.gumbel(size=(n, C))).argmax(axis=1)
    y[:C] = np.arange(C)  # every class is there
    return x, y


def objective(learner: Logistic, model: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> float:
    """Return the mean cross-entropy plus l2/2 times the squared weights, computed sample by sample."""
    weight = np.stack([np.zeros_like(model["weight"]), model["weight"]]) if learner.binary else model["weight"]
    bias = model.get("bias", np.zeros(())) if learner.bias else 0.0
    bias = np.array([0.0, float(bias)]) if learner.binary else bias
    total = 0.0
    for row, label in zip(x, y, strict=True):
        logits = weight @ row + bias
        total += np.log(np.exp(logits).sum()) - logits[label]
    return total / len(x) + learner.l2 / 2 * float((model["weight"] ** 2).sum())


def test_least_squares_by_hand():
    # theta = (1*2 + 2*3) / (1 + 4) = 8/5
    model, _ = solve(linear(Profile((1,), None)), [(np.array([[1.0], [2.0]]), np.array([2.0, 3.0]))])
    assert model["weight"][0, 0] == pytest.approx(1.6, rel=1e-12)


def test_least_squares_of_minimum_norm_by_hand():
    # one sample, 3 a + 4 b = 10: the shortest solution is 10 / 25 * (3, 4)
    model, _ = solve(linear(Profile((2,), None)), [(np.array([[3.0, 4.0]]), np.array([10.0]))])
    assert model["weight"][0] == pytest.approx([1.2, 1.6], rel=1e-12)


@pytest.mark.parametrize("bias", [True, False])
def test_clients_of_different_sizes_are_solved_as_each_alone(bias: bool):
    random = np.random.default_rng(0)
    clients = [(random.standard_normal((n, 6)), random.standard_normal(n)) for n in (1, 3, 6, 9, 40)]
    model, solved = solve(linear(Profile((6,), None), bias=bias), clients)
    assert bool(solved.found.all())
    for i, (x, y) in enumerate(clients):
        phi = np.hstack([x, np.ones((len(x), 1))]) if bias else x
        expected = np.linalg.lstsq(phi, y, rcond=None)[0]
        found = np.append(model["weight"][i], model["bias"][i]) if bias else model["weight"][i]
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_repeated_samples_leave_the_shortest_solution():
    x = np.repeat(np.array([[1.0, 1.0], [2.0, 2.0]]), 3, axis=0)  # rank one: a + b = 2
    model, _ = solve(linear(Profile((2,), None)), [(x, x[:, 0] * 2)])
    assert model["weight"][0] == pytest.approx([1.0, 1.0], rel=1e-9)


def test_a_binary_minimum_by_hand():
    # three samples x = 1 with labels 1, 1, 0 and no penalty: sigmoid(theta) = 2/3, so theta = log 2
    learner = logistic(Profile((1,), 2), bias=False)
    model, solved = solve(learner, [(np.ones((3, 1)), np.array([1, 1, 0]))])
    assert bool(solved.found.all())
    assert model["weight"][0, 0] == pytest.approx(np.log(2), rel=1e-9)


@pytest.mark.parametrize("C", [2, 4])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("n", "d"), [(60, 5), (12, 40)])
def test_logistic_against_scikit_learn(C: int, bias: bool, n: int, d: int):
    random = np.random.default_rng(C + n)
    clients = [classes(random, size, d, C) for size in (n, n - 3, n + 5)]
    learner = logistic(Profile((d,), C), l2=0.03, bias=bias)
    model, solved = solve(learner, clients)
    assert bool(solved.found.all())
    for i, (x, y) in enumerate(clients):
        other = LogisticRegression(C=1 / (0.03 * len(x)), fit_intercept=bias, tol=1e-12, max_iter=10_000).fit(x, y)
        expected = other.coef_[0] if C == 2 else other.coef_
        assert model["weight"][i] == pytest.approx(expected, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("C", [2, 3])
def test_no_step_from_the_minimum_goes_down(C: int):
    random = np.random.default_rng(3)
    x, y = classes(random, 9, 15, C)
    learner = logistic(Profile((15,), C), l2=0.1)
    model, _ = solve(learner, [(x, y)])
    one = {name: value[0] for name, value in model.items()}
    least = objective(learner, one, x, y)
    for _ in range(50):
        near = {name: value + 1e-3 * random.standard_normal(value.shape) for name, value in one.items()}
        assert objective(learner, near, x, y) > least


def test_the_logits_of_several_classes_are_centred():
    x, y = classes(np.random.default_rng(1), 50, 4, 3)
    model, _ = solve(logistic(Profile((4,), 3)), [(x, y)])
    assert model["weight"][0].sum(axis=0) == pytest.approx(np.zeros(4), abs=1e-12)
    assert model["bias"][0].sum() == pytest.approx(0, abs=1e-12)


def test_separable_labels_have_no_minimum_without_a_penalty():
    apart = (np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 0, 1, 1]))
    mixed = (np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0, 1, 0, 1]))
    _, solved = solve(logistic(Profile((1,), 2)), [apart, mixed])
    assert solved.found.tolist() == [False, True]
    _, solved = solve(logistic(Profile((1,), 2), l2=0.01), [apart, mixed])
    assert solved.found.tolist() == [True, True]


def test_fewer_samples_than_coefficients_have_no_minimum_without_a_penalty():
    x, y = classes(np.random.default_rng(0), 5, 30, 2)
    assert not bool(solve(logistic(Profile((30,), 2)), [(x, y)])[1].found.any())


@pytest.mark.parametrize("C", [2, 3])
def test_a_missing_class_is_solved_with_a_penalised_bias(C: int):
    # the same as a constant feature and no bias: there the penalty holds everything
    x = np.random.default_rng(0).standard_normal((8, 2))
    y = np.arange(8) % (C - 1)
    model, solved = solve(logistic(Profile((2,), C), l2=0.1), [(x, y)])
    constant = np.hstack([x, np.ones((8, 1))])
    other, _ = solve(logistic(Profile((3,), C), l2=0.1, bias=False), [(constant, y)])
    assert bool(solved.found.all())
    assert np.concatenate([model["weight"][0], model["bias"][0][..., None]], axis=-1) == pytest.approx(
        other["weight"][0], rel=1e-8, abs=1e-10
    )


# ---- projected SGD -------------------------------------------------------------------------------------------------


def plain_sgd(x, y, rows, mu: float, radius: float) -> list[np.ndarray]:
    theta, path = np.zeros(x.shape[1]), []
    for t, row in enumerate(rows, 1):
        theta = theta - (x[row] @ theta - y[row]) * x[row] / (mu * t)
        length = np.linalg.norm(theta)
        theta = theta * radius / length if length > radius else theta
        path.append(theta)
    return path


@pytest.mark.parametrize("output", ["last", "average"])
def test_projected_sgd_against_a_plain_loop(output):
    from coterie.learners.projected import _drawn

    random = np.random.default_rng(0)
    clients = [(random.standard_normal((n, 3)), random.standard_normal(n)) for n in (4, 7)]
    block = make_block(clients)
    steps = 1500  # more than are drawn at once
    found = ProjectedSgd(radius=0.8, steps=steps, mu=0.5, output=output).run(
        linear(Profile((3,), None)).glm(block), block.keys
    )
    sizes = np.array([4, 7])
    rows = np.hstack(
        [_drawn(block.keys, sizes, 0, 1024).numpy(), _drawn(block.keys, sizes, 1024, steps - 1024).numpy()]
    )
    for i, (x, y) in enumerate(clients):
        assert set(rows[i]) == set(range(len(x)))
        path = plain_sgd(x, y, rows[i], 0.5, 0.8)
        weights = np.arange(1, steps + 1)
        expected = path[-1] if output == "last" else weights @ np.stack(path) / weights.sum()
        assert found[i, :, 0].numpy() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_projected_sgd_comes_near_the_minimum_as_1_over_T():
    random = np.random.default_rng(1)
    clients = [(random.standard_normal((50, 3)), random.standard_normal(50)) for _ in range(30)]
    block = make_block(clients)
    problem = linear(Profile((3,), None)).glm(block)
    exact = minimise(problem).theta
    errors = [
        float(((ProjectedSgd(radius=3.0, steps=T).run(problem, block.keys) - exact) ** 2).sum(dim=1).mean())
        for T in (500, 5000)
    ]
    assert 4 < errors[0] / errors[1] < 25  # ten, up to chance


def test_the_strong_convexity_of_a_client():
    # X^T X / n = diag(4, 1) / 2; without the 1/2 in the loss twice that; one sample in two dimensions has none
    block = make_block([(np.array([[2.0, 0.0], [0.0, 1.0]]), np.zeros(2))])
    assert linear(Profile((2,), None)).glm(block).convexity.tolist() == [0.5]
    assert linear(Profile((2,), None), half=False).glm(block).convexity.tolist() == [1.0]
    single = make_block([(np.array([[2.0, 0.0]]), np.zeros(1))])
    assert linear(Profile((2,), None)).glm(single).convexity.tolist() == [0.0]
    labels = make_block([(np.zeros((2, 2)), np.array([0, 1]))])
    assert logistic(Profile((2,), 2), l2=0.3).glm(labels).convexity.tolist() == [0.3]


def test_float32_samples_are_solved_in_float64():
    x, y = np.float32(np.random.default_rng(0).standard_normal((9, 4))), np.ones(9, dtype=np.float32)
    assert minimise(linear(Profile((4,), None)).glm(make_block([(x, y)]))).theta.dtype == torch.float64
