"""Local optimizers equal `torch.optim` in a plain loop over clients, for every learner and every kind of step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.dataset import Profile
from coterie.core.plain import from_plain, from_text, to_plain, to_text
from coterie.engines.sequential import Sequential
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.base import Learner
from coterie.learners.cnn import PatchCNN, SmallCNN
from coterie.learners.descent import batches
from coterie.learners.heads import descend_body, descend_heads, descend_together, heads_of
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch
from coterie.learners.optimizers import SGD, Adam, AdamW, Optimizer
from coterie.testing.checks import Case
from tests.core.make import class_data, make_block, regression_data
from tests.pairs import pairwise

SHAPE, CLASSES, LR = (4, 4), 3, 0.05
Forward = Callable[[Params, Tensor], Tensor]
"""Outputs (n, C) or (n,) of one model {name: (...)} on samples (n, ...)."""

# ---- oracles: every learner's forward pass as one would write it in torch, and the optimizer of the same name --------


def plain_linear(theta: Params, x: Tensor) -> Tensor:
    return x.flatten(1) @ theta["weight"] + theta["bias"]


def plain_logistic(theta: Params, x: Tensor) -> Tensor:
    return functional.linear(x.flatten(1), theta["weight"], theta["bias"])


def plain_perceptron(theta: Params, x: Tensor) -> Tensor:
    h, last = x.flatten(1), len(theta) // 2 - 1
    for i in range(last):
        h = torch.relu(functional.linear(h, theta[f"layer{i}.weight"], theta[f"layer{i}.bias"]))
    return functional.linear(h, theta[f"layer{last}.weight"], theta[f"layer{last}.bias"])


def plain_representation(theta: Params, x: Tensor) -> Tensor:
    features = functional.linear(x.flatten(1), theta["body.weight"])
    return functional.linear(features, theta["head.weight"], theta["head.bias"])[:, 0]


def through(net: nn.Module) -> Forward:
    return lambda theta, x: functional_call(net.double(), theta, (x,))


def user_module() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, CLASSES))


@dataclass(frozen=True)
class Subject:
    """A learner and a reference implementation of its outputs."""

    choice: Any
    forward: Forward
    numbers: bool = False
    l2: float = 0.0
    path: str = "autograd"
    """The path of full-batch steps of plain SGD."""

    @property
    def learner(self) -> Learner:
        return make_learner(self.choice, Profile(SHAPE, None if self.numbers else CLASSES))

    def block(self, sizes: list[int]) -> Block:
        data = class_data(sizes, SHAPE, CLASSES, seed=3)
        if self.numbers:
            data = [(x, y) for (x, _), (_, y) in zip(data, regression_data(sizes, 1, seed=4), strict=True)]
        return make_block(data)

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        out = self.forward(theta, x)
        return (out - y) ** 2 / 2 if self.numbers else functional.cross_entropy(out, y, reduction="none")


SUBJECTS = {
    "linear": Subject("linear:bias=true", plain_linear, numbers=True, path="closed-form-flat"),
    "logistic": Subject("logistic:l2=0.1", plain_logistic, l2=0.1, path="by-hand"),
    "mlp": Subject("mlp:hidden=6", plain_perceptron, path="gram"),
    "deep mlp": Subject("mlp:hidden=6-5", plain_perceptron, path="gram"),
    "mlp for numbers": Subject(
        "mlp:hidden=6,l2=0.1", lambda theta, x: plain_perceptron(theta, x)[:, 0], numbers=True, l2=0.1
    ),
    "cnn": Subject("cnn:channels=2,hidden=4", through(SmallCNN(1, 4, 4, 2, 4, CLASSES)), path="by-hand"),
    "patch cnn": Subject("cnn:channels=2,hidden=4,kernel=2", through(PatchCNN(1, 4, 4, 2, 4, CLASSES))),
    "module": Subject(user_module, through(user_module())),
    "representation": Subject("representation:width=3", plain_representation, numbers=True),
}
OPTIMIZERS = {
    "sgd": SGD(),
    "momentum": SGD(momentum=0.9),
    "nesterov": SGD(momentum=0.8, nesterov=True, weight_decay=0.1),
    "weight decay": SGD(weight_decay=0.3),
    "adam": Adam(),
    "adam with decay": Adam(beta1=0.7, beta2=0.9, eps=1e-3, weight_decay=0.2),
    "adamw": AdamW(weight_decay=0.5),
}
SIZES = [9, 4, 12]
TRAININGS = {
    "full batch": FullBatch(steps=4),
    "one step": FullBatch(steps=1),
    "epochs": MiniBatch(batch_size=4, epochs=2),  # clients of 9, 4 and 12 samples take 6, 2 and 6 steps
    "steps": MiniBatch(batch_size=3, steps=5),
    "proximal": FullBatch(steps=4, prox=0.5),
    "proximal epochs": MiniBatch(batch_size=4, epochs=2, prox=0.5),
}


def torch_optimizer(optimizer: Optimizer, parameters: list[Tensor], lr: float) -> torch.optim.Optimizer:
    """Return the optimizer of torch with the same settings."""
    if isinstance(optimizer, SGD):
        more = {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov, "weight_decay": optimizer.weight_decay}
        return torch.optim.SGD(parameters, lr=lr, **more)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[optimizer.name]
    assert isinstance(optimizer, Adam | AdamW)
    betas = (optimizer.beta1, optimizer.beta2)
    return kind(parameters, lr=lr, betas=betas, eps=optimizer.eps, weight_decay=optimizer.weight_decay)


def train(theta: Params, objectives: list[Callable[[Params], Tensor]], optimizer: Optimizer, lr: float) -> Params:
    """Return the change of one model by one step of torch on each objective in turn."""
    leaves = {name: p.clone().requires_grad_() for name, p in theta.items()}
    theirs = torch_optimizer(optimizer, list(leaves.values()), lr)
    for objective in objectives:
        theirs.zero_grad()
        objective(leaves).backward()
        theirs.step()
    return {name: p.detach() - theta[name] for name, p in leaves.items()}


def expected_change(
    subject: Subject, start: Params, block: Block, b: int, training: LocalTraining, lr: float, centre: Params
) -> Params:
    """Return the change of client b's model {name: (...)} in a plain loop."""

    def objective_on(x: Tensor, y: Tensor, share: Tensor) -> Callable[[Params], Tensor]:
        def objective(theta: Params) -> Tensor:
            value = (subject.losses(theta, x, y) * share).sum()
            far = sum(((p - centre[name]) ** 2).sum() for name, p in theta.items())
            large = sum((p**2).sum() for name, p in theta.items() if name.endswith("weight"))
            return value + training.prox / 2 * far + subject.l2 / 2 * large

        return objective

    objectives = []
    for batch in batches(block, training):
        real = batch.share[b] > 0
        if real.any():
            objectives.append(objective_on(batch.x[b, real], batch.y[b, real], batch.share[b, real]))
    return train(start, objectives, training.optimizer, lr)


