"""The members of the tiers, each by a small example."""

from __future__ import annotations

import math

import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.core.messages import Reply
from coterie.tiers.objective import OBJECTIVES, Conditional
from coterie.tiers.procedure import Fixed
from coterie.tiers.weights import WEIGHTS, HardByLoss, OneCluster, SoftByLoss


def test_conditional_scores_by_the_likelihood_itself():
    values = torch.rand(2, 3, 4)
    assert torch.equal(Conditional().client_cost(values), values)


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
        "soft-by-loss": False,
        "assigned": True,
    }


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
