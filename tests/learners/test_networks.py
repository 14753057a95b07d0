"""MLP, CNN and any module against a plain torch loop, one client at a time."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from coterie.core.population import Profile
from coterie.learners import make_learner
from coterie.learners.base import Learner
from coterie.learners.cnn import SmallCNN
from coterie.learners.descent import LocalWork
from tests.core.make import class_data, make_block, regression_data


def torch_loop(net: nn.Module, x: np.ndarray, y: np.ndarray, steps: int, lr: float, l2: float, prox: float) -> dict:
    """Full-batch descent as everybody would write it; the change by parameter name."""
    net = copy.deepcopy(net)
    before = {n: p.detach().clone() for n, p in net.named_parameters()}
    for _ in range(steps):
        out = net(torch.from_numpy(x))
        target = torch.from_numpy(y)
        if target.is_floating_point():
            loss = ((out.reshape(-1) - target) ** 2).mean() / 2
        else:
            loss = nn.functional.cross_entropy(out, target)
        for name, p in net.named_parameters():
            loss = loss + prox / 2 * ((p - before[name]) ** 2).sum()
            if name.endswith("weight"):
                loss = loss + l2 / 2 * (p**2).sum()
        gradients = torch.autograd.grad(loss, list(net.parameters()))
        with torch.no_grad():
            for p, gradient in zip(net.parameters(), gradients, strict=True):
                p -= lr * gradient
    return {n: p.detach() - before[n] for n, p in net.named_parameters()}


def check(learner: Learner, nets: list[nn.Module], data, work: LocalWork, lr: float, l2: float = 0.0, rename=str):
    """nets[t] is what every client starts track t from."""
    theta: dict = {}
    for name, _ in nets[0].named_parameters():
        tracks = torch.stack([dict(net.named_parameters())[name].detach() for net in nets])
        theta[rename(name)] = tracks[None].expand(len(data), *tracks.shape)
    change = learner.descend(theta, make_block(data), work, lr)
    for i, (x, y) in enumerate(data):
        for t, net in enumerate(nets):
            expected = torch_loop(net, x, y, work.steps or 0, lr, l2, work.prox)
            for name, value in expected.items():
                torch.testing.assert_close(change[rename(name)][i, t], value, rtol=1e-10, atol=1e-10)


def sequential(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.ReLU()]
    return nn.Sequential(*layers[:-1]).double()


def mlp_name(name: str) -> str:
    index, part = name.split(".")
    return f"layer{(int(index) - 1) // 2}.{part}"


@pytest.mark.parametrize("sizes", [[4, 8], [5, 7, 6]], ids=["powers-of-two", "any-size"])
def test_mlp_steps_equal_a_plain_torch_loop(sizes):
    learner = make_learner("mlp:hidden=5-4,l2=0.1", Profile((2, 3), 3))
    torch.manual_seed(0)
    nets = [sequential(6, 5, 4, 3), sequential(6, 5, 4, 3)]
    work = LocalWork(steps=3, prox=0.4)
    check(learner, nets, class_data(sizes, (2, 3), 3), work, 0.3, l2=0.1, rename=mlp_name)


def test_mlp_regression_equals_a_plain_torch_loop():
    torch.manual_seed(1)
    learner = make_learner("mlp:hidden=5", Profile((3,), None))
    check(learner, [sequential(3, 5, 1)], regression_data([8, 4], 3), LocalWork(steps=2), 0.1, rename=mlp_name)


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 4)])
def test_cnn_steps_equal_a_plain_torch_loop(shape):
    torch.manual_seed(2)
    full = shape if len(shape) == 3 else (1, *shape)
    net = SmallCNN(*full, channels=2, hidden=6, outputs=3).double()
    learner = make_learner("cnn:channels=2,hidden=6", Profile(shape, 3))
    check(learner, [net], class_data([4, 8], shape, 3), LocalWork(steps=2, prox=0.5), 0.2)


class Odd(nn.Module):
    """A module with a buffer, a shared weight and an output of one column."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = nn.Linear(3, 3)
        self.second.weight = self.first.weight
        self.register_buffer("offset", torch.tensor([0.5, -0.5, 1.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x + self.offset))).sum(dim=1, keepdim=True)


