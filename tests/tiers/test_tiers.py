"""The members of the tiers, each by a small example."""

from __future__ import annotations

import torch

from coterie.core.clusters import Clusters
from coterie.core.messages import Reply
from coterie.tiers.objective import OBJECTIVES, Conditional
from coterie.tiers.procedure import Fixed
from coterie.tiers.weights import WEIGHTS, HardByLoss, OneCluster


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
        "assigned": True,
    }


def test_members_are_found_under_their_own_name():
    for table in (OBJECTIVES, WEIGHTS):
        assert all(name == member.name for name, member in table.items())