def assert_close(found: Params, expected: Params, lr: float) -> None:
    """Check equality up to 1e-9 relative to the largest change of a parameter or the learning rate.

    The steps of Adam are as long as the learning rate, and may cancel.
    """
    for name, value in expected.items():
        largest = float(value.abs().max())
        assert largest > 0, "there must be a change to see"
        torch.testing.assert_close(found[name], value, rtol=1e-9, atol=1e-9 * max(largest, lr))


def check(
    subject: Subject, block: Block, training: LocalTraining, lr: float = LR, towards: bool = False, drawn: bool = False
) -> None:
    """Compare `descend` for two models of each client; `drawn`: the settings are from Hypothesis."""
    learner, clients = subject.learner, len(block.y)
    start = learner.start(list(range(2 * clients)), torch.float64)
    theta = {name: p.reshape(clients, 2, *p.shape[1:]) for name, p in start.items()}
    centre = {name: p.flip(1).clone() for name, p in theta.items()} if towards else theta
    found = learner.descend(theta, block, training, lr, centre if towards else None)
    if drawn:  # settings under which training diverges magnify rounding errors
        assume(all(bool((p.abs() < 1e3).all()) for p in found.values()))
    for b in range(clients):
        for track in range(2):
            one, to, moved = ({n: p[b, track] for n, p in params.items()} for params in (theta, centre, found))
            assert_close(moved, expected_change(subject, one, block, b, training, lr, to), lr)


