"""Rounds in one pass over the samples equal a plain loop over clients, whatever the number of threads and chunks."""

import itertools
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from coterie.core.blocks import Memory
from coterie.core.dataset import Profile
from coterie.core.threads import Workers
from coterie.engines.threads import in_threads
from coterie.learners import make_learner, one_pass
from coterie.learners.linear import Linear
from coterie.learners.local_training import FullBatch, MiniBatch, ProximalStep
from coterie.learners.one_pass import Chunks, RoundWork
from coterie.learners.one_pass_kernels import exponential, log_of_one_plus
from coterie.learners.optimizers import SGD
from tests.core.make import class_data, make_block, make_shard, regression_data

SIZES = [3, 9, 1, 6, 12, 4, 5]
D = 6
CASES = {
    "linear": ("linear", None),
    "linear with bias": ("linear:bias=true,half=false", None),
    "binary": ("logistic:l2=0.1", 2),
    "binary without bias": ("logistic:bias=false", 2),
    "classes": ("logistic:l2=0.1", 3),
}
WORK = {"1 step": FullBatch(steps=1), "4 steps": FullBatch(steps=4), "proximal": FullBatch(steps=3, prox=0.3)}
FIXED = torch.tensor([[0, 3], [-1, 2], [1, -1], [-1, -1], [0, 2], [1, 3], [0, -1]])


class Absolute(Linear):
    """Linear regression with another loss."""

    def loss(self, outputs, y):
        return (outputs - y).abs()


def samples(classes):
    return regression_data(SIZES, D) if classes is None else class_data(SIZES, (D,), classes)


def case(name, training, **changes):
    """Return the learner and the work of a round with two restarts of two clusters."""
    spec, classes = CASES[name]
    learner = make_learner(spec, Profile((D,), classes))
    models = learner.start([1, 2, 3, 4], torch.float64)
    if "bias" in models:
        models["bias"] = torch.randn(models["bias"].shape, generator=torch.Generator().manual_seed(0)).double()
    mass = torch.linspace(0.5, 2, len(SIZES)).double()
    work = RoundWork(models, 2, None, make_shard(samples(classes)), training, 0.1, mass)
    return learner, replace(work, **changes)


def slow(learner, work):
    """Return models, losses and sums from a loop over clients and restarts, with the matrix products of torch."""
    rows, losses = torch.empty(len(SIZES), 2, dtype=torch.int64), torch.empty(len(SIZES), 2, dtype=torch.float64)
    sums = {name: torch.zeros_like(p) for name, p in work.models.items()}
    shard = work.shard
    for c, (start, stop) in enumerate(zip(shard.starts, shard.stops, strict=True)):
        block = make_block([(shard.x[start:stop].numpy(), shard.y[start:stop].numpy())])
        table = block.mean(learner.score(work.models, block).losses)[0]
        for r in range(2):
            own = 2 * r + int(table[2 * r : 2 * r + 2].argmin())
            if work.fixed is not None and work.fixed[c, r] >= 0:
                own = int(work.fixed[c, r])
            rows[c, r], losses[c, r] = own, table[own]
            theta = {name: p[own][None, None] for name, p in work.models.items()}
            for name, change in learner.descend(theta, block, work.training, work.lr).items():
                sums[name][own] += work.mass[c] * change[0, 0]
    return rows, losses, sums


def check(learner, work, rtol=1e-12):
    found, (rows, losses, sums) = learner.one_pass(work), slow(learner, work)
    assert found.rows.equal(rows)
    torch.testing.assert_close(found.loss, losses, rtol=rtol, atol=0)
    for name, value in sums.items():
        torch.testing.assert_close(found.sums[name], value, rtol=rtol, atol=rtol)
    assert found.finite


