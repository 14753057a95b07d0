"""The members of the tiers, each by a small example."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.core.messages import Reply
from coterie.tiers.objective import OBJECTIVES, Conditional, Ratio
from coterie.tiers.procedure import Fixed
from coterie.tiers.weights import WEIGHTS, HardByLoss, OneCluster, SoftByLoss


def test_conditional_scores_by_the_likelihood_itself():
    values = torch.rand(2, 3, 4)
    assert Conditional().client_cost(values, torch.zeros(2, 3, dtype=torch.int64), {}) is values
    assert Conditional().client_counts(values, torch.zeros(2, 3, dtype=torch.int64), 3) == {}


def test_the_ratio_takes_away_what_a_cluster_gains_by_its_labels():
    # one client with labels 0, 1, 1 and gamma (1, 0), (0.5, 0.5), (0, 1): counts [[1, 0.5], [0, 1.5]]
    y = torch.tensor([[0, 1, 1]])
    gamma = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]], dtype=torch.float64)
    counts = Ratio().client_counts(gamma, y, 2)["labels"]
    assert counts.tolist() == [[[1.0, 0.5], [0.0, 1.5]]]
    # another client adds [[0, 0.5], [3, 0]]: shares (1, 1)/2 and (3, 1.5)/4.5
    both = torch.cat([counts, torch.tensor([[[0.0, 0.5], [3.0, 0.0]]], dtype=torch.float64)])
    shares = Ratio().server_combine({"labels": both})["label_shares"]
    assert shares.flatten().tolist() == pytest.approx([1 / 2, 1 / 2, 2 / 3, 1 / 3])
    # -log(p / P) = loss + log P of the sample's label
    cost = Ratio().client_cost(torch.ones(1, 3, 2, dtype=torch.float64), y, {"label_shares": shares})
    expected = [[math.log(1 / 2), math.log(2 / 3)], *[[math.log(1 / 2), math.log(1 / 3)]] * 2]
    assert (cost[0] - 1).flatten().tolist() == pytest.approx(np.ravel(expected).tolist())


def test_a_class_that_a_cluster_never_saw_has_a_floor():
    shares = Ratio().server_combine({"labels": torch.tensor([[[2.0, 0.0]]])})["label_shares"]
    assert shares[0, 1].item() == pytest.approx(5e-9, rel=1e-5)


def test_one_cluster_always_chooses_the_first():
    scores = torch.tensor([[[0.0, 5.0]], [[9.0, 1.0]]])
    assert OneCluster().client_choose(scores).tolist() == [[0], [0]]


def test_hard_by_loss_chooses_the_highest_score_in_each_lane():
    scores = torch.tensor([[[-3.0, -1.0, -2.0], [-0.1, -7.0, -0.2]]])  # one client, two lanes
    assert HardByLoss().client_choose(scores).tolist() == [[1, 0]]


def test_ties_go_to_the_lowest_index():
    scores = torch.tensor([[[-2.0, -1.0, -1.0]], [[-1.0, -1.0, -1.0]]])
    assert HardByLoss().client_choose(scores).tolist() == [[1], [0]]


def test_a_model_without_a_finite_score_is_never_preferred():
    scores = torch.tensor([[[-2.0, torch.nan, -3.0]], [[-torch.inf, torch.nan, -9.0]]])
    assert HardByLoss().client_choose(scores).tolist() == [[0], [2]]


def test_fixed_never_regroups():
    clusters = Clusters({"weight": torch.zeros(3, 1)}, K=3)
    assert Fixed(3).server_propose(clusters, Reply(())) is None
    assert Fixed(3).K == 3


def test_only_assigned_clients_are_told_and_only_hard_ones_score():
    assert {name: w.assigned for name, w in WEIGHTS.items()} == {
        "one-cluster": False,
        "hard-by-loss": False,
        "hard-by-distance": False,
        "soft-by-loss": False,
        "soft-by-em": False,
        "assigned": True,
    }
    assert {name for name, w in WEIGHTS.items() if w.keeps} == {"hard-by-distance", "soft-by-em"}


def test_soft_weights_by_hand():
    # mean losses 0, ln 4 and a model that diverged: exp(0) to exp(-ln 4) is 4 to 1, the third counts nothing
    scores = torch.tensor([[[0.0, -math.log(4.0), -math.inf]]], dtype=torch.float64)
    found = SoftByLoss(1.0).client_weigh(scores)
    assert found.flatten().tolist() == pytest.approx([0.8, 0.2, 0.0])
    assert SoftByLoss(1.0).client_choose(scores).item() == 0
    colder = SoftByLoss(0.5).client_weigh(scores)  # exp(0) to exp(-2 ln 4) is 16 to 1
    assert colder.flatten().tolist() == pytest.approx([16 / 17, 1 / 17, 0.0])
    nowhere = SoftByLoss(1.0).client_weigh(torch.full((1, 1, 2), math.nan))
    assert nowhere.flatten().tolist() == [0.5, 0.5]


def test_members_are_found_under_their_own_name():
    for table in (OBJECTIVES, WEIGHTS):
        assert all(name == member.name for name, member in table.items())
