"""MLP, CNN and user-defined modules against a plain torch loop for single clients."""

from __future__ import annotations

import copy
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, vmap

from coterie import ConfigError
from coterie.core.dataset import Profile
from coterie.learners import make_learner
from coterie.learners.base import Learner
from coterie.learners.cnn import PatchCNN, SmallCNN
from coterie.learners.descent import Batch, descend_each_track
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch
from coterie.testing.checks import small_module
from tests.core.make import class_data, make_block, regression_data


def torch_loop(net: nn.Module, x: np.ndarray, y: np.ndarray, steps: int, lr: float, l2: float, prox: float) -> dict:
    """Return the change by full-batch gradient descent in plain torch, by parameter name."""
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


def check(learner: Learner, nets: list[nn.Module], data, work: LocalTraining, lr: float, l2: float = 0.0, rename=str):
    """Compare the training of several models; nets[t] is the initial model t of every client."""
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
    work = FullBatch(steps=3, prox=0.4)
    check(learner, nets, class_data(sizes, (2, 3), 3), work, 0.3, l2=0.1, rename=mlp_name)


def test_mlp_regression_equals_a_plain_torch_loop():
    torch.manual_seed(1)
    learner = make_learner("mlp:hidden=5", Profile((3,), None))
    check(learner, [sequential(3, 5, 1)], regression_data([8, 4], 3), FullBatch(steps=2), 0.1, rename=mlp_name)


@pytest.mark.parametrize("shape", [(8, 8), (2, 8, 4)])
@pytest.mark.parametrize(("kernel", "network"), [(3, SmallCNN), (2, PatchCNN)])
def test_cnn_steps_equal_a_plain_torch_loop(shape, kernel, network):
    torch.manual_seed(2)
    full = shape if len(shape) == 3 else (1, *shape)
    net = network(*full, channels=2, hidden=6, outputs=3).double()
    learner = make_learner(f"cnn:channels=2,hidden=6,kernel={kernel}", Profile(shape, 3))
    check(learner, [net], class_data([4, 8], shape, 3), FullBatch(steps=2, prox=0.5), 0.2)


def test_non_overlapping_patches_are_convolutions_with_stride_two():
    torch.manual_seed(3)
    net = PatchCNN(3, 9, 11, channels=2, hidden=6, outputs=4).double()
    x = torch.randn(5, 3, 9, 11, dtype=torch.float64)
    h = x
    for layer in (net.conv1, net.conv2):
        plain = nn.Conv2d(h.shape[1], len(layer.weight), 2, stride=2).double()
        square = layer.weight.detach().reshape(len(layer.weight), 2, 2, -1)
        plain.load_state_dict({"weight": square.movedim(-1, 1), "bias": layer.bias.detach()})
        h = plain(h).relu()
    plain_outputs = net.fc2(net.fc1(h.movedim(1, -1).flatten(1)).relu())
    torch.testing.assert_close(net(x), plain_outputs, rtol=0, atol=1e-12)


def test_a_kernel_that_cnn_lacks_is_refused():
    with pytest.raises(ConfigError, match=r"kernel must be 3 .* or 2 .*, got 5"):
        make_learner("cnn:kernel=5", Profile((8, 8), 3))


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
    check(learner, [Odd().double()], regression_data([4, 2], 3), FullBatch(steps=3), 0.1)


def test_a_frozen_batchnorm_is_used_as_it_is():
    def factory() -> nn.Module:
        norm = nn.BatchNorm1d(3)
        norm.running_mean.copy_(torch.tensor([1.0, 2.0, 3.0]))
        return nn.Sequential(norm, nn.Linear(3, 2)).eval()

    learner = make_learner(factory, Profile((3,), 2))
    check(learner, [factory().double()], class_data([4, 8], (3,), 2), FullBatch(steps=2), 0.1)


class Spare(nn.Module):
    """Module with a layer on which its output does not depend."""

    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(3, 2)
        self.spare = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.used(x)


def test_an_unused_parameter_does_not_change():
    learner = make_learner(Spare, Profile((3,), 2))
    theta = {n: p[:, None] for n, p in learner.start([1, 2], torch.float64).items()}
    change = learner.descend(theta, make_block(class_data([4, 4], (3,), 2)), FullBatch(steps=2), 0.1)
    assert float(change["spare.weight"].abs().max()) == 0
    assert float(change["used.weight"].abs().max()) > 0