def test_a_module_with_buffers_and_tied_weights_equals_a_plain_torch_loop():
    torch.manual_seed(3)
    learner = make_learner(Odd, Profile((3,), None))
    check(learner, [Odd().double()], regression_data([4, 2], 3), LocalWork(steps=3), 0.1)


def test_a_frozen_batchnorm_is_used_as_it_is():
    def factory() -> nn.Module:
        norm = nn.BatchNorm1d(3)
        norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        return nn.Sequential(norm, nn.Linear(3, 2)).eval()

    learner = make_learner(factory, Profile((3,), 2))
    check(learner, [factory().double()], class_data([4, 8], (3,), 2), LocalWork(steps=2), 0.1)


class Spare(nn.Module):
    """Has a layer that its output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 2)
        self.spare = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_an_unused_parameter_stays_as_it_was():
    learner = make_learner(Spare, Profile((3,), 2))
    theta = {n: p[:, None] for n, p in learner.start([1, 2], torch.float64).items()}
    change = learner.descend(theta, make_block(class_data([4, 4], (3,), 2)), LocalWork(steps=2), 0.1)
    assert float(change["spare.weight"].abs().max()) == 0
    assert float(change["used.weight"].abs().max()) > 0


def half_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    return net


def test_a_parameter_that_asks_for_no_gradient_stays_as_it_was():
    learner = make_learner(half_frozen, Profile((3,), 2))
    theta = {n: p[:, None] for n, p in learner.start([1], torch.float64).items()}
    change = learner.descend(theta, make_block(class_data([4], (3,), 2)), LocalWork(steps=2), 0.1)
    assert float(change["1.weight"].abs().max()) > 0
    assert float(change.get("0.weight", torch.zeros(1)).abs().max()) == 0


@pytest.mark.parametrize("spec", ["mlp:hidden=5", "cnn:channels=2,hidden=3"])
def test_losses_of_all_models_equal_those_of_each(spec):
    learner = make_learner(spec, Profile((4, 4), 3))
    block = make_block(class_data([3, 5], (4, 4), 3))
    models = learner.start([1, 2, 3], torch.float64)
    table = learner.score(models, block).losses
    assert table.shape == (2, 5, 3)
    for s in range(3):
        one = {name: p[s : s + 1].expand(2, *p.shape[1:]) for name, p in models.items()}
        torch.testing.assert_close(table[..., s], learner.losses(one, block.x, block.y))


@pytest.mark.parametrize("spec", ["mlp:hidden=5", "cnn:channels=2,hidden=3", "logistic"])
def test_the_loss_is_the_negative_log_likelihood(spec):
    learner = make_learner(spec, Profile((4, 4), 3))
    block = make_block(class_data([6], (4, 4), 3))
    model = learner.start([7], torch.float64)
    likelihood = torch.softmax(learner.outputs(model, block.x), dim=-1)[0, torch.arange(6), block.y[0]]
    torch.testing.assert_close(learner.losses(model, block.x, block.y)[0], -likelihood.log())


@pytest.mark.parametrize("spec", ["linear", "mlp:hidden=4"])
def test_the_loss_of_numbers_is_half_the_squared_error(spec):
    learner = make_learner(spec, Profile((3,), None))
    block = make_block(regression_data([5], 3))
    model = learner.start([7], torch.float64)
    gap = learner.outputs(model, block.x) - block.y
    torch.testing.assert_close(learner.losses(model, block.x, block.y), gap**2 / 2)


def test_mlp_starts_like_torch():
    # U(-1/sqrt(in), 1/sqrt(in)) with in = 100: bound 0.1, standard deviation 0.1 / sqrt(3) = 0.0577
    weight = make_learner("mlp:hidden=200", Profile((100,), 2)).start([0], torch.float64)["layer0.weight"]
    assert float(weight.abs().max()) <= 0.1
    assert float(weight.std()) == pytest.approx(0.0577, rel=0.02)