@pytest.mark.parametrize("fixed", [None, FIXED], ids=["chosen", "assigned"])
@pytest.mark.parametrize("training", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", CASES)
def test_a_round_in_one_pass_equals_a_loop_over_clients(name, training, fixed):
    check(*case(name, training, fixed=fixed))
    if name.startswith("linear") and training.steps > 1:  # with stored matrices: of samples, and of features
        check(*case(name, training, fixed=fixed, memory=Memory(1 << 20)))


def test_float32_is_supported():
    learner, work = case("linear", FullBatch(steps=1))
    shard = work.shard.to(torch.float32, torch.device("cpu"))
    work = replace(work, models={"weight": work.models["weight"].float()}, shard=shard)
    assert learner.one_pass(work).sums["weight"].dtype == torch.float32
    rows, _, sums = slow(learner, replace(work, mass=work.mass.float()))
    assert learner.one_pass(work).rows.equal(rows)
    torch.testing.assert_close(learner.one_pass(work).sums["weight"], sums["weight"], rtol=1e-5, atol=1e-5)


def test_matrices_are_stored_only_if_they_fit():
    learner, work = case("linear", FullBatch(steps=4), memory=Memory(1 << 20))
    learner.one_pass(work)
    sides = [min(size, D) for size in SIZES]
    assert work.memory.used == 8 * sum(side**2 for side in sides)
    too_small = replace(work, memory=Memory(8))
    learner.one_pass(too_small)
    assert not too_small.memory.kept


def test_sums_do_not_depend_on_the_number_of_threads(monkeypatch):
    monkeypatch.setattr(one_pass, "CHUNK_BYTES", 4 * D * 8)
    monkeypatch.setattr(one_pass, "THREAD_BYTES", 1)
    learner, work = case("linear", FullBatch(steps=1))
    alone = learner.one_pass(work)
    assert len(Chunks.of(work)) > 4
    for threads in (2, 3, 16):
        shared = learner.one_pass(replace(work, workers=Workers(threads, partial(in_threads, threads=threads))))
        assert shared.sums["weight"].equal(alone.sums["weight"])
        assert shared.loss.equal(alone.loss)
    check(learner, work)


@pytest.mark.parametrize("count", [1, 2, 5, 7])
def test_chunks_cover_all_clients_with_about_equally_many_samples(monkeypatch, count):
    monkeypatch.setattr(one_pass, "MOST_CHUNKS", count)
    monkeypatch.setattr(one_pass, "CHUNK_BYTES", 1)
    bounds = Chunks.of(case("linear", FullBatch())[1]).bounds
    assert len(bounds) == count + 1
    assert (bounds[0], bounds[-1]) == (0, len(SIZES))
    assert (np.diff(bounds) >= 0).all()
    each = [sum(SIZES[a:b]) for a, b in itertools.pairwise(bounds)]
    assert max(each) <= sum(SIZES) / count + max(SIZES)


def test_sums_of_chunks_are_limited(monkeypatch):
    monkeypatch.setattr(one_pass, "CHUNK_BYTES", 1)
    work = case("linear", FullBatch())[1]
    monkeypatch.setattr(one_pass, "SUMS_BYTES", 3 * work.models["weight"].nbytes)
    assert len(Chunks.of(work)) == 3
    monkeypatch.setattr(one_pass, "SUMS_BYTES", 0)
    assert len(Chunks.of(work)) == 1


def test_overflow_is_reported():
    learner, work = case("linear", FullBatch(steps=1))
    huge = {name: torch.full_like(p, 1e300) for name, p in work.models.items()}
    assert not learner.one_pass(replace(work, models=huge)).finite


def test_only_plain_full_batch_steps_are_done_in_one_pass():
    def pays(name, training):
        learner, work = case(name, training)
        return learner.one_pass_pays(training, work.models)

    for name in CASES:
        assert pays(name, FullBatch(steps=5, prox=0.1))
        assert not pays(name, MiniBatch(batch_size=2))
        assert not pays(name, ProximalStep())
        assert not pays(name, FullBatch(optimizer=SGD(momentum=0.9)))
    absolute = Absolute(D)
    assert not absolute.one_pass_pays(FullBatch(), absolute.start([1, 2], torch.float64))
    squares = make_learner("linear:degree=2", Profile((D,), None))
    assert not squares.one_pass_pays(FullBatch(), squares.start([1, 2], torch.float64))


def test_exponentials_and_logarithms_are_precise():
    z = np.concatenate([-np.geomspace(1e-12, 700, 4001), np.linspace(0, 5, 100)])
    np.testing.assert_allclose([exponential(value) for value in z], np.exp(z), rtol=1e-15)
    e = np.geomspace(1e-20, 1, 4001)
    np.testing.assert_allclose([log_of_one_plus(value) for value in e], np.log1p(e), rtol=1e-15)
    assert exponential(-1e6) < 1e-300
    assert np.isnan(exponential(np.nan))
