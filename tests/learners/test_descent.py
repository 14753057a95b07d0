"""Mini-batches: every sample once in an epoch, a short last batch, independent of other clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.blocks import Block
from coterie.core.dataset import Profile
from coterie.learners import make_learner
from coterie.learners.descent import batches
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch
from tests.core.make import class_data, make_block, regression_data


def numbered_block(sizes: list[int], extra: int = 0) -> Block:
    """Sample j of a client has the label j and the feature 100 client + j."""
    data = [(100.0 * i + np.arange(n, dtype=float)[:, None], np.arange(n, dtype=float)) for i, n in enumerate(sizes)]
    return make_block(data, width=max(sizes) + extra)


def visits(block: Block, work: LocalTraining, client: int) -> list[list[int]]:
    """Return the samples of a client in each of its steps."""
    steps = []
    for batch in batches(block, work):
        counted = batch.share[client] > 0
        if batch.counts[client]:
            assert counted.any()
            assert (batch.x[client, counted, 0] - 100 * client == batch.y[client, counted]).all()
            assert batch.share[client][counted].tolist() == pytest.approx([1 / int(counted.sum())] * int(counted.sum()))
            steps.append([int(v) for v in batch.y[client][counted]])
        else:
            assert not counted.any()
    return steps


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=4), st.integers(1, 25), st.integers(1, 3), st.integers(0, 4))
def test_every_epoch_uses_every_sample_once_and_ends_with_a_short_batch(sizes, size, epochs, extra):
    block = numbered_block(sizes, extra)
    for client, n in enumerate(sizes):
        steps = visits(block, MiniBatch(batch_size=size, epochs=epochs), client)
        lengths = [size] * (n // size) + ([n % size] if n % size else [])
        assert [len(s) for s in steps] == lengths * epochs
        flat = [v for s in steps for v in s]
        for epoch in range(epochs):
            assert sorted(flat[epoch * n : (epoch + 1) * n]) == list(range(n))


def test_steps_continue_with_a_new_epoch():
    block = numbered_block([5, 7])
    steps = visits(block, MiniBatch(batch_size=2, steps=7), 0)
    assert [len(s) for s in steps] == [2, 2, 1, 2, 2, 1, 2]
    first, second = [v for s in steps[:3] for v in s], [v for s in steps[3:6] for v in s]
    assert sorted(first) == sorted(second) == list(range(5))
    assert first != second


def test_fewer_steps_than_an_epoch_stop_early():
    assert [len(s) for s in visits(numbered_block([9]), MiniBatch(batch_size=4, steps=2), 0)] == [4, 4]


def test_full_batches_use_every_sample_each_step():
    block = numbered_block([3, 5])
    assert [sorted(s) for s in visits(block, FullBatch(steps=2), 0)] == [[0, 1, 2]] * 2


def test_full_batch_shares_are_exact_in_double_precision():
    (batch,) = batches(numbered_block([3, 7]), FullBatch(steps=1))
    assert batch.share[0, :3].tolist() == [1 / 3] * 3
    assert batch.share[1].tolist() == [1 / 7] * 7


def test_clients_that_have_finished_take_no_step():
    flags = [(b.counts > 0).tolist() for b in batches(numbered_block([2, 6]), MiniBatch(batch_size=2, epochs=1))]
    assert flags == [[1, 1], [0, 1], [0, 1]]


def test_keys_decide_the_order():
    block = numbered_block([12])
    work = MiniBatch(batch_size=3, epochs=1)
    other = replace(block, keys=block.keys + np.uint64(1))
    assert visits(block, work, 0) == visits(block, work, 0)
    assert visits(block, work, 0) != visits(other, work, 0)


def starts(learner, count: int) -> dict:
    one = learner.start([11], torch.float64)
    return {n: p[:, None].expand(count, 1, *p.shape[1:]) for n, p in one.items()}


@pytest.mark.parametrize(
    "work", [FullBatch(steps=4), MiniBatch(batch_size=3, epochs=2), MiniBatch(batch_size=4, steps=5, prox=0.3)]
)
@pytest.mark.parametrize("spec", ["linear:bias=true", "logistic:l2=0.1", "mlp:hidden=4", "cnn:channels=1,hidden=3"])
def test_a_clients_result_does_not_depend_on_its_neighbours(spec, work):
    shape = (4, 4)
    classes = None if spec.startswith("linear") else 3
    learner = make_learner(spec, Profile(shape, classes))
    sizes = [5, 9, 8, 10]
    data = class_data(sizes, shape, 3)
    if classes is None:
        data = [(x, y.astype(float)) for x, y in data]
    together = learner.descend(starts(learner, 4), make_block(data), work, 0.1)
    for i in range(4):
        alone = learner.descend(starts(learner, 1), make_block(data[i : i + 1], [f"c{i}"]), work, 0.1)
        for name, value in alone.items():
            torch.testing.assert_close(together[name][i], value[0], rtol=1e-9, atol=1e-12)


def test_mini_batch_steps_equal_a_plain_loop():
    d, lr, prox = 3, 0.1, 0.5
    sizes = [5, 7]
    data = regression_data(sizes, d)
    labelled = [(x, np.arange(len(y), dtype=float)) for x, y in data]  # to read the order off the batches
    work = MiniBatch(batch_size=2, epochs=2, prox=prox)
    order = [visits_by_label(make_block(labelled), work, i) for i in range(2)]
    learner = make_learner("linear", Profile((d,), None))
    change = learner.descend(starts(learner, 2), make_block(data), work, lr)["weight"]
    for i, (x, y) in enumerate(data):
        start = learner.start([11], torch.float64)["weight"][0].numpy()
        w = start.copy()
        for rows in order[i]:
            gradient = x[rows].T @ (x[rows] @ w - y[rows]) / len(rows)
            w = w - lr * (gradient + prox * (w - start))
        np.testing.assert_allclose(change[i, 0].numpy(), w - start, rtol=1e-10, atol=1e-12)


def visits_by_label(block: Block, work: LocalTraining, client: int) -> list[list[int]]:
    return [[int(v) for v in b.y[client][b.share[client] > 0]] for b in batches(block, work) if b.counts[client]]


@pytest.mark.parametrize("spec", ["linear", "mlp:hidden=4", "linear:bias=true,degree=2"])
def test_after_one_step_the_change_is_the_rate_times_the_gradient(spec):
    learner = make_learner(spec, Profile((3,), None))
    block = make_block(regression_data([4, 8], 3))
    theta = starts(learner, 2)
    leaves = {n: p[:, 0].clone().requires_grad_() for n, p in theta.items()}
    objective = block.mean(learner.losses(leaves, block.x, block.y)).sum()
    gradients = dict(zip(leaves, torch.autograd.grad(objective, list(leaves.values())), strict=True))
    change = learner.descend(theta, block, FullBatch(steps=1), 0.5)
    unit = learner.descend(theta, block, FullBatch(steps=1), 1.0)
    for name, gradient in gradients.items():
        torch.testing.assert_close(change[name][:, 0], -0.5 * gradient, rtol=1e-12, atol=1e-14)
        assert torch.equal(change[name], 0.5 * unit[name])


def test_descend_works_without_gradients_enabled_and_does_not_change_theta():
    learner = make_learner("mlp:hidden=4", Profile((3,), None))
    theta = starts(learner, 1)
    before = {n: p.clone() for n, p in theta.items()}
    with torch.no_grad():
        change = learner.descend(theta, make_block(regression_data([4], 3)), FullBatch(steps=2), 0.1)
    assert all(torch.equal(theta[n], before[n]) for n in theta)
    assert not any(c.requires_grad for c in change.values())
