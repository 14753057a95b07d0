"""Weighted sums of changes: fast computation paths equal the sum of the changes of single clients."""

from importlib import import_module

import pytest
import torch

from coterie.core.dataset import Profile
from coterie.learners import make_learner
from coterie.learners.contribution import all_finite, weigh
from coterie.learners.descent import batches
from coterie.learners.linear import flat_sum_pays
from coterie.learners.local_training import FullBatch, MiniBatch
from coterie.learners.perceptron import contribute_by_gram, gram_pays
from tests.core.make import class_data, make_block, regression_data

SIZES = [3, 9, 1, 6, 12]


def slow(learner, models, rows, block, work, lr, mass):
    """Return the sums, computed separately for each client and restart."""
    sums = {name: torch.zeros_like(p) for name, p in models.items()}
    for b in range(rows.shape[0]):
        for r in range(rows.shape[1]):
            theta = {name: p[rows[b, r]].expand(rows.shape[0], 1, *p.shape[1:]) for name, p in models.items()}
            change = learner.descend(theta, block, work, lr)
            for name in sums:
                sums[name][rows[b, r]] += mass[b, r] * change[name][b, 0]
    return sums


def case(spec, data, features, classes):
    learner = make_learner(spec, Profile(features, classes))
    block = make_block(data)
    models = learner.start([1, 2, 3, 4], torch.float64)
    rows = torch.tensor([[0, 3], [1, 2], [0, 2], [1, 3], [0, 3]])
    mass = torch.rand(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) + 0.5
    return learner, block, models, rows, mass


CASES = {
    "mlp": ("mlp:hidden=7", class_data(SIZES, (20,), 3), (20,), 3),
    "deep mlp": ("mlp:hidden=7-5-4", class_data(SIZES, (20,), 3), (20,), 3),
    "mlp for numbers": ("mlp:hidden=7", regression_data(SIZES, 20), (20,), None),
    "linear": ("linear:bias=true", regression_data(SIZES, 20), (20,), None),
    "logistic": ("logistic:l2=0.1", class_data(SIZES, (20,), 3), (20,), 3),
}
WORK = {
    "1 step": FullBatch(steps=1),
    "5 steps": FullBatch(steps=5),
    "proximal": FullBatch(steps=4, prox=0.3),
    "batches": MiniBatch(batch_size=4, epochs=2),
}


@pytest.mark.parametrize("scored", [True, False], ids=["scored", "not scored"])
@pytest.mark.parametrize("work", WORK.values(), ids=WORK)
@pytest.mark.parametrize("name", CASES)
def test_a_contribution_is_the_weighted_sum_of_the_clients_own_changes(name, work, scored):
    learner, block, models, rows, mass = case(*CASES[name])
    memo = learner.score(models, block).memo if scored else None
    given = learner.contribute(models, rows, block, work, 0.3, mass, memo)
    for key, value in slow(learner, models, rows, block, work, 0.3, mass).items():
        torch.testing.assert_close(given.sums[key], value, rtol=1e-9, atol=1e-12)
    assert given.finite.all()


@pytest.mark.parametrize("name", ["mlp", "deep mlp", "mlp for numbers"])
def test_the_gram_form_equals_autograd_even_if_it_is_slower(name):
    learner, block, models, rows, mass = case(*CASES[name])
    given = contribute_by_gram(models, rows, block, 6, 0.3, mass, None, learner.classes)
    for key, value in slow(learner, models, rows, block, FullBatch(steps=6), 0.3, mass).items():
        torch.testing.assert_close(given.sums[key], value, rtol=1e-9, atol=1e-12)


def test_the_gram_form_is_used_if_it_is_faster():
    """n=50, d=784, h=200, 10 steps: 2*10*50*784*200 = 157 M against 10*50^2*200 + 50^2*784 + 50*784*200 = 14.8 M.
    n=600, d=10, h=20, 1 step: 0.24 M against 7.2 M + 3.6 M + 0.12 M."""
    assert gram_pays(50, 784, 200, 10)
    assert not gram_pays(600, 10, 20, 1)