FULL_AND_MINI = {"full": FullBatch(steps=4), "mini": MiniBatch(batch_size=4, epochs=2)}


@pytest.mark.parametrize(("name", "optimizer", "training"), pairwise(list(SUBJECTS), OPTIMIZERS, TRAININGS))
def test_steps_equal_those_of_torch(name, optimizer, training):
    check(SUBJECTS[name], SUBJECTS[name].block(SIZES), replace(training, optimizer=optimizer))


@pytest.mark.parametrize(
    ("optimizer", "training"), [("sgd", "full"), ("sgd", "mini"), ("nesterov", "full"), ("adam with decay", "mini")]
)
@pytest.mark.parametrize("name", SUBJECTS)
def test_steps_with_sample_weights_equal_those_of_torch(name, optimizer, training):
    optimizer, training = OPTIMIZERS[optimizer], FULL_AND_MINI[training]
    block = SUBJECTS[name].block(SIZES)
    random = torch.Generator().manual_seed(0)
    focus = 0.2 + torch.rand(block.y.shape, dtype=torch.float64, generator=random)
    check(SUBJECTS[name], replace(block, focus=focus), replace(training, optimizer=optimizer))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn"])
def test_a_proximal_term_with_another_centre_equals_that_of_torch(name, optimizer):
    training = MiniBatch(batch_size=4, epochs=2, prox=0.5, optimizer=optimizer)
    check(SUBJECTS[name], SUBJECTS[name].block(SIZES), training, towards=True)


@pytest.mark.parametrize(("name", "optimizer", "training"), pairwise(list(SUBJECTS), OPTIMIZERS, FULL_AND_MINI))
def test_contributions_are_the_weighted_changes_and_name_their_path(name, optimizer, training):
    subject, training = SUBJECTS[name], replace(training, optimizer=optimizer)
    learner, block = subject.learner, subject.block(SIZES)
    models = learner.start([1, 2, 3], torch.float64)
    rows = torch.tensor([[0, 2], [1, 2], [0, 1]])
    mass = torch.tensor([[1.0, 2.0], [0.5, 3.0], [0.0, 1.5]], dtype=torch.float64)
    given_ = learner.contribute(models, rows, block, training, LR, mass, learner.score(models, block).memo)
    change = learner.descend({n: p[rows] for n, p in models.items()}, block, training, LR)
    for n, value in change.items():
        total = torch.zeros_like(models[n])
        for b in range(3):
            for r in range(2):
                total[rows[b, r]] += mass[b, r] * value[b, r]
        torch.testing.assert_close(given_.sums[n], total, rtol=1e-9, atol=1e-12)
    if optimizer == SGD():
        fast = {"linear": "autograd", "mlp": "by-hand", "deep mlp": "by-hand"}
        assert given_.path == (fast.get(name, subject.path) if training.full_batch_steps is None else subject.path)
    else:
        by_hand = "mlp" in name or name in ("logistic", "cnn")
        slow = "by-hand" if by_hand else "autograd"
        assert given_.path == f"{slow}:{optimizer.name}"


# ---- properties ------------------------------------------------------------------------------------------------------

FRACTIONS = st.floats(0, 0.95)
DECAYS = st.sampled_from([0.0, 0.01, 0.5])
EPS = st.floats(1e-3, 0.1)  # a gradient of rounding errors alone is magnified by 1 / eps
ANY_OPTIMIZER = st.one_of(
    st.builds(SGD, momentum=FRACTIONS, weight_decay=DECAYS),
    st.builds(SGD, momentum=st.floats(0.1, 0.95), nesterov=st.just(True), weight_decay=DECAYS),
    st.builds(Adam, FRACTIONS, FRACTIONS, EPS, DECAYS),
    st.builds(AdamW, FRACTIONS, FRACTIONS, EPS, DECAYS),
)
LENGTHS = st.one_of(
    st.builds(FullBatch, steps=st.integers(1, 6)),
    st.builds(MiniBatch, batch_size=st.integers(1, 8), epochs=st.integers(1, 3)),
    st.builds(MiniBatch, batch_size=st.integers(1, 8), steps=st.integers(1, 6)),
)


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(["linear", "logistic", "mlp", "representation"]),
    LENGTHS,
    ANY_OPTIMIZER,
    st.lists(st.integers(1, 10), min_size=1, max_size=4),
    st.floats(0.001, 0.2),
    st.sampled_from([0.0, 0.4]),
)
def test_any_setting_equals_torch(name, training, optimizer, sizes, lr, prox):
    training = replace(training, optimizer=optimizer, prox=prox)
    check(SUBJECTS[name], SUBJECTS[name].block(sizes), training, lr, drawn=True)


