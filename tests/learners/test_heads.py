"""Cluster heads on a shared body: fast steps equal autograd, and all heads together equal one after the other."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from coterie.core.dataset import Profile
from coterie.learners import make_learner
from coterie.learners.descent import batches, plan_batches
from coterie.learners.heads import (
    descend_body,
    descend_body_by_autograd,
    descend_heads,
    descend_together,
    for_heads,
    head_losses,
    heads_of,
)
from coterie.learners.local_training import FullBatch, MiniBatch
from tests.core.make import class_data, make_block, regression_data

SIZES, K, LR = [3, 9, 1, 6, 12], 3, 0.3
CASES = {
    "mlp": ("mlp:hidden=7", class_data(SIZES, (20,), 3), 3),
    "deep mlp": ("mlp:hidden=7-5-4", class_data(SIZES, (20,), 3), 3),
    "mlp for numbers": ("mlp:hidden=7-5", regression_data(SIZES, 20), None),
}
WORK = {
    "5 steps": FullBatch(steps=5),
    "batches": MiniBatch(batch_size=4, epochs=2),
}


def case(name):
    """Return a learner, a block of clients of several sizes, a body and three heads, and sample weights."""
    spec, data, classes = CASES[name]
    learner, block = make_learner(spec, Profile((20,), classes)), make_block(data)
    drawn = learner.start([1, 2, 3], torch.float64)
    heads = heads_of(learner, drawn, len(block.y))
    body = {n: p[:1].expand(len(block.y), *p.shape[1:]) for n, p in drawn.items() if not n.startswith(learner.head)}
    gamma = torch.rand(*block.y.shape, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return learner, block, body, heads, gamma / gamma.sum(dim=2, keepdim=True)


def one_head(learner, heads, body, k):
    """Return the complete model of each client with head k, {name: (B, ...)}."""
    return body | {f"{learner.head}.weight": heads.weight[:, k], f"{learner.head}.bias": heads.bias[:, k]}


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", CASES)
def test_the_body_stepped_by_hand_is_the_one_stepped_by_autograd(name, work):
    learner, block, body, heads, gamma = case(name)
    part = replace(block, shares=gamma)
    by_hand = learner.descend_body(body, heads, part, work, LR)
    by_autograd = descend_body_by_autograd(learner, body, heads, part, work, LR)
    assert by_hand.keys() == by_autograd.keys() == body.keys()
    for layer, change in by_autograd.items():
        assert change.abs().max() > 1e-3, "there must be a change to see"
        torch.testing.assert_close(by_hand[layer], change, rtol=1e-12, atol=1e-12)


def test_other_training_of_the_body_uses_autograd():
    learner, block, body, heads, gamma = case("mlp")
    work = FullBatch(steps=4, prox=0.5)
    assert learner.descend_body(body, heads, replace(block, shares=gamma), work, LR) is None
    pulled = descend_body(learner, body, heads, block, gamma, work, LR)
    free = descend_body(learner, body, heads, block, gamma, replace(work, prox=0.0), LR)
    assert pulled["layer0.weight"].norm() < free["layer0.weight"].norm()


@pytest.mark.parametrize("name", CASES)
def test_losses_of_all_heads_are_those_of_one_after_the_other(name):
    learner, block, body, heads, _ = case(name)
    found = head_losses(learner, heads, learner.features(body, block.x), block.y)
    for k in range(K):
        expected = learner.losses(one_head(learner, heads, body, k), block.x, block.y)
        torch.testing.assert_close(found[..., k], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", CASES)
def test_heads_stepped_at_once_are_those_stepped_one_after_the_other(name, work):
    """Compare with autograd on the complete model of one client, of which only the head is trained."""
    learner, block, body, heads, gamma = case(name)
    found = descend_heads(learner, heads, learner.features(body, block.x), block, gamma, work, LR)
    for k in range(K):
        theta = {n: p.clone() for n, p in one_head(learner, heads, body, k).items()}
        names = [f"{learner.head}.weight", f"{learner.head}.bias"]
        for batch in batches(replace(block, shares=gamma), work):
            leaves = theta | {n: theta[n].detach().requires_grad_() for n in names}
            loss = (learner.losses(leaves, batch.x, batch.y) * batch.shares[..., k]).sum()
            for n, gradient in zip(names, torch.autograd.grad(loss, [leaves[n] for n in names]), strict=True):
                theta[n] = theta[n] - LR * gradient
        torch.testing.assert_close(found.weight[:, k], theta[names[0]], rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(found.bias[:, k], theta[names[1]], rtol=1e-10, atol=1e-12)


def convolving() -> nn.Module:
    """Return a module with a normalisation in evaluation mode and a frozen layer."""
    norm = nn.BatchNorm2d(2).eval()
    norm.running_mean.fill_(0.3)
    built = nn.Sequential(nn.Unflatten(1, (1, 4, 5)), nn.Conv2d(1, 2, 3), norm, nn.ReLU(), nn.Flatten())
    built.extend([nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3)])
    built[5].weight.requires_grad_(False)
    return built


@pytest.mark.parametrize("together", [False, True], ids=["body", "together"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_convolving_module_with_heads_equals_a_plain_loop_over_clients(work, together):
    learner, block = make_learner(convolving, Profile((20,), 3)), make_block(class_data(SIZES, (20,), 3))
    _, _, _, _, gamma = case("mlp")
    drawn = learner.start([1, 2, 3], torch.float64)
    heads = heads_of(learner, drawn, len(block.y))
    body = {n: p[:1].expand(len(block.y), *p.shape[1:]) for n, p in drawn.items() if not n.startswith(learner.head)}
    net = learner.module.double()
    if together:
        change, moved = descend_together(learner, body, heads, block, gamma, work, LR)
    else:
        change = descend_body(learner, body, heads, block, gamma, work, LR)
    for b in range(len(SIZES)):
        theta = {n: p[b].clone() for n, p in body.items()}
        tops = [{n: p[b, k].clone() for n, p in heads.params(learner.head).items()} for k in range(K)]
        for batch in batches(replace(block, shares=gamma), work):
            leaves = {n: p.detach().requires_grad_() for n, p in theta.items()}
            own = [{n: p.detach().requires_grad_(together) for n, p in top.items()} for top in tops]
            said = [functional_call(net, leaves | top, (batch.x[b],)) for top in own]
            losses = torch.stack([nn.functional.cross_entropy(o, batch.y[b], reduction="none") for o in said], dim=1)
            loss = (losses * batch.shares[b]).sum()
            wanted = [leaves, *own] if together else [leaves]
            gradients = iter(torch.autograd.grad(loss, [p for part in wanted for p in part.values()]))
            stepped = [{n: p.detach() - LR * next(gradients) for n, p in part.items()} for part in wanted]
            theta, tops = stepped[0], stepped[1:] or tops
        for n, p in theta.items():
            torch.testing.assert_close(change[n][b], p - body[n][b], rtol=1e-9, atol=1e-12)
        for k, top in enumerate(tops if together else []):
            for n, p in moved.params(learner.head).items():
                torch.testing.assert_close(p[b, k], top[n] - heads.params(learner.head)[n][b, k], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
def test_a_step_has_the_weight_of_each_sample_for_each_head(work):
    """The weight is 1 for the first head, and the number of the sample, its feature, for the second."""
    block = make_block(class_data(SIZES, (20,), 3))
    numbers = torch.arange(block.y.numel(), dtype=torch.float64).reshape(block.y.shape)
    x, counted = numbers[..., None].expand(block.x.shape), torch.stack([torch.ones_like(numbers), numbers], dim=2)
    for batch in batches(for_heads(replace(block, x=x), counted), work):
        torch.testing.assert_close(batch.shares[..., 0], batch.share, rtol=1e-12, atol=0)
        torch.testing.assert_close(batch.shares[..., 1], batch.share * batch.x[..., 0], rtol=1e-12, atol=0)


def test_steps_planned_once_are_those_planned_twice():
    learner, block, body, heads, gamma = case("mlp")
    work, z = WORK["batches"], learner.features(body, block.x)
    planned = plan_batches(for_heads(block, gamma), work)
    once, twice = (descend_heads(learner, heads, z, block, gamma, work, LR, planned=plan) for plan in (planned, None))
    assert torch.equal(once.weight, twice.weight)
    once, twice = (descend_body(learner, body, heads, block, gamma, work, LR, plan) for plan in (planned, None))
    assert all(torch.equal(once[name], twice[name]) for name in body)