@pytest.mark.parametrize("name", CASES)
def test_a_client_without_mass_or_finite_data_does_not_contribute(name):
    learner, block, models, rows, mass = case(*CASES[name])
    block.x[1] = 1e200
    mass[2] = 0
    memo = learner.score(models, block).memo
    given = learner.contribute(models, rows, block, FullBatch(steps=3), 1e150, mass, memo)
    assert not given.finite[1].any()
    for value in given.sums.values():
        assert not value.isnan().any()


def test_weigh_by_hand():
    """Row 0: 2 * 1 + 3 * 10 = 32; row 1: 5 * 100 = 500; the infinite change of the last client is left out."""
    change = {"w": torch.tensor([[[1.0]], [[10.0]], [[100.0]], [[torch.inf]]])}
    given = weigh(change, torch.tensor([[0], [0], [1], [1]]), torch.tensor([[2.0], [3.0], [5.0], [7.0]]), 3, "slow")
    assert given.sums["w"].tolist() == [[32.0], [500.0], [0.0]]
    assert given.finite.tolist() == [[True], [True], [True], [False]]


def test_finite_refers_to_each_client_and_restart_even_if_the_sum_overflows():
    value = torch.ones(2, 2, 3)
    value[0, 1] = 3e38  # finite, but their sum is not in float32
    value[1, 0, 2] = torch.nan
    assert all_finite(value).tolist() == [[True, True], [False, True]]


# ---- sums of linear models without anybody's own change ------------------------------------------------------


def test_the_flat_sum_is_used_if_it_is_faster():
    """It computes all models where a client trains one a restart: 2 always, 4 up to n = 100, 22 up to n = 10."""
    assert flat_sum_pays(models=60, restarts=30, samples=1000)
    assert flat_sum_pays(models=4, restarts=1, samples=100)
    assert not flat_sum_pays(models=5, restarts=1, samples=100)
    assert flat_sum_pays(models=22, restarts=1, samples=10)
    assert not flat_sum_pays(models=1000, restarts=1, samples=10)