@given(ANY_OPTIMIZER)
def test_an_optimizer_survives_its_plain_form_and_its_text(optimizer):
    assert from_plain(Optimizer, to_plain(optimizer)) == optimizer
    assert from_text(Optimizer, to_text(optimizer)) == optimizer


# ---- the step itself -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_clients_without_a_step_keep_their_model_and_their_state(optimizer):
    """Client 1 does not take steps 1 and 3, which have no effect on it."""
    random = torch.Generator().manual_seed(0)
    start = torch.randn(2, 3, dtype=torch.float64, generator=random)
    gradients = torch.randn(5, 2, 3, dtype=torch.float64, generator=random)
    active = torch.tensor([[1, 1], [1, 0], [1, 1], [1, 0], [1, 1]], dtype=torch.bool)
    theta = {"w": start.clone()}
    state = optimizer.init(theta)
    for gradient, here in zip(gradients, active, strict=True):
        optimizer.step(theta, {"w": gradient}, state, 0.1, None if here.all() else here)
    for client in range(2):
        leaf = start[client].clone().requires_grad_()
        theirs = torch_optimizer(optimizer, [leaf], 0.1)
        for gradient in gradients[active[:, client], client]:
            leaf.grad = gradient.clone()
            theirs.step()
        torch.testing.assert_close(theta["w"][client], leaf.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_client_without_finite_gradients_does_not_affect_others(optimizer):
    theta, gradient = {"w": torch.ones(3, 2)}, {"w": torch.full((3, 2), 0.5)}
    gradient["w"][1] = torch.nan
    alone = {"w": torch.ones(1, 2)}
    optimizer.step(theta, gradient, optimizer.init(theta), 0.1)
    optimizer.step(alone, {"w": gradient["w"][:1]}, optimizer.init(alone), 0.1)
    assert torch.equal(theta["w"][0], alone["w"][0])
    assert torch.equal(theta["w"][2], alone["w"][0])


def test_adam_by_hand():
    """Gradient 3: mean 0.1 * 3 / (1 - 0.9) = 3, square 0.001 * 9 / (1 - 0.999) = 9, step 0.1 * 3 / (3 + 1) = 0.075.

    Then gradient 0: mean 0.9 * 0.3 / (1 - 0.81) = 0.27 / 0.19, square 0.999 * 0.009 / (1 - 0.999^2) = 0.008991 /
    0.001999.
    """
    optimizer, theta = Adam(eps=1.0), {"w": torch.tensor([1.0], dtype=torch.float64)}
    state = optimizer.init(theta)
    optimizer.step(theta, {"w": torch.tensor([3.0], dtype=torch.float64)}, state, 0.1)
    assert theta["w"].item() == pytest.approx(1 - 0.075, rel=1e-12)
    optimizer.step(theta, {"w": torch.tensor([0.0], dtype=torch.float64)}, state, 0.1)
    second = 0.1 * (0.27 / 0.19) / ((0.008991 / 0.001999) ** 0.5 + 1)
    assert theta["w"].item() == pytest.approx(1 - 0.075 - second, rel=1e-12)


def test_momentum_by_hand():
    # velocity 1, then 0.5 * 1 + 1 = 1.5; Nesterov steps by gradient + 0.5 * velocity: 1.5, then 1.75
    for nesterov, expected in ((False, -0.1 * (1 + 1.5)), (True, -0.1 * (1.5 + 1.75))):
        optimizer, theta = SGD(momentum=0.5, nesterov=nesterov), {"w": torch.zeros(1, dtype=torch.float64)}
        state = optimizer.init(theta)
        for _ in range(2):
            optimizer.step(theta, {"w": torch.ones(1, dtype=torch.float64)}, state, 0.1)
        assert theta["w"].item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam(), AdamW()], ids=lambda o: o.name)
