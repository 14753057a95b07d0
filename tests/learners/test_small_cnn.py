"""Steps of the learner cnn: equal to autograd for all shapes, with compiled convolutions and with those of torch."""

from __future__ import annotations

from importlib import import_module

import pytest
import torch

from coterie.core.dataset import Profile
from coterie.learners import MiniBatch, make_learner
from coterie.learners.heads import (
    Heads,
    descend_body,
    descend_body_by_autograd,
    descend_together,
    for_heads,
    heads_of,
)
from coterie.learners.module import ModuleWithHead, fields_of
from coterie.learners.networks import small_cnn
from coterie.learners.networks.small_cnn import StepsOfCNN
from tests.core.make import class_data, make_block, regression_data

cnn = import_module("coterie.learners.cnn")  # the package has a function of this name
STAGES = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "torch"])

SHAPES = {
    "one pixel after pooling": (2, 3, 1, 4, 4, 1),
    "odd sizes and channels": (1, 5, 3, 7, 9, 3),
    "images in several chunks": (2, 130, 1, 6, 8, 2),  # 63 values each with borders, 65 images to a chunk
    "one image": (3, 1, 2, 5, 4, 2),
}


@STAGES
@pytest.mark.parametrize(("clients", "images", "inputs", "height", "width", "channels"), SHAPES.values(), ids=SHAPES)
def test_hidden_values_and_gradients_equal_autograd(
    clients, images, inputs, height, width, channels, compiled, monkeypatch
):
    monkeypatch.setattr(small_cnn, "numba_is_installed", lambda: compiled)
    learner = make_learner(f"cnn:channels={channels},hidden=5", Profile((inputs, height, width), 3))
    theta = learner.start(range(clients), torch.float64)
    theta = {name: p + 0.1 * torch.randn_like(p) if "bias" in name else p for name, p in theta.items()}
    x = torch.randn(clients, images, inputs, height, width, dtype=torch.float64)
    back = torch.randn(clients, images, 5, dtype=torch.float64)
    network = StepsOfCNN()
    for _ in range(2):  # the second time in used arrays
        network.load(theta, x)
        hidden, found = network.hidden(theta), network.gradient(theta, back)
    leaves = {name: p.requires_grad_() for name, p in theta.items() if not name.startswith("fc2")}
    real = learner.features(leaves, x)
    torch.testing.assert_close(hidden, real, rtol=1e-9, atol=1e-12)
    for name, value in zip(leaves, torch.autograd.grad(real, list(leaves.values()), back), strict=True):
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


@STAGES
def test_a_value_that_is_not_finite_is_not_hidden_by_pooling(compiled, monkeypatch):
    monkeypatch.setattr(small_cnn, "numba_is_installed", lambda: compiled)
    learner = make_learner("cnn:channels=2,hidden=3", Profile((4, 4), 3))
    theta = learner.start([0, 1], torch.float64)
    x = torch.randn(2, 3, 4, 4, dtype=torch.float64)
    x[1, 2, 1, 1] = torch.nan
    network = StepsOfCNN()
    network.load(theta, x)
    assert bool(network.hidden(theta)[0].isfinite().all())
    assert bool(network.hidden(theta)[1, 2].isnan().any())


@pytest.mark.parametrize("classes", [3, None])
def test_the_learner_gives_the_same_results_without_numba(classes, monkeypatch):
    learner = make_learner("cnn:channels=3,hidden=4", Profile((4, 5), classes))
    data = class_data([6, 9, 2], (4, 5), 3) if classes else regression_data([6, 9, 2], 20)
    block = make_block([(x.reshape(-1, 4, 5), y) for x, y in data])
    models, rows = learner.start([1, 2], torch.float64), torch.tensor([[0, 1], [1, 1], [0, 0]])
    mass = torch.tensor([[1.0, 2.0], [0.5, 0.0], [3.0, 1.0]], dtype=torch.float64)
    work = MiniBatch(batch_size=4, epochs=2)

    def results() -> list[torch.Tensor]:
        given = learner.contribute(models, rows, block, work, 0.1, mass, None)
        assert given.loss is not None
        return [*(given.sums[name] for name in models), given.loss, learner.score(models, block).losses]

    compiled = results()
    monkeypatch.setattr(small_cnn, "numba_is_installed", lambda: False)
    for one, other in zip(compiled, results(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


def test_groups_of_clients_do_not_change_the_results(monkeypatch):
    learner = make_learner("cnn:channels=2,hidden=4", Profile((4, 4), 3))
    block = make_block(class_data([6, 9, 2], (4, 4), 3))
    theta = {name: p[:, None] for name, p in learner.start([1, 2, 3], torch.float64).items()}
    work = MiniBatch(batch_size=4, epochs=2)
    together = learner.descend(theta, block, work, 0.1)
    monkeypatch.setattr(cnn, "ACTIVATION_BYTES", 1)
    for name, value in learner.descend(theta, block, work, 0.1).items():
        torch.testing.assert_close(value, together[name], rtol=1e-9, atol=1e-12)


def test_the_body_below_heads_is_trained_as_by_autograd():
    learner = make_learner("cnn:channels=2,hidden=4", Profile((4, 4), 3))
    block = make_block(class_data([6, 9, 2], (4, 4), 3))
    clusters = learner.start([1, 2], torch.float64)
    heads = heads_of(learner, {n: p for n, p in clusters.items() if n.startswith("fc2")}, 3)
    body = {n: p[:1].expand(3, *p.shape[1:]) for n, p in clusters.items() if not n.startswith("fc2")}
    gamma = torch.rand(3, 9, 2, dtype=torch.float64)
    work = MiniBatch(batch_size=4, epochs=2)
    found = descend_body(learner, body, heads, block, gamma, work, 0.1)
    plain = descend_body_by_autograd(learner, body, heads, for_heads(block, gamma), work, 0.1)
    for name, value in plain.items():
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("pulled", [False, True])
@pytest.mark.parametrize("classes", [3, None])
def test_body_and_heads_are_trained_together_as_by_autograd(classes, pulled):
    learner = make_learner("cnn:channels=2,hidden=4", Profile((4, 4), classes))
    data = class_data([6, 9, 2], (4, 4), 3) if classes else regression_data([6, 9, 2], 16)
    block = make_block([(x.reshape(-1, 4, 4), y) for x, y in data])
    clusters = learner.start([1, 2], torch.float64)
    heads = heads_of(learner, {n: p for n, p in clusters.items() if n.startswith("fc2")}, 3)
    body = {n: p[:1].expand(3, *p.shape[1:]) for n, p in clusters.items() if not n.startswith("fc2")}
    gamma, towards = torch.rand(3, 9, 2, dtype=torch.float64), Heads(heads.weight + 0.1, heads.bias - 0.1)
    work = MiniBatch(batch_size=4, epochs=2, prox=0.5 if pulled else 0.0)
    args = (body, heads, block, gamma, work, 0.1, towards if pulled else None)
    found = descend_together(learner, *args)
    plain = descend_together(ModuleWithHead(**fields_of(learner), head="fc2"), *args)
    for name, value in plain[0].items():
        torch.testing.assert_close(found[0][name], value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[1].weight, plain[1].weight, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found[1].bias, plain[1].bias, rtol=1e-9, atol=1e-12)