@pytest.mark.parametrize("steps", [1, 4])
@pytest.mark.parametrize("sizes", [SIZES, [6] * 5], ids=["ragged", "equal"])
def test_the_flat_sum_equals_the_sum_of_the_changes(sizes, steps, monkeypatch):
    learner, block, models, rows, mass = case("linear:bias=true", regression_data(sizes, 20), (20,), None)
    mass[3, 1] = 0
    work, memo = FullBatch(steps=steps, prox=0.2), learner.score(models, block).memo
    flat = learner.contribute(models, rows, block, work, 0.3, mass, memo)
    monkeypatch.setattr(import_module("coterie.learners.linear"), "flat_sum_pays", lambda *sizes: False)
    plain = learner.contribute(models, rows, block, work, 0.3, mass, memo)
    assert (flat.path, plain.path) == ("closed-form-flat", "closed-form")
    expected = slow(learner, models, rows, block, work, 0.3, mass)
    for key, value in expected.items():
        torch.testing.assert_close(flat.sums[key], value, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(plain.sums[key], value, rtol=1e-9, atol=1e-12)


def test_a_client_with_infinite_data_is_found_in_flat_sums():
    learner, block, models, rows, mass = case("linear", regression_data([4] * 5, 20), (20,), None)
    tame = learner.contribute(models, rows, block, FullBatch(steps=1), 0.3, mass, None)
    without = torch.where(torch.arange(5)[:, None] == 1, 0, mass)
    expected = learner.contribute(models, rows, block, FullBatch(steps=1), 0.3, without, None)
    block.x[1] = 1e200
    given = learner.contribute(models, rows, block, FullBatch(steps=1), 0.3, mass, None)
    assert (tame.path, given.path) == ("closed-form-flat", "closed-form")
    assert given.finite.tolist() == [[True, True], [False, False], [True, True], [True, True], [True, True]]
    torch.testing.assert_close(given.sums["weight"], expected.sums["weight"], rtol=1e-9, atol=1e-12)


def test_restarts_together_equal_restarts_alone():
    learner, block, models, rows, mass = case("linear", regression_data([9] * 5, 20), (20,), None)
    work = FullBatch(steps=3)
    together = learner.contribute(models, rows, block, work, 0.3, mass, learner.score(models, block).memo)
    for restart in range(2):
        own = {name: p[2 * restart : 2 * restart + 2] for name, p in models.items()}
        chosen = rows[:, restart : restart + 1] - 2 * restart
        memo = learner.score(own, block).memo
        alone = learner.contribute(own, chosen, block, work, 0.3, mass[:, restart : restart + 1], memo)
        torch.testing.assert_close(
            together.sums["weight"][2 * restart : 2 * restart + 2], alone.sums["weight"], rtol=1e-9, atol=1e-12
        )


# ---- the loss of mini-batches, and the way taken -------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(
    "work",
    [MiniBatch(batch_size=4, epochs=2), MiniBatch(batch_size=4, steps=5), MiniBatch(batch_size=4, steps=3, prox=0.3)],
)
def test_the_loss_of_mini_batches_is_computed_before_each_step(name, work):
    """Client by client: the losses on a batch, then the step, by `losses` and autograd on that batch alone."""
    learner, block, models, rows, mass = case(*CASES[name])
    given = learner.contribute(models, rows, block, work, 0.3, mass, None)
    for b in range(len(rows)):
        for r in range(rows.shape[1]):
            start = {key: p[rows[b, r]][None].clone() for key, p in models.items()}
            theta, seen = {key: p.clone() for key, p in start.items()}, []
            for batch in batches(block, work):
                real = batch.share[b] > 0
                if not real.any():
                    continue
                leaves = {key: p.clone().requires_grad_() for key, p in theta.items()}
                losses = learner.losses(leaves, batch.x[b : b + 1, real], batch.y[b : b + 1, real])
                seen += losses[0].tolist()
                objective = losses.mean() + sum(
                    work.prox / 2 * ((p - start[key]) ** 2).sum() for key, p in leaves.items()
                )
                if name == "logistic":
                    objective = objective + 0.05 * (leaves["weight"] ** 2).sum()
                gradients = torch.autograd.grad(objective, list(leaves.values()))
                theta = {key: theta[key] - 0.3 * g for key, g in zip(leaves, gradients, strict=True)}
            assert float(given.loss[b, r]) == pytest.approx(sum(seen) / len(seen), rel=1e-9)


@pytest.mark.parametrize("name", CASES)
def test_full_batch_steps_leave_the_loss_to_the_scores(name):
    learner, block, models, rows, mass = case(*CASES[name])
    assert learner.contribute(models, rows, block, FullBatch(steps=3), 0.3, mass, None).loss is None


@pytest.mark.parametrize(
    ("name", "work", "path"),
    [
        ("mlp", FullBatch(steps=5), "gram"),
        ("mlp", MiniBatch(batch_size=4, epochs=1), "by-hand"),
        ("mlp", FullBatch(steps=1), "autograd"),
        ("mlp", FullBatch(steps=5, prox=0.1), "autograd"),
        ("linear", FullBatch(steps=5), "closed-form-flat"),
        ("linear", MiniBatch(batch_size=4, epochs=1), "autograd"),
        ("logistic", FullBatch(steps=5), "by-hand"),
    ],
)
def test_a_contribution_names_its_computation_path(name, work, path):
    learner, block, models, rows, mass = case(*CASES[name])
    assert learner.contribute(models, rows, block, work, 0.3, mass, None).path == path


def test_an_infinite_loss_of_mini_batches_is_left_out():
    """Residuals of 1e200 have finite gradients but squares that are not."""
    learner, block, models, rows, mass = case("linear", regression_data([4] * 5, 20), (20,), None)
    block.y[2] = 1e200
    given = learner.contribute(models, rows, block, MiniBatch(batch_size=4, epochs=1), 0.3, mass, None)
    assert given.finite.all(dim=1).tolist() == [True, True, False, True, True]
    assert given.sums["weight"].abs().max() < 1e100