def test_single_precision_stays_single(optimizer):
    theta = {"w": torch.ones(2, 3)}
    state = optimizer.init(theta)
    optimizer.step(theta, {"w": torch.ones(2, 3)}, state, 0.1, torch.tensor([True, False]))
    assert theta["w"].dtype == torch.float32
    assert theta["w"][1].tolist() == [1.0, 1.0, 1.0]
    assert theta["w"][0, 0] < 1


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: SGD(momentum=1.0), "sgd: momentum must be at least 0 and below 1, got 1.0"),
        (lambda: SGD(momentum=-0.1), "sgd: momentum must be at least 0 and below 1, got -0.1"),
        (lambda: SGD(nesterov=True), "sgd: nesterov=true needs momentum: set momentum, for example 0.9"),
        (lambda: SGD(weight_decay=-1.0), "sgd: weight_decay must be a finite number of at least 0, got -1.0"),
        (lambda: Adam(beta1=1.0), "adam: beta1 must be at least 0 and below 1, got 1.0"),
        (lambda: Adam(beta2=float("nan")), "adam: beta2 must be at least 0 and below 1, got nan"),
        (lambda: AdamW(eps=-1.0), "adamw: eps must be a finite number of at least 0, got -1.0"),
        (
            lambda: AdamW(weight_decay=float("inf")),
            "adamw: weight_decay must be a finite number",
        ),
    ],
)
def test_impossible_settings_are_refused(build, message):
    with pytest.raises(ConfigError, match=message):
        build()


# ---- a shared body with cluster heads --------------------------------------------------------------------------------


K = 2


