"""One step of logistic regression by hand, several against a plain NumPy loop."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.descent import descend_each_track
from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.learners.logistic import logistic
from tests.core.make import class_data, make_block

ONE = FullBatch(steps=1)


def softmax(z: np.ndarray) -> np.ndarray:
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def test_a_binary_step_by_hand():
    # theta = 0, so p = 1/2 for both samples; gradient = mean of (p - y) x = ((0.5)(1) + (-0.5)(3)) / 2 = -0.5
    # gradient of the bias: (0.5 - 0.5) / 2 = 0
    block = make_block([(np.array([[1.0], [3.0]]), np.array([0, 1]))])
    theta = {"weight": torch.zeros(1, 1, 1, dtype=torch.float64), "bias": torch.zeros(1, 1, dtype=torch.float64)}
    change = logistic(Profile((1,), 2)).descend(theta, block, ONE, 0.25)
    assert change["weight"].item() == pytest.approx(0.125, rel=1e-12)
    assert change["bias"].item() == pytest.approx(0.0, abs=1e-12)


def test_the_penalty_pulls_weights_and_not_the_bias():
    # x = 0: the loss does not depend on the weight; l2 = 2 adds 2 * weight = 2 * 3 = 6 to its gradient
    # bias 0, labels 0 and 1: gradient (0.5 - 0.5) / 2 = 0
    block = make_block([(np.zeros((2, 1)), np.array([0, 1]))])
    theta = {"weight": torch.full((1, 1, 1), 3.0, dtype=torch.float64), "bias": torch.zeros(1, 1, dtype=torch.float64)}
    change = logistic(Profile((1,), 2), l2=2.0).descend(theta, block, ONE, 0.5)
    assert change["weight"].item() == pytest.approx(-3.0)
    assert change["bias"].item() == 0


def test_the_penalty_is_no_part_of_the_loss():
    x, y = torch.zeros(1, 1, 1, dtype=torch.float64), torch.zeros(1, 1, dtype=torch.int64)
    theta = {"weight": torch.full((1, 1), 3.0, dtype=torch.float64)}
    loss = logistic(Profile((1,), 2), l2=5.0, bias=False).losses(theta, x, y)
    assert loss.item() == pytest.approx(np.log(2))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize("sizes", [[4, 8], [5, 7, 6]], ids=["powers-of-two", "any-size"])
def test_multinomial_steps_equal_a_plain_loop(sizes, l2, bias):
    classes, d, lr, steps = 3, 4, 0.2, 3
    data = class_data(sizes, (d,), classes)
    learner = logistic(Profile((d,), classes), l2=l2, bias=bias)
    theta = {n: p[:, None] for n, p in learner.start(range(len(sizes)), torch.float64).items()}
    change = learner.descend(theta, make_block(data), FullBatch(steps=steps), lr)
    for i, (x, y) in enumerate(data):
        w, b = theta["weight"][i, 0].numpy().copy(), np.zeros(classes)
        for _ in range(steps):
            gap = (softmax(x @ w.T + b) - np.eye(classes)[y]) / len(y)
            w, b = w - lr * (gap.T @ x + l2 * w), b - lr * gap.sum(axis=0) * bias
        np.testing.assert_allclose(
            change["weight"][i, 0].numpy(), w - theta["weight"][i, 0].numpy(), rtol=1e-10, atol=1e-10
        )
        if bias:
            np.testing.assert_allclose(change["bias"][i, 0].numpy(), b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("l2", [0.0, 0.3])
def test_binary_steps_equal_a_plain_loop(l2):
    sizes, d, lr = [8, 4], 3, 0.5
    data = class_data(sizes, (d,), 2)
    learner = logistic(Profile((d,), 2), l2=l2)
    theta = {n: p[:, None] for n, p in learner.start([3, 4], torch.float64).items()}
    change = learner.descend(theta, make_block(data), FullBatch(steps=2), lr)
    for i, (x, y) in enumerate(data):
        w, b = theta["weight"][i, 0].numpy().copy(), 0.0
        for _ in range(2):
            gap = (1 / (1 + np.exp(-(x @ w + b))) - y) / len(y)
            w, b = w - lr * (x.T @ gap + l2 * w), b - lr * gap.sum()
        np.testing.assert_allclose(
            change["weight"][i, 0].numpy(), w - theta["weight"][i, 0].numpy(), rtol=1e-10, atol=1e-10
        )
        assert change["bias"][i, 0].item() == pytest.approx(b, abs=1e-10)


def test_two_classes_have_one_logit_and_three_have_three():
    assert logistic(Profile((4,), 2)).start([0], torch.float64)["weight"].shape == (1, 4)
    assert logistic(Profile((4,), 3)).start([0], torch.float64)["weight"].shape == (1, 3, 4)


def test_binary_outputs_are_two_logits():
    theta = {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])}
    out = logistic(Profile((1,), 2)).outputs(theta, torch.tensor([[[3.0]]]))
    assert out.tolist() == [[[0.0, 7.0]]]


def test_a_single_class_is_treated_as_two():
    assert logistic(Profile((4,), 1)).classes == 2


def test_numbers_are_refused():
    with pytest.raises(ConfigError, match="use linear, or pass integer labels"):
        logistic(Profile((4,), None))


def test_a_negative_penalty_is_refused():
    with pytest.raises(ConfigError, match="l2 must be a finite number of at least 0, got -1"):
        logistic(Profile((4,), 2), l2=-1)


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_by_hand_are_those_of_autograd(classes: int, bias: bool):
    """Three models of each client on clients of different sizes, with a penalty and samples that count differently."""
    learner = logistic(Profile((4,), classes), l2=0.3, bias=bias)
    block = make_block(class_data([2, 7, 5], (4,), classes, seed=1))
    random = torch.Generator().manual_seed(0)
    block = replace(block, focus=torch.rand(block.y.shape, generator=random, dtype=torch.float64))
    models = learner.start(range(9), torch.float64)
    theta = {name: p.reshape(3, 3, *p.shape[1:]) + 0.1 for name, p in models.items()}
    for training in (FullBatch(steps=4, prox=0.2), MiniBatch(batch_size=2, steps=4)):
        found = learner.descend(theta, block, training, 0.7)
        expected = descend_each_track(learner._objective, theta, block, training, 0.7).change
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-13)
    each = learner.score(models, block).losses
    for s in range(9):
        one = {name: p[s : s + 1].expand(3, *p.shape[1:]) for name, p in models.items()}
        torch.testing.assert_close(each[..., s], learner.losses(one, block.x, block.y), rtol=1e-12, atol=1e-13)