def half_frozen() -> nn.Module:
    net = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    net[0].requires_grad_(False)
    return net


def test_a_frozen_parameter_does_not_change():
    learner = make_learner(half_frozen, Profile((3,), 2))
    theta = {n: p[:, None] for n, p in learner.start([1], torch.float64).items()}
    change = learner.descend(theta, make_block(class_data([4], (3,), 2)), FullBatch(steps=2), 0.1)
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


def test_mlp_is_initialised_like_torch():
    # U(-1/sqrt(in), 1/sqrt(in)) with in = 100: bound 0.1, standard deviation 0.1 / sqrt(3) = 0.0577
    weight = make_learner("mlp:hidden=200", Profile((100,), 2)).start([0], torch.float64)["layer0.weight"]
    assert float(weight.abs().max()) <= 0.1
    assert float(weight.std()) == pytest.approx(0.0577, rel=0.02)


def by_vmap(learner, theta: dict, x: torch.Tensor) -> torch.Tensor:
    """Evaluate all clients together, as for a module without convolutions."""
    return vmap(lambda params, batch: functional_call(learner.module, params, (batch,)))(theta, x)


@pytest.mark.parametrize("shape", [(9, 8), (3, 8, 9)])
def test_one_client_after_the_other_equals_all_at_once(shape):
    learner = make_learner("cnn:channels=3,hidden=5", Profile(shape, 4))
    block = make_block(class_data([7, 7, 7], shape, 4))
    theta = learner.start([1, 2, 3], torch.float64)
    torch.testing.assert_close(learner.outputs(theta, block.x), by_vmap(learner, theta, block.x), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    "work", [FullBatch(steps=3, prox=0.2), MiniBatch(batch_size=4, epochs=2)], ids=["full", "mini"]
)
@pytest.mark.parametrize(
    ("spec", "path"),
    [("cnn:channels=3,hidden=5", "by-hand"), (lambda: SmallCNN(1, 8, 8, 3, 5, 3), "one-by-one")],
    ids=["cnn", "module"],
)
def test_steps_of_one_client_after_the_other_equal_those_of_all_at_once(work, spec, path):
    learner = make_learner(spec, Profile((8, 8), 3))
    block = make_block(class_data([9, 5, 7], (8, 8), 3))
    theta = {name: p[:, None] for name, p in learner.start([1, 2, 3], torch.float64).items()}

    def objective(params: dict, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
        losses = learner.loss(by_vmap(learner, params, batch.x), batch.y)
        value = (losses * batch.share).sum(dim=1)
        return value, value

    together = descend_each_track(objective, theta, block, work, 0.2)
    rows = torch.arange(3)[:, None]
    models = {name: p[:, 0] for name, p in theta.items()}
    alone = learner.contribute(models, rows, block, work, 0.2, torch.ones(3, 1, dtype=torch.float64), None)
    assert alone.path == path
    for name, value in together.change.items():
        torch.testing.assert_close(alone.sums[name], value[:, 0], rtol=1e-9, atol=1e-12)
    assert (alone.loss is None) == (together.loss is None)
    if alone.loss is not None:
        torch.testing.assert_close(alone.loss, together.loss, rtol=1e-9, atol=1e-12)


def small() -> nn.Module:
    """Return the network of the learner cnn, which is a module like any other here."""
    return SmallCNN(1, 4, 4, 2, 3, 3)


def test_many_samples_go_through_convolutions_in_pieces(monkeypatch):
    learner = make_learner(small, Profile((4, 4), 3))
    block = make_block(class_data([11, 8], (4, 4), 3))
    models = learner.start([1, 2], torch.float64)
    whole, table = learner.outputs(models, block.x), learner.score(models, block).losses
    sizes = []
    forward = SmallCNN.forward
    monkeypatch.setattr(import_module("coterie.learners.module"), "PIECE", 4)
    monkeypatch.setattr(SmallCNN, "forward", lambda self, x: (sizes.append(len(x)), forward(self, x))[1])
    torch.testing.assert_close(learner.outputs(models, block.x), whole, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(learner.score(models, block).losses, table, rtol=1e-9, atol=1e-12)
    assert max(sizes) == 4


def count_convolved(monkeypatch) -> list[int]:
    """Return a list to which every convolution appends its number of images."""
    seen: list[int] = []
    real = nn.Conv2d.forward
    monkeypatch.setattr(nn.Conv2d, "forward", lambda self, x: (seen.append(len(x)), real(self, x))[1])
    return seen


SHARINGS = {
    "cnn body": (small, ("conv", "fc1"), 2),
    "cnn head": (small, ("fc",), 6),
    "cnn, nothing": (small, (), 6),
    "cnn, everything": (small, ("conv", "fc"), 6),
    "module": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.Tanh(), nn.Linear(4, 3)), ("1.",), 0),
}