def with_heads(name: str) -> tuple[Subject, Any, Block, Params, Any, Tensor]:
    """A learner, a block, a body and two heads for each client, and the weights of the samples for each head."""
    subject = SUBJECTS[name]
    learner, block = subject.learner, subject.block(SIZES)
    drawn = learner.start([1, 2], torch.float64)
    heads = heads_of(learner, drawn, len(SIZES))
    body = {n: p[:1].expand(len(SIZES), *p.shape[1:]) for n, p in drawn.items() if not n.startswith(learner.head)}
    gamma = torch.rand(*block.y.shape, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return subject, learner, block, body, heads, gamma / gamma.sum(dim=2, keepdim=True)


def expected_heads(
    subject: Subject,
    start: Params,
    fixed: Params,
    block: Block,
    b: int,
    gamma: Tensor,
    training: LocalTraining,
    pull: tuple[float, Mapping[str, Tensor]] = (0.0, {}),
) -> Params:
    """Return the change of client b's moving parameters, heads as {HEAD.weight/k}; the `fixed` ones stay."""
    objectives = []

    def objective_on(x: Tensor, y: Tensor, shares: Tensor) -> Callable[[Params], Tensor]:
        def objective(theta: Params) -> Tensor:
            value = torch.zeros((), dtype=torch.float64)
            for k in range(K):
                whole = {
                    n.removesuffix(f"/{k}"): p
                    for n, p in (fixed | theta).items()
                    if n[-2:-1] != "/" or n[-1:] == str(k)
                }
                value = value + (subject.losses(whole, x, y) * shares[:, k]).sum()
            weight, centre = pull
            return value + sum(weight / 2 * ((theta[n] - to) ** 2).sum() for n, to in centre.items())

        return objective

    for batch in batches(replace(block, shares=gamma), training):
        real = batch.share[b] > 0
        if real.any():
            objectives.append(objective_on(batch.x[b, real], batch.y[b, real], batch.shares[b, real]))
    return train(start, objectives, training.optimizer, LR)


def split(heads: Any, head: str, b: int) -> Params:
    """Return client b's heads as separate parameters {HEAD.weight/k: (C, d)}."""
    return {f"{n}/{k}": p[b, k] for n, p in heads.params(head).items() for k in range(K)}


KINDS = ("free", "pulled")
HEAD_TRAININGS = {"full": FullBatch(steps=3), "mini": MiniBatch(batch_size=4, epochs=2)}
PULLED = {f"{name} {kind}": (HEAD_TRAININGS[name], kind == "pulled") for name in HEAD_TRAININGS for kind in KINDS}
WITH_HEADS = ["mlp", "deep mlp", "cnn", "representation"]
HEADS = pairwise(OPTIMIZERS, WITH_HEADS, HEAD_TRAININGS)
PULLED_HEADS = pairwise(OPTIMIZERS, WITH_HEADS, PULLED)


@pytest.mark.parametrize(
    ("design", "lists"),
    [(HEADS, (OPTIMIZERS, WITH_HEADS, HEAD_TRAININGS)), (PULLED_HEADS, (OPTIMIZERS, WITH_HEADS, PULLED))],
)
def test_every_pair_of_settings_of_heads_is_covered(design, lists):
    cases = [param.id.split("-") for param in design]
    for one, other in combinations(range(len(lists)), 2):
        assert {(case[one], case[other]) for case in cases} == set(product(lists[one], lists[other]))


@pytest.mark.parametrize(("optimizer", "name", "way"), PULLED_HEADS)
def test_heads_on_fixed_features_equal_torch(optimizer, name, way):
    training, pulled = way
    subject, learner, block, body, heads, gamma = with_heads(name)
    training = replace(training, optimizer=optimizer, prox=0.5 if pulled else 0.0)
    centre = replace(heads, weight=heads.weight.flip(1), bias=heads.bias.flip(1) + 0.1)
    z = learner.features(body, block.x)
    found = descend_heads(learner, heads, z, block, gamma, training, LR, centre if pulled else None)
    change = replace(heads, weight=found.weight - heads.weight, bias=found.bias - heads.bias)
    for b in range(len(SIZES)):
        start, fixed = split(heads, learner.head, b), {n: p[b] for n, p in body.items()}
        pull = (0.5, split(centre, learner.head, b)) if pulled else (0.0, {})
        expected = expected_heads(subject, start, fixed, block, b, gamma, training, pull)
        assert_close(split(change, learner.head, b), expected, LR)


@pytest.mark.parametrize(("optimizer", "name", "training"), HEADS)
def test_the_body_under_fixed_heads_equals_torch(optimizer, name, training):
    subject, learner, block, body, heads, gamma = with_heads(name)
    training = replace(training, optimizer=optimizer)
    change = descend_body(learner, body, heads, block, gamma, training, LR)
    for b in range(len(SIZES)):
        start, fixed = {n: p[b] for n, p in body.items()}, split(heads, learner.head, b)
        expected = expected_heads(subject, start, fixed, block, b, gamma, training)
        assert_close({n: p[b] for n, p in change.items()}, expected, LR)


@pytest.mark.parametrize(("optimizer", "name", "training"), HEADS)
def test_body_and_heads_together_equal_torch(optimizer, name, training):
    subject, learner, block, body, heads, gamma = with_heads(name)
    training = replace(training, optimizer=optimizer, prox=0.5)
    centre = replace(heads, weight=heads.weight.flip(1), bias=heads.bias.flip(1))
    change, moved = descend_together(learner, body, heads, block, gamma, training, LR, centre)
    for b in range(len(SIZES)):
        start = {n: p[b] for n, p in body.items()} | split(heads, learner.head, b)
        pull = (0.5, split(centre, learner.head, b))
        expected = expected_heads(subject, start, {}, block, b, gamma, training, pull)
        assert_close({n: p[b] for n, p in change.items()} | split(moved, learner.head, b), expected, LR)


# ---- whole runs ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("optimizer", [SGD(momentum=0.9), Adam(), AdamW()], ids=lambda o: o.name)
@pytest.mark.parametrize(("method", "learner"), [("fedavg", "linear"), ("ifca", "mlp"), ("fedem", "logistic")])
def test_a_run_is_the_same_on_another_engine_and_names_the_optimizer(method, learner, optimizer):
    case = Case(method, learner)
    plan = case.plan(optimizer=optimizer)
    assert plan.tiers.local.optimizer == optimizer
    one, other = case.run(plan), case.run(plan, Sequential)
    for a, b in zip(one.models, other.models, strict=True):
        for name, value in a.items():
            np.testing.assert_allclose(value, b[name], rtol=1e-9, atol=1e-9 * np.abs(value).max())
    path = "autograd" if learner == "linear" else "by-hand"
    assert {record["path"] for record in one.records} == {f"{path}:{optimizer.name}"}
    assert one.metrics["rounds"] == len(one.records)
