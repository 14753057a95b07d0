"""Closed forms of the linear learner against a plain gradient loop for single clients."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.linear import Linear, linear
from coterie.learners.local_training import FullBatch, MiniBatch, ProximalStep
from tests.core.make import make_block, regression_data


def plain_features(x: np.ndarray, degree: int, bias: bool) -> np.ndarray:
    columns = [
        np.prod(x[:, list(c)], axis=1)
        for power in range(1, degree + 1)
        for c in combinations_with_replacement(range(x.shape[1]), power)
    ]
    return np.stack([*columns, *([np.ones(len(x))] if bias else [])], axis=1)


def plain_change(
    learner: Linear, x: np.ndarray, y: np.ndarray, start: np.ndarray, steps: int, lr: float, prox: float
) -> np.ndarray:
    phi = plain_features(x, learner.degree, learner.bias)
    theta = start.copy()
    for _ in range(steps):
        gradient = phi.T @ (phi @ theta - y) / len(y) * (1 if learner.half else 2)
        theta = theta - lr * (gradient + prox * (theta - start))
    return theta - start


def check(learner: Linear, sizes: list[int], *, tracks: int, steps: int, lr: float, prox: float, extra: int = 0):
    data = regression_data(sizes, learner.width, seed=1)
    block = make_block(data, width=max(sizes) + extra)
    terms = plain_features(data[0][0], learner.degree, learner.bias).shape[1]
    start = np.random.default_rng(2).standard_normal((len(sizes), tracks, terms))
    theta = {"weight": torch.from_numpy(start[..., : terms - learner.bias])}
    if learner.bias:
        theta["bias"] = torch.from_numpy(start[..., -1])
    change = learner.descend(theta, block, FullBatch(steps=steps, prox=prox), lr)
    weight = change["weight"].numpy()
    found = np.concatenate([weight, change["bias"].numpy()[..., None]], axis=2) if learner.bias else weight
    for i, (x, y) in enumerate(data):
        for track in range(tracks):
            expected = plain_change(learner, x, y, start[i, track], steps, lr, prox)
            np.testing.assert_allclose(found[i, track], expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("sizes", "d"), [([3, 5, 4], 7), ([11, 9, 10], 2)], ids=["sample-space", "feature-space"])
def test_several_steps_equal_the_plain_loop(half, bias, sizes, d):
    check(Linear(d, bias=bias, half=half), sizes, tracks=2, steps=4, lr=0.07, prox=0.0)


@pytest.mark.parametrize(("sizes", "d"), [([3, 5], 7), ([11, 9], 2)], ids=["sample-space", "feature-space"])
def test_the_proximal_term_equals_the_plain_loop(sizes, d):
    check(Linear(d, bias=True), sizes, tracks=1, steps=5, lr=0.1, prox=0.7)


@pytest.mark.parametrize("degree", [2, 3])
def test_polynomial_features_equal_the_plain_loop(degree):
    check(Linear(2, bias=True, degree=degree), [5, 30], tracks=1, steps=3, lr=0.01, prox=0.0)


def test_sizes_that_are_powers_of_two_equal_the_plain_loop():
    check(Linear(3, bias=True), [4, 8, 2], tracks=2, steps=6, lr=0.125, prox=0.5)
    check(Linear(3, bias=True), [4, 8, 2], tracks=2, steps=6, lr=0.125, prox=0.5, extra=3)


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 12), min_size=1, max_size=4),
    st.integers(1, 8),
    st.integers(1, 6),
    st.integers(0, 3),
    st.booleans(),
)
def test_any_shape_equals_the_plain_loop(sizes, d, steps, extra, bias):
    check(Linear(d, bias=bias), sizes, tracks=1, steps=steps, lr=0.01, prox=0.3, extra=extra)


def test_one_step_by_hand():
    # client: x = 1, 3 and y = 2, 1; theta = 1. Residuals 1-2 = -1 and 3-1 = 2; gradient (1*-1 + 3*2) / 2 = 2.5
    block = make_block([(np.array([[1.0], [3.0]]), np.array([2.0, 1.0]))])
    theta = {"weight": torch.ones(1, 1, 1, dtype=torch.float64)}
    step = FullBatch(steps=1)
    assert Linear(1).descend(theta, block, step, 0.5)["weight"].item() == -1.25
    assert Linear(1, half=False).descend(theta, block, step, 0.5)["weight"].item() == -2.5


def test_two_steps_by_hand_with_a_proximal_term():
    # second step at theta = -0.25: residuals -0.25-2 = -2.25 and -0.75-1 = -1.75; gradient (-2.25 - 5.25) / 2 = -3.75
    # prox 1: -3.75 + (-0.25 - 1) = -5; change -1.25 + 0.5 * 5 = 1.25
    block = make_block([(np.array([[1.0], [3.0]]), np.array([2.0, 1.0]))])
    theta = {"weight": torch.ones(1, 1, 1, dtype=torch.float64)}
    assert Linear(1).descend(theta, block, FullBatch(steps=2, prox=1.0), 0.5)["weight"].item() == 1.25


@pytest.mark.parametrize(("half", "factor"), [(True, 0.5), (False, 1.0)])
def test_losses_by_hand(half, factor):
    learner = Linear(2, bias=True, half=half)
    theta = {"weight": torch.tensor([[2.0, -1.0]]), "bias": torch.tensor([0.5])}
    x, y = torch.tensor([[[1.0, 3.0], [0.0, 0.0]]]), torch.tensor([[1.5, 0.0]])
    # predictions 2 - 3 + 0.5 = -0.5 and 0.5; errors -2 and 0.5; squares 4 and 0.25
    assert learner.outputs(theta, x).tolist() == [[-0.5, 0.5]]
    assert learner.losses(theta, x, y).tolist() == [[4 * factor, 0.25 * factor]]


def test_losses_of_all_models_equal_those_of_each():
    learner = Linear(3, bias=True, degree=2)
    block = make_block(regression_data([4, 6], 3))
    models = learner.start([1, 2, 3], torch.float64)
    table = learner.score(models, block).losses
    assert table.shape == (2, 6, 3)
    for s in range(3):
        one = {name: p[s : s + 1].expand(2, *p.shape[1:]) for name, p in models.items()}
        torch.testing.assert_close(table[..., s], learner.losses(one, block.x, block.y))


def test_images_are_flattened():
    learner = linear(Profile((2, 3), None))
    assert learner.width == 6
    assert learner.outputs({"weight": torch.ones(1, 6)}, torch.ones(1, 4, 2, 3)).tolist() == [[6, 6, 6, 6]]


def test_monomials_of_two_features_by_hand():
    # degree 2 of (a, b) = (2, 3): a, b, aa, ab, bb, then the bias column
    assert Linear(2, bias=True, degree=2).features(torch.tensor([[[2.0, 3.0]]])).tolist() == [[[2, 3, 4, 6, 9, 1]]]


def test_an_initial_model_is_random_scaled_and_without_bias():
    models = linear(Profile((400,), None), bias=True, scale=3.0).start([5, 6], torch.float64)
    assert models["bias"].tolist() == [0, 0]
    assert models["weight"].shape == (2, 400)
    assert not torch.equal(models["weight"][0], models["weight"][1])
    # each entry N(0, 9 / 400), so the norm is about 3; its standard error is 3 / sqrt(800) = 0.1
    assert models["weight"].norm(dim=1).tolist() == pytest.approx([3, 3], abs=0.5)


def test_mini_batches_of_everything_equal_the_closed_form():
    block = make_block(regression_data([6, 6], 3))
    theta = {"weight": torch.rand(2, 1, 3, dtype=torch.float64)}
    closed = Linear(3).descend(theta, block, FullBatch(steps=3, prox=0.2), 0.1)["weight"]
    batched = Linear(3).descend(theta, block, MiniBatch(batch_size=6, steps=3, prox=0.2), 0.1)["weight"]
    torch.testing.assert_close(closed, batched, rtol=1e-10, atol=1e-10)


def test_classes_are_refused():
    with pytest.raises(ConfigError, match="use logistic, or pass float targets"):
        make_learner("linear", Profile((2,), 3))


def test_degree_zero_is_refused():
    with pytest.raises(ConfigError, match="degree must be at least 1, got 0"):
        make_learner("linear:degree=0", Profile((2,), None))


def proximal_change(learner: Linear, x: np.ndarray, y: np.ndarray, start: np.ndarray, lr: float) -> np.ndarray:
    """argmin of the mean loss plus |theta - start|^2 / (2 lr), by the normal equations."""
    phi = plain_features(x, learner.degree, learner.bias)
    factor = (1 if learner.half else 2) / len(y)
    matrix = factor * phi.T @ phi + np.eye(phi.shape[1]) / lr
    return np.linalg.solve(matrix, factor * phi.T @ y + start / lr) - start


@pytest.mark.parametrize("half", [True, False])
@pytest.mark.parametrize(("sizes", "d"), [([3, 5, 1], 7), ([11, 9, 10], 2)], ids=["sample-space", "feature-space"])
def test_the_proximal_step_is_solved(sizes, d, half):
    learner = Linear(d, bias=True, half=half)
    data = regression_data(sizes, d, seed=3)
    block = make_block(data, width=max(sizes) + 1)
    start = np.random.default_rng(4).standard_normal((len(sizes), 2, d + 1))
    theta = {"weight": torch.from_numpy(start[..., :-1]), "bias": torch.from_numpy(start[..., -1])}
    change = learner.descend(theta, block, ProximalStep(), lr=0.7)
    found = np.concatenate([change["weight"].numpy(), change["bias"].numpy()[..., None]], axis=2)
    for i, (x, y) in enumerate(data):
        for track in range(2):
            expected = proximal_change(learner, x, y, start[i, track], 0.7)
            np.testing.assert_allclose(found[i, track], expected, rtol=1e-9, atol=1e-10)


def test_a_proximal_step_by_hand():
    # one sample x = 2, y = 4 at theta = 0 with eta = 1/2: minimise (4 - 2 t)^2 / 2 + t^2, so t = 8 / (4 + 2)
    block = make_block([(np.array([[2.0]]), np.array([4.0]))])
    change = Linear(1).descend({"weight": torch.zeros(1, 1, 1, dtype=torch.float64)}, block, ProximalStep(), 0.5)
    assert change["weight"].item() == pytest.approx(8 / 6)


@pytest.mark.parametrize(
    "training", [FullBatch(steps=1), FullBatch(steps=4), FullBatch(steps=3, prox=0.2), ProximalStep()], ids=str
)
@pytest.mark.parametrize(("sizes", "d"), [([3, 5, 4], 7), ([11, 9, 10], 2)], ids=["sample-space", "feature-space"])
def test_models_trained_together_equal_one_pass_for_each_model(sizes, d, training):
    learner = linear(Profile((d,), None), bias=True)
    block = make_block(regression_data(sizes, d, seed=1), width=max(sizes))
    random = torch.Generator().manual_seed(3)
    shares = torch.rand(*block.y.shape, 3, dtype=torch.float64, generator=random)
    mass = torch.rand(len(sizes), 3, dtype=torch.float64, generator=random)
    models = learner.start([1, 2, 3], torch.float64)
    rows = torch.arange(3).repeat(len(sizes), 1)
    together = learner.contribute(models, rows, replace(block, shares=shares), training, 0.1, mass, None)
    assert learner.trains_together(training)
    for model in range(3):
        part, one = replace(block, focus=shares[..., model]), slice(model, model + 1)
        alone = learner.contribute(models, rows[:, one], part, training, 0.1, mass[:, one], None)
        for name, value in alone.sums.items():
            torch.testing.assert_close(together.sums[name][one], value[one], rtol=1e-12, atol=1e-14)