@pytest.mark.parametrize(("spec", "shared", "convolutions"), SHARINGS.values(), ids=SHARINGS)
def test_scores_with_a_shared_part_equal_those_of_each_model(spec, shared, convolutions, monkeypatch):
    learner = make_learner(spec, Profile((4, 4), 3))
    block = make_block(class_data([6, 9], (4, 4), 3))
    models = learner.start([1, 2, 3], torch.float64)
    models = {n: p[:1].expand_as(p).clone() if n.startswith(shared or ("none",)) else p for n, p in models.items()}
    seen = count_convolved(monkeypatch)
    table = learner.score(models, block).losses
    assert len(seen) == convolutions  # two layers, once if they are shared, else once for each of three models
    for s in range(3):
        one = {name: p[s : s + 1].expand(2, *p.shape[1:]) for name, p in models.items()}
        torch.testing.assert_close(table[..., s], learner.losses(one, block.x, block.y), rtol=1e-9, atol=1e-12)


def test_numbers_with_a_shared_body_are_scored_alike():
    learner = make_learner("cnn:channels=2,hidden=3", Profile((4, 4), None))
    data = [(x, y.astype(float)) for x, y in class_data([6, 9], (4, 4), 3)]
    block = make_block(data)
    models = learner.start([1, 2], torch.float64)
    models = {n: p if n.startswith("fc2") else p[:1].expand_as(p).clone() for n, p in models.items()}
    table = learner.score(models, block).losses
    for s in range(2):
        one = {name: p[s : s + 1].expand(2, *p.shape[1:]) for name, p in models.items()}
        torch.testing.assert_close(table[..., s], learner.losses(one, block.x, block.y), rtol=1e-9, atol=1e-12)


def test_a_convolving_module_with_random_numbers_is_refused():
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 2, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return nn.functional.dropout(self.conv(x[:, None])).mean(dim=(2, 3))

    with pytest.raises(ConfigError, match="random numbers without a seed"):
        make_learner(Noisy, Profile((4, 4), 2))


@pytest.mark.parametrize("spec", ["linear", "linear:half=false", "mlp:hidden=4"])
def test_losses_are_the_loss_of_the_outputs(spec):
    learner = make_learner(spec, Profile((3,), None))
    block = make_block(regression_data([5], 3))
    model = learner.start([7], torch.float64)
    gap = learner.outputs(model, block.x) - block.y
    expected = gap**2 if "half=false" in spec else gap**2 / 2
    torch.testing.assert_close(learner.loss(learner.outputs(model, block.x), block.y), expected)
    torch.testing.assert_close(learner.losses(model, block.x, block.y), expected)


def test_cnn_is_initialised_so_that_activations_keep_their_size_under_relu():
    # U(-b, b) with b = sqrt(6 / in): the variance 2 / in makes up for the half that ReLU takes away; biases are 0
    start = make_learner("cnn:channels=64,hidden=64", Profile((8, 8), 3)).start([0], torch.float64)
    for name, inputs in {"conv1": 9, "conv2": 64 * 9, "fc1": 128 * 4}.items():
        weight = start[f"{name}.weight"]
        assert float(weight.abs().max()) <= (6 / inputs) ** 0.5
        assert float(weight.var()) == pytest.approx(2 / inputs, rel=0.1)
        assert float(start[f"{name}.bias"].abs().max()) == 0


@pytest.mark.parametrize("choice", ["cnn:channels=2,hidden=3", small_module], ids=["cnn", "module"])
def test_threads_do_not_disturb_each_other(choice):
    """Many simultaneous calls with different parameters have the same results as separate calls."""
    learner = make_learner(choice, Profile((4, 4), 3))
    block = make_block(class_data([3], (4, 4), 3))
    models = [learner.start([key], torch.float64) for key in range(8)]
    alone = [learner.outputs(model, block.x) for model in models]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda index: learner.outputs(models[index % 8], block.x), range(400)))
    for index, value in enumerate(found):
        torch.testing.assert_close(value, alone[index % 8], rtol=1e-12, atol=0)
