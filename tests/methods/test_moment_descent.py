"""Moment descent as a whole: the subspace, the anchors' paths, their groups, and mistakes of users."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import combinations_with_replacement

import numpy as np
import pytest
import torch

import coterie
from coterie.client.tasks import anchor_step
from coterie.core.dataset import FederatedDataset
from coterie.data.arrays import stack_shard
from coterie.engines.simulated import Simulated
from coterie.errors import ConfigError, TrainingError
from coterie.evaluate.metrics import parameter_error
from coterie.methods.anchors import (
    choose_anchors,
    default_anchors,
    fewest_as_good,
    group_anchors,
    groups_shown,
    miss_probability,
    recommended,
)
from coterie.methods.exchanges import Cost
from coterie.methods.moment_descent import Coarse, MomentDescent, _Server, whitening
from coterie.training.planning import prepare


def federation_of(data: FederatedDataset) -> Simulated:
    federation = prepare(data, "ifca", "linear", {"init": "random", "restarts": 1}).federation
    assert isinstance(federation, Simulated)
    return federation


def population(**options) -> FederatedDataset:
    given = {"clients": 150, "samples": "30", "dimension": 12, "noise": "0.1", "separation": 1.0, "test_samples": 5}
    return coterie.scenario("mixed-regression", **given | options)


def descend(data: FederatedDataset, seed: int = 0, federation=None, k: int | None = 3, **settings) -> Coarse:
    width, clients = data.train.x.shape[1], federation or federation_of(data)
    with torch.no_grad():
        return MomentDescent(**settings).descend(clients, width, k, seed, torch.float64, torch.device("cpu"))


def covered(data: FederatedDataset, found: Coarse) -> bool:
    assert data.truth is not None
    return len(np.unique(data.truth[found.anchors])) == 3


def moment_matrix(data: FederatedDataset, theta: np.ndarray, two_points: bool) -> np.ndarray:
    """Return Y, computed client by client."""
    total, mass = np.zeros((theta.size, theta.size)), 0.0
    for a, b in zip(data.train.starts, data.train.stops, strict=True):
        x, y = data.train.x[a:b].numpy(), data.train.y[a:b].numpy()
        eps = (y - x @ theta)[:, None] * x
        if two_points:
            total, mass = total + np.outer(eps[0], eps[1]), mass + 1
        else:
            s, n = eps.sum(axis=0), len(y)
            total, mass = total + (np.outer(s, s) - eps.T @ eps) / (n - 1), mass + n
    return total / mass


@pytest.mark.parametrize("two_points", [False, True])
def test_orthogonal_iteration_finds_the_leading_left_singular_vectors(two_points):
    data = population(samples="2-9", clients=400)
    theta = np.random.default_rng(1).standard_normal(12)
    settings = MomentDescent(moments="two-points" if two_points else "all-pairs", iterations=1)
    server = _Server(federation_of(data), settings, 2, 0, Cost())
    start = torch.linalg.qr(torch.randn(1, 12, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))).Q
    basis = server.orthogonal_iteration(torch.from_numpy(theta)[None], start, 0, rounds=200)[0].numpy()
    left = np.linalg.svd(moment_matrix(data, theta, two_points))[0][:, :2]
    np.testing.assert_allclose(basis @ basis.T, left @ left.T, atol=1e-8)


def test_the_moment_matrix_is_unbiased_by_noise():
    # E[Y] at theta = 0 is sum_j p_j theta_j theta_j^T for identity covariances; the noise has sd 3 and does not show
    data = population(clients=6000, samples="6", noise="3", dimension=3, groups=2, separation=3.0)
    assert data.true_models is not None
    expected = data.true_models.T @ data.true_models / 2
    np.testing.assert_allclose(moment_matrix(data, np.zeros(3), False), expected, atol=0.06 * np.abs(expected).max())


@pytest.mark.parametrize("norm", [0.0, 1.0, 5.0])
def test_the_same_centres_from_any_initial_model(norm):
    for seed in range(2):
        data = population(seed=seed)
        found = descend(data, seed, start_norm=norm)
        assert covered(data, found), "choose another seed: the test is about covered ones"
        assert parameter_error(data.true_models, found.centres.numpy()) < 0.35  # separation / 2 is 0.5


@pytest.mark.parametrize("options", [{"covariance": "different"}, {"features": "rademacher"}, {"samples": "4-60"}])
def test_other_features_and_unbalanced_sizes(options):
    for seed in range(2):
        data = population(seed=seed, clients=300, **options)
        found = descend(data, seed)
        assert covered(data, found), "choose another seed: the test is about covered ones"
        assert parameter_error(data.true_models, found.centres.numpy()) < 0.5


def test_the_direction_needs_its_sign(monkeypatch):
    plain = anchor_step._leading

    def unsigned(matrix, towards):
        return plain(matrix, torch.zeros_like(towards))

    data = population()
    before = parameter_error(data.true_models, descend(data, anchor_step="paper").centres.numpy())
    monkeypatch.setattr(anchor_step, "_leading", unsigned)
    assert parameter_error(data.true_models, descend(data, anchor_step="paper").centres.numpy()) > 2 * before


def squares(x: np.ndarray) -> np.ndarray:
    """Return all monomials of degrees 1 and 2, and a column of ones."""
    pairs = [x[:, a] * x[:, b] for a, b in combinations_with_replacement(range(x.shape[1]), 2)]
    return np.column_stack([x, *pairs, np.ones(len(x))])


FEATURES = {
    "AR(.8)": lambda x: x @ np.linalg.cholesky(0.8 ** np.abs(np.subtract.outer(range(20), range(20)))).T,
    "means 1": lambda x: x + 1,
    "one times 3": lambda x: x * np.where(np.arange(20) == 0, 3.0, 1.0),
    "degree 2": lambda x: squares(x[:, :5]),
}
"""Features whose second moments are far from a multiple of the identity, from 20 independent ones."""


def uneven(kind: str, seed: int) -> FederatedDataset:
    random = np.random.default_rng(seed)
    x = FEATURES[kind](random.standard_normal((120 * 40, 20)))
    models = random.standard_normal((3, x.shape[1]))
    models *= 1.2 / min(np.linalg.norm(models[a] - models[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    truth = np.arange(120) % 3
    y = (x * models[np.repeat(truth, 40)]).sum(axis=1) + 0.2 * random.standard_normal(len(x))
    train = stack_shard([f"c{i}" for i in range(120)], x, y, [40] * 120)
    return FederatedDataset("uneven", train, truth=truth, true_models=models)


@pytest.mark.parametrize("kind", FEATURES)
def test_unscaled_features_do_not_make_anchors_diverge(kind):
    for seed in range(2):
        data = uneven(kind, seed)
        assert data.true_models is not None
        assert data.truth is not None
        found = descend(data, seed, anchors=14)
        assert covered(data, found), "choose another seed: the test is about covered ones"
        own = data.true_models[data.truth[found.anchors]]
        anchors = np.linalg.norm(found.estimates.numpy() - own, axis=1)
        assert anchors.mean() < 0.3 * 1.2  # the groups of anchors need less than half the least distance, 0.5
        searched = descend(data, seed, anchors=14, anchor_step="line-search")
        walked = searched.path.numpy() - own
        assert (np.linalg.norm(walked[-1], axis=1) < np.linalg.norm(walked[0], axis=1)).all()


def test_the_paper_s_step_diverges_with_correlated_features():
    data = uneven("AR(.8)", 0)
    assert data.true_models is not None
    found = descend(data, anchor_step="paper")
    assert found.step is not None
    assert parameter_error(data.true_models, found.centres.numpy()) > 1.2


def test_whitening_makes_second_moments_the_identity():
    x = torch.from_numpy(FEATURES["degree 2"](np.random.default_rng(0).standard_normal((4000, 20))))
    x[:, 0] *= 1e4  # a column in another unit
    moments = x.T @ x / len(x)
    turned = whitening(moments, 1e12)
    torch.testing.assert_close(turned.T @ moments @ turned, torch.eye(21, dtype=torch.float64), atol=1e-6, rtol=0)
    x[:, 1], x[:, 2] = x[:, 3], 0.0  # a column twice, and one of zeros
    turned = whitening(x.T @ x / len(x), 1e12)
    product = turned.T @ (x.T @ x / len(x)) @ turned
    assert bool(turned.isfinite().all())
    assert float(product.diagonal().sum()) == pytest.approx(19, abs=1e-6)


def test_alpha_and_beta_belong_to_the_paper_s_step():
    assert MomentDescent(alpha=1.0, beta=2.0, anchor_step="paper").step_size(5.0) == pytest.approx(1 / 8)
    with pytest.raises(ConfigError, match="set anchor_step=paper"):
        MomentDescent(alpha=1.0)


def test_private_anchors_cost_a_little_and_show_no_estimate():
    data, heard = population(clients=300), []

    class Listening(Simulated):
        def ask(self, task, broadcast, asked):
            heard.append((task.name, broadcast))
            return super().ask(task, broadcast, asked)

    found = descend(data, federation=Listening(federation_of(data).group), private_anchors=0.3, iterations=4)
    assert parameter_error(data.true_models, found.centres.numpy()) < 0.5
    products = [b for name, b in heard if name == "moment-product"]
    assert all(set(b.clusters.params) == {"basis"} for b in products), "an unperturbed estimate was sent"
    one, two = products[-1].each["copies"][0]
    assert not torch.allclose(one, two), "the two copies of a client must be independent"
    plain = descend(data, iterations=4)
    assert found.cost.bytes_down > plain.cost.bytes_down


def test_the_number_of_groups_is_shown_by_the_anchors():
    for groups in (2, 3, 4):
        data = population(groups=groups, clients=240, separation=1.5)
        found = descend(data, k=None, anchors=24)
        assert found.grouping.k == groups
        assert found.centres.shape[0] == groups


@pytest.mark.parametrize(("groups", "dimension"), [(9, 8), (6, 3), (4, 2)])
def test_there_may_be_more_groups_than_features(groups, dimension):
    for seed in range(2):
        options = {"groups": groups, "dimension": dimension, "clients": 180, "samples": "40"}
        found = descend(population(seed=seed, separation=1.2, **options), seed, k=None)
        assert found.grouping.k == groups
        assert found.coverage["chance_of_a_missed_group"] < 0.1
        assert found.facts(population(seed=seed, **options).clients)["held_out"].keys() >= {"1", str(groups)}


def test_anchors_are_added_while_the_smallest_group_has_few():
    data = population(proportions="0.1,0.3,0.6", separation=1.2, seed=1)
    found = descend(data, 1, k=None)
    assert found.grouping.k == 3
    assert len(found.anchors) > default_anchors(3)
    assert len(np.unique(found.anchors)) == len(found.anchors) <= len(data.clients) // 2
    assert len(descend(data, 1, k=None, anchors=12).anchors) == 12


def test_the_merge_heights_decide_if_all_clients_are_anchors():
    found = descend(population(clients=12, samples="60", separation=2.0), k=None, anchors=12)
    assert found.grouping.k == 3
    assert not found.grouping.held_out


def test_the_fewest_groups_with_about_the_least_loss():
    random = np.random.default_rng(0)
    base = random.random(200)
    losses = np.stack([base + 1, base + 0.5 * (np.arange(200) < 40), base + 1e-3, base], axis=1)
    noisy = losses + 0.01 * random.standard_normal(losses.shape)
    # the second is worse for 40 clients, clearly; the third by a small share of the loss
    assert fewest_as_good(noisy.sum(axis=0), noisy.T @ noisy, 200) == 2
    alike = base[:, None] + 0.1 * random.standard_normal((200, 4))
    assert fewest_as_good(alike.sum(axis=0), alike.T @ alike, 200) == 0


def test_coverage_by_hand():
    assert recommended(3, 0.2) == 21  # ln 60 / 0.2 = 20.5
    assert miss_probability(np.array([0.5, 0.5]), 2) == pytest.approx(0.5)


def test_conditions_of_the_theorem_are_reported():
    data = population()
    found = descend(data)
    conditions = found.conditions
    own = found.centres[torch.from_numpy(found.grouping.group)]
    error = np.linalg.norm((found.estimates - own).numpy(), axis=1).mean()
    centres = found.centres.numpy()
    apart = min(np.linalg.norm(a - b) for i, a in enumerate(centres) for b in centres[:i])
    assert conditions["error_over_delta"]["value"] == pytest.approx(error / apart)
    assert conditions["samples_of_an_anchor"] == {
        "value": int(data.train.sizes[found.anchors].min()),
        "needed": len(centres),
        "holds": True,
    }
    assert conditions["samples"] == {"value": len(data.train.x), "needed": centres.shape[1], "holds": True}
    assert conditions["anchors"]["needed"] == found.coverage["recommended_anchors"]


def test_one_group_is_one_group():
    found = descend(population(groups=1, separation=None), k=None)
    assert found.grouping.k == 1
    assert descend(population(groups=1, separation=None), k=1).centres.shape == (1, 12)


def test_a_group_without_anchors_is_reported_and_there_are_still_k_centres():
    data = population(groups=2, clients=100, separation=2.0, samples="60")
    assert data.truth is not None
    sizes = np.where(data.truth == 0, 60, 10)  # only group 0 has clients large enough for anchors
    train = replace(data.train, stops=data.train.starts + sizes)
    found = descend(replace(data, train=train), k=2, anchor_samples=20)
    assert found.centres.shape[0] == 2
    assert any("show 1 group, not 2" in note for note in found.grouping.notes)


def test_an_anchor_that_never_answers_is_left_out():
    data = population()
    plain = descend(data)
    silent = data.clients[int(plain.anchors[0])]
    found = descend(data, federation=Simulated(federation_of(data).group, missing={-1: (silent,)}))
    assert int(plain.anchors[0]) not in found.anchors
    assert len(found.anchors) == len(plain.anchors) - 1


def test_settings_that_cannot_work_are_refused():
    alone = population(samples="1")
    with pytest.raises(ConfigError, match="pairs of samples of one client"):
        descend(alone)
    with pytest.raises(ConfigError, match="anchors=2 cannot show clusters=3"):
        descend(population(), anchors=2)
    with pytest.raises(ConfigError, match="needs 10 anchors with at least 40 samples, but only 0"):
        descend(population(), anchors=10, anchor_samples=40)
    with pytest.raises(ConfigError, match="cannot find the number of clusters"):
        descend(population(), k=None, moments="two-points")
    with pytest.raises(ConfigError, match="new pairs"):
        descend(population(samples="8"), moments="two-points", anchor_samples=2)
    silent = {-1: population().clients}
    with pytest.raises(TrainingError, match="none of the 150 clients"):
        descend(population(), federation=Simulated(federation_of(population()).group, missing=silent))


@pytest.mark.parametrize("kind", ["constant", "collinear"])
def test_constant_and_collinear_features_stay_finite(kind):
    data = population()
    x = data.train.x.clone()
    x[:, 0] = 1.0 if kind == "constant" else x[:, 1]
    found = descend(replace(data, train=replace(data.train, x=x)))
    assert bool(found.centres.isfinite().all())


def test_anchors_are_drawn_among_the_largest_by_keyed_lot():
    sizes = [10] * 40 + [50] * 20
    ids = [f"c{i}" for i in range(60)]
    x, y = np.zeros((sum(sizes), 2)), np.zeros(sum(sizes))
    federation = partial(stack_shard, x=x, y=y)
    plain = federation_of(FederatedDataset("p", federation(ids, sizes=sizes)))
    chosen = choose_anchors(plain, None, 3, None, seed=0)
    assert len(chosen) == 10 == default_anchors(3)  # 3 * 3 * ln 3 = 9.9
    assert (plain.sizes[chosen] == 50).all()
    turned = federation_of(FederatedDataset("p", federation(ids[::-1], sizes=sizes[::-1])))
    again = choose_anchors(turned, None, 3, None, seed=0)
    assert [plain.clients[i] for i in chosen] == [turned.clients[i] for i in again], "the order of clients matters"
    assert set(chosen) != set(choose_anchors(plain, None, 3, None, seed=1))


def test_groups_by_hand():
    # two pairs 1 apart and 10 from each other: merges at 1, 1 and the mean of 10, 11, 9, 10
    points = np.array([[0.0], [1.0], [10.0], [11.0]])
    found = group_anchors(points, None, 3, None)
    assert found.heights == pytest.approx([1, 1, 10])
    assert (found.k, found.group.tolist()) == (2, [0, 0, 1, 1])
    assert found.threshold == pytest.approx((1 + 10) / 2)
    assert group_anchors(points, 2, 2, delta=4.0).group.tolist() == [0, 0, 1, 1]
    far = group_anchors(points, 2, 2, delta=0.5)  # nothing is closer than 0.25
    assert far.k == 2
    assert "4 groups" in far.notes[0]
    assert groups_shown(np.array([1.0, 1.1, 1.2]), 3) == 1


def test_larger_groups_come_first_and_coinciding_estimates_give_k_centres():
    found = group_anchors(np.array([[5.0], [0.0], [0.1], [0.2]]), 2, 2, None)
    assert found.group.tolist() == [1, 0, 0, 0]
    same = group_anchors(np.zeros((4, 2)), 2, 2, None)
    assert same.k == 2
    assert set(same.group.tolist()) == {0, 1}
    assert "coincide" in same.notes[-1]
