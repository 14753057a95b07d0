"""What enters the sums: the fast ways equal each client's own change, weighted and added up."""

import pytest
import torch

from coterie.core.population import Profile
from coterie.learners import make_learner
from coterie.learners.contribution import weigh
from coterie.learners.descent import LocalWork
from coterie.learners.perceptron import contribute_by_gram, gram_pays
from tests.core.make import class_data, make_block, regression_data

SIZES = [3, 9, 1, 6, 12]


def slow(learner, models, rows, block, work, lr, mass):
    """Client by client and lane by lane, each alone in its own descent."""
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
    "1 step": LocalWork(steps=1),
    "5 steps": LocalWork(steps=5),
    "proximal": LocalWork(steps=4, prox=0.3),
    "batches": LocalWork(steps=None, epochs=2, batch_size=4),
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
def test_the_gram_form_equals_autograd_also_where_it_does_not_pay(name):
    learner, block, models, rows, mass = case(*CASES[name])
    given = contribute_by_gram(models, rows, block, 6, 0.3, mass, None, learner.classes)
    for key, value in slow(learner, models, rows, block, LocalWork(steps=6), 0.3, mass).items():
        torch.testing.assert_close(given.sums[key], value, rtol=1e-9, atol=1e-12)


def test_the_gram_form_is_used_where_it_pays():
    """n=50, d=784, h=200, 10 steps: 2*10*50*784*200 = 157 M against 10*50^2*200 + 50^2*784 + 50*784*200 = 14.8 M.
    n=600, d=10, h=20, 1 step: 0.24 M against 7.2 M + 3.6 M + 0.12 M."""
    assert gram_pays(50, 784, 200, 10)
    assert not gram_pays(600, 10, 20, 1)


@pytest.mark.parametrize("name", CASES)
def test_a_client_without_mass_or_with_wild_data_leaves_no_trace(name):
    learner, block, models, rows, mass = case(*CASES[name])
    block.x[1] = 1e200
    mass[2] = 0
    memo = learner.score(models, block).memo
    given = learner.contribute(models, rows, block, LocalWork(steps=3), 1e150, mass, memo)
    assert not given.finite[1].any()
    for value in given.sums.values():
        assert not value.isnan().any()


def test_weigh_by_hand():
    """Row 0: 2 * 1 + 3 * 10 = 32; row 1: 5 * 100 = 500; the infinite change of the last client is left out."""
    change = {"w": torch.tensor([[[1.0]], [[10.0]], [[100.0]], [[torch.inf]]])}
    given = weigh(change, torch.tensor([[0], [0], [1], [1]]), torch.tensor([[2.0], [3.0], [5.0], [7.0]]), 3, "slow")
    assert given.sums["w"].tolist() == [[32.0], [500.0], [0.0]]
    assert given.finite.tolist() == [[True], [True], [True], [False]]
