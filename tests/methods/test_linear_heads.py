"""Heads solved on a shared subspace: by hand, against autograd, and against a plain loop over samples."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch

import coterie
from coterie.core.clusters import Clusters
from coterie.core.dataset import FederatedDataset
from coterie.core.messages import Slotted
from coterie.errors import ConfigError
from coterie.evaluate.subspace import subspace_distance
from coterie.server.solved_heads import basis_gradient, least_squares_heads, solve_heads
from coterie.training.fitting import execute, initialize
from coterie.training.planning import prepare

SMALL = {"clients": 9, "samples": 6, "dimension": 5, "width": 2, "groups": 3, "imbalance": 3.0, "noise": 0.3}


def small(seed: int = 0, **more: object) -> FederatedDataset:
    return coterie.scenario("linear-representation", seed=seed, **{**SMALL, **more})


def test_one_round_by_hand():
    """X = I, y = (2, 1), B = (1, 0): S = (1, 0), s = (2, 1), theta = 2, gradient (S 2 - s) 2 / 2 = (0, -1).

    A step of 0.75 gives (1, 0.75) = 1.25 (0.8, 0.6), and the head in the new basis is 1.25 x 2.
    """
    params = {"head.weight": torch.zeros(1, 1, 1).double(), "head.bias": torch.ones(1, 1).double()}
    clusters = Clusters(params, 1, body={"body.weight": torch.tensor([[[1.0, 0.0]]]).double()})
    arrays = {"gram": torch.tensor([[[1.0], [0.0]]]), "cross": torch.tensor([[2.0, 1.0]]), "mass": torch.tensor([2.0])}
    pooled = Slotted(torch.arange(1), {name: a.double() for name, a in arrays.items()}, torch.tensor([2]))
    after = solve_heads(clusters, pooled, 0.75)
    assert after.shared["body.weight"].flatten().tolist() == pytest.approx([0.8, 0.6], abs=1e-12)
    assert after.params["head.weight"].item() == pytest.approx(2.5, abs=1e-12)
    assert after.params["head.bias"].item() == 0  # the initial intercept is gone


def test_parallel_restarts_do_not_mix():
    """Two restarts of two clusters, where no client joined slot 1: each restart is solved as if it were alone."""
    random = torch.Generator().manual_seed(1)
    heads, bias, body, gram, cross = (
        torch.randn(*shape, generator=random).double() for shape in ((4, 1, 2), (4, 1), (2, 2, 5), (3, 5, 2), (3, 5))
    )
    arrays = {"gram": gram, "cross": cross, "mass": torch.tensor([3.0, 2.0, 4.0]).double()}
    slots, counts = torch.tensor([0, 2, 3]), torch.ones(3, dtype=torch.int64)
    clusters = Clusters({"head.weight": heads, "head.bias": bias}, 2, 2, {"body.weight": body})
    both = solve_heads(clusters, Slotted(slots, arrays, counts), 0.3)
    for restart, held in enumerate(([0], [1, 2])):
        own = Slotted(slots[held] - 2 * restart, {n: a[held] for n, a in arrays.items()}, counts[held])
        alone = solve_heads(clusters.restart(restart), own, 0.3)
        assert torch.equal(both.restart(restart).shared["body.weight"], alone.shared["body.weight"])
        assert torch.equal(both.restart(restart).params["head.weight"], alone.params["head.weight"])
    assert torch.equal(both.params["head.weight"][1], heads[1])


def test_the_step_on_the_basis_is_its_gradient():
    random = torch.Generator().manual_seed(0)
    x, y, basis = (torch.randn(*shape, generator=random).double() for shape in ((3, 7, 5), (3, 7), (5, 2)))
    gram, cross = x.transpose(1, 2) @ (x @ basis), (x.transpose(1, 2) @ y[..., None])[..., 0]
    theta = least_squares_heads(basis, gram, cross)
    leaf = basis.clone().requires_grad_()
    (((x @ leaf @ theta[..., None])[..., 0] - y) ** 2).sum().div(2 * 21).backward()
    assert torch.allclose(basis_gradient(theta, gram, cross, 21.0), leaf.grad, rtol=0, atol=1e-12)
    for k in range(3):
        assert np.allclose(theta[k], np.linalg.lstsq(x[k] @ basis, y[k], rcond=None)[0], rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "options"),
    [("linear-heads", {}), ("linear-heads", {"client_weight": "uniform"}), ("linear-heads-found", {"clusters": 3})],
)
def test_rounds_against_a_plain_loop(method, options):
    data, rate, rounds = small(), 0.4, 6
    plan = prepare(data, method, None, {"rounds": rounds, "lr": rate, "seed": 1, **options})
    initialized = initialize(plan)
    first = [{name: v.numpy().copy() for name, v in model.items()} for model in initialized.state.clusters.models()]
    result = execute(initialized, None)

    train, basis = data.train, first[0]["body.weight"].T
    heads = [model["head.weight"][0] for model in first]
    clients = [(train.x.numpy()[a:b], train.y.numpy()[a:b]) for a, b in zip(train.starts, train.stops, strict=True)]
    for _ in range(rounds):
        chosen = list(data.truth)
        if method == "linear-heads-found":
            chosen = [int(np.argmin([((x @ basis @ h - y) ** 2).mean() for h in heads])) for x, y in clients]
        gradient, total, turned = np.zeros_like(basis), 0.0, {}
        for k in sorted(set(chosen)):
            own = [client for client, at in zip(clients, chosen, strict=True) if at == k]
            counts = [1 / len(y) if "client_weight" in options else 1.0 for _, y in own]
            roots = np.concatenate([np.full(len(y), count**0.5) for (_, y), count in zip(own, counts, strict=True)])
            x, y = np.concatenate([x for x, _ in own]), np.concatenate([y for _, y in own])
            theta = np.linalg.lstsq((x @ basis) * roots[:, None], y * roots, rcond=None)[0]
            for sample, target, root in zip(x, y, roots, strict=True):
                gradient += root**2 * (sample @ basis @ theta - target) * np.outer(sample, theta)
                total += root**2
            turned[k] = theta
        q, r = np.linalg.qr(basis - rate * gradient / total)
        sign = np.sign(np.diag(r))
        basis = q * sign
        for k, theta in turned.items():
            heads[k] = (r * sign[:, None]) @ theta
    for model, head in zip(result.models, heads, strict=True):
        assert np.abs(model["body.weight"].T - basis).max() < 1e-9
        assert np.abs(model["head.weight"][0] - head).max() < 1e-9
        assert model["head.bias"] == 0
    distance = np.linalg.norm((np.eye(5) - basis @ basis.T) @ data.true_basis, ord=2)
    assert result.records[-1]["subspace_distance"] == pytest.approx(distance, abs=1e-9)
    assert result.metrics["subspace_distance"] == result.records[-1]["subspace_distance"]
    apart = np.linalg.norm(data.true_models[:, None] - np.stack(heads) @ basis.T, axis=2)
    error = min(max(apart[k, at] for k, at in enumerate(matched)) for matched in permutations(range(3)))
    assert result.metrics["parameter_error"] == pytest.approx(error, abs=1e-9)


def test_subspace_distance_by_hand():
    plane = np.eye(3)[:, :2]
    tilted = np.array([[1, 0], [0, 3**0.5 / 2], [0, 0.5]])  # one direction turned by 30 degrees, sine 1/2
    assert subspace_distance(plane, tilted) == pytest.approx(0.5, abs=1e-12)
    assert subspace_distance(plane @ np.array([[2.0, 1], [0, 3]]), plane) < 1e-15  # the same plane in other vectors
    assert subspace_distance(plane[:, :1], plane) == pytest.approx(1)  # a direction is missing


def test_the_scenario_has_the_stated_properties():
    data = small(noise=0.0, samples=20)
    sizes, heads = data.train.sizes, data.true_models @ data.true_basis
    by_group = [set(sizes[data.truth == k].tolist()) for k in range(3)]
    assert by_group == [{31}, {18}, {10}]  # 20 times 3, 3^0.5 and 1, over their mean 1.911
    assert np.allclose(np.linalg.norm(heads, axis=1), 2**0.5)
    assert np.allclose(data.true_basis.T @ data.true_basis, np.eye(2))
    x, y = data.train.x.numpy(), data.train.y.numpy()
    assert np.allclose(y, (x * data.true_models[np.repeat(data.truth, sizes)]).sum(axis=1))
    drifting = small(noise=0.0, drift=0.5)
    a, b = drifting.train.starts[0], drifting.train.stops[0]
    own = np.linalg.lstsq(
        drifting.train.x.numpy()[a:b] @ drifting.true_basis, drifting.train.y.numpy()[a:b], rcond=None
    )
    assert own[1] < 1e-20  # a client's own head lies in the same subspace
    assert np.abs(own[0] - drifting.true_models[drifting.truth[0]] @ drifting.true_basis).max() > 1e-3


@pytest.mark.parametrize(
    ("options", "says"), [({"groups": 1}, "width=2 needs"), ({"imbalance": 1000.0}, "imbalance=1000 would leave")]
)
def test_a_scenario_without_an_answer_is_refused(options, says):
    with pytest.raises(ConfigError, match=says):
        small(**options)


def test_problems_without_a_solution_are_refused():
    with pytest.raises(ConfigError, match="linear representation, but the learner is linear"):
        coterie.fit(small(), "linear-heads", learner="linear")
    with pytest.raises(ConfigError, match="between 1 and the 5 features, got 6"):
        coterie.fit(small(), "linear-heads", learner="representation:width=6")


@pytest.mark.filterwarnings(
    "ignore::coterie.errors.DivergenceWarning"
)  # one step of the ordinary length is too long for a bilinear model
def test_mixtures_of_heads_share_the_subspace_too():
    result = coterie.fit(small(), "fedem", shared="body", rounds=2, local_steps=1)
    assert all(0 < record["subspace_distance"] <= 1 for record in result.records)
    assert "subspace_distance" not in coterie.fit(small(), "ifca", rounds=1, restarts=1).metrics  # a basis for each
