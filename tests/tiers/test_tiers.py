"""The members of the tiers, each by a small example."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.state_array import StateArray
from coterie.tiers.assignment import AssignmentRule, CountShares, LowestLoss, PersonalEM, SingleCluster, SoftmaxLoss
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Conditional, Joint, Objective, Ratio
from coterie.tiers.procedure import Procedure, ProcedureStep


def a_block(y: list[list[int]], x: Tensor | None = None, sizes: list[int] | None = None) -> Block:
    """Clients with these labels; the last samples of those with smaller sizes are padding."""
    labels = torch.tensor(y)
    B, n = labels.shape
    counts = torch.tensor(sizes or [n] * B)
    mask = None if sizes is None else torch.arange(n)[None] < counts[:, None]
    features = torch.zeros(B, n, 1, dtype=torch.float64) if x is None else x
    return Block(np.arange(B), features, labels, counts, mask, np.arange(B, dtype=np.uint64))


def values(arrays: Mapping[str, StateArray]) -> Params:
    """Return the tensors that an objective keeps in the server state."""
    return {name: array.value for name, array in arrays.items()}


def test_conditional_scores_by_the_likelihood():
    values, block = torch.rand(2, 3, 1, 4), a_block([[0, 0, 0], [0, 0, 0]])
    assert Conditional().client_cost(values, block, None, {}) is values
    assert Conditional().client_counts(values, block, None, 3) == {}


def test_the_ratio_removes_a_cluster_s_advantage_from_its_labels():
    # one client with labels 0, 1, 1 and gamma (1, 0), (0.5, 0.5), (0, 1): counts [[1, 0.5], [0, 1.5]]
    block = a_block([[0, 1, 1]])
    gamma = torch.tensor([[[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]], dtype=torch.float64)[:, :, None]
    counts = Ratio().client_counts(gamma, block, None, 2)
    assert counts["labels"].tolist() == [[[[1.0, 0.5], [0.0, 1.5]]]]
    # another client adds [[0, 0.5], [3, 0]]: shares (1, 1)/2 and (3, 1.5)/4.5
    kept = values(Ratio().server_keep({}, counts, torch.tensor([1]), 3))
    other = {"labels": torch.tensor([[[[0.0, 0.5], [3.0, 0.0]]]], dtype=torch.float64)}
    arrays = Ratio().server_keep(kept, other, torch.tensor([2]), 3)
    assert arrays["labels"].axes == ("client", "restart", "cluster", None)
    kept = values(arrays)
    assert kept["labels"].shape == (3, 1, 2, 2)
    assert kept["labels"][0].abs().sum() == 0
    shares = Ratio().server_combine(kept)["label_shares"]
    assert shares.flatten().tolist() == pytest.approx([1 / 2, 1 / 2, 2 / 3, 1 / 3])
    # -log(p / P) = loss + log P of the sample's label
    cost = Ratio().client_cost(torch.ones(1, 3, 1, 2, dtype=torch.float64), block, None, {"label_shares": shares})
    expected = [[math.log(1 / 2), math.log(2 / 3)], *[[math.log(1 / 2), math.log(1 / 3)]] * 2]
    assert (cost[0] - 1).flatten().tolist() == pytest.approx(np.ravel(expected).tolist())


def test_a_class_without_samples_in_a_cluster_has_a_lower_limit():
    shares = Ratio().server_combine({"labels": torch.tensor([[[[2.0, 0.0]]]])})["label_shares"]
    assert shares[0, 0, 1].item() == pytest.approx(5e-9, rel=1e-5)


def test_a_joint_cluster_is_the_better_the_nearer_a_sample_is_to_its_gaussian():
    # samples 0, 2 with gamma (1, 0) and 10, 12 with (0, 1): means 1 and 11, variances 1; all together: mean 6
    z = torch.tensor([[[0.0], [2.0], [10.0], [12.0]]], dtype=torch.float64)
    block, joint = a_block([[0, 0, 0, 0]], z), Joint("inputs")
    gamma = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]], dtype=torch.float64)[:, :, None]
    counts = joint.client_counts(gamma, block, joint.client_see(None, block), None)
    assert counts["moments"].tolist() == [[[[2.0, 2.0, 4.0], [2.0, 22.0, 244.0]]]]
    added = {"moments": counts["moments"].sum(dim=0)}
    common = joint.server_combine(values(joint.server_keep({}, added, torch.tensor([0]), 1)))
    assert common["means"].flatten().tolist() == [1.0, 11.0]
    assert common["variances"].flatten().tolist() == [1.0, 1.0]
    # log N(2; 1, 1) = -1/2 - log(2 pi)/2, log N(2; 11, 1) = -81/2 - log(2 pi)/2
    cost = joint.client_cost(torch.zeros(1, 4, 1, 2, dtype=torch.float64), block, z, common)
    constant = math.log(2 * math.pi) / 2
    assert cost[0, 1, 0].tolist() == pytest.approx([1 / 2 + constant, 81 / 2 + constant])
    # without its label the sample at 6 is equally likely; with weights 3 to 1 the prior decides
    prior = joint.client_prior(torch.tensor([[0.75, 0.25]]), torch.tensor([[[6.0]]]), common, 2)
    assert prior.flatten().tolist() == pytest.approx([0.75, 0.25])


def test_gaussians_have_a_smallest_variance_and_an_empty_one_is_pooled():
    # one sample at 3 alone in a Gaussian: variance 0 becomes 1e-3 of the pooled one, (1 + 25 + 9) / 3 - 3^2 = 8/3
    moments = torch.tensor([[[1.0, 3.0, 9.0], [2.0, 6.0, 26.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)
    common = Joint().server_combine({"moments": moments})
    assert common["means"].flatten().tolist() == pytest.approx([3.0, 3.0, 3.0])
    assert common["variances"].flatten().tolist() == pytest.approx([8 / 3 * 1e-3, 4.0, 8 / 3])
    # in the next round no sample belongs to the first one: it keeps its moments
    later = {"moments": torch.tensor([[[0.0, 0.0, 0.0], [2.0, 6.0, 26.0], [0.0, 0.0, 0.0]]], dtype=torch.float64)}
    kept = values(Joint().server_keep({"moments": moments}, later, torch.tensor([0]), 1))
    assert kept["moments"].tolist() == moments.tolist()


def test_gaussians_paired_with_every_model_add_up_to_clusters():
    joint = Joint("inputs", gaussians=3)
    assert joint.client_components(2) == 6
    # component a K + b: Gaussians (0.1 + 0.2, 0.3 + 0.1, 0.2 + 0.1), models (0.1 + 0.3 + 0.2, 0.2 + 0.1 + 0.1)
    shares = torch.tensor([0.1, 0.2, 0.3, 0.1, 0.2, 0.1], dtype=torch.float64)
    assert joint.client_by_cluster(shares, 2).tolist() == pytest.approx([0.6, 0.4])
    z = torch.tensor([[[1.0], [5.0]]], dtype=torch.float64)
    block = a_block([[0, 0]], z)
    moments = joint.client_counts(shares.expand(1, 2, 1, 6), block, z, None)["moments"]
    assert moments[0, 0, :, 0].tolist() == pytest.approx([2 * 0.3, 2 * 0.4, 2 * 0.3])
    first = joint.client_cost(torch.zeros(1, 2, 1, 2, dtype=torch.float64), block, z, {})
    assert first.shape == (1, 2, 1, 6)
    assert first.isfinite().sum() == 4  # each sample lies in one direction, with both models


def test_the_first_gaussians_do_not_depend_on_padding():
    x = torch.tensor([[[0.0], [4.0], [9.0], [0.0]]], dtype=torch.float64)
    padded = a_block([[0, 0, 0, 0]], x, sizes=[3])
    plain = a_block([[0, 0, 0]], x[:, :3])
    joint, losses = Joint("inputs", gaussians=2), torch.zeros(1, 4, 1, 1, dtype=torch.float64)
    one = joint.client_cost(losses, padded, x, {})[:, :3]
    assert torch.equal(one, joint.client_cost(losses[:, :3], plain, x[:, :3], {}))


def test_shares_by_counts_of_the_lowest_loss():
    # four samples, the last is padding: cluster 0 wins two, cluster 1 one, cluster 2 none and gets 1e-4
    losses = torch.tensor([[[1.0, 2, 3], [1, 2, 3], [3, 1, 2], [3, 2, 1]]], dtype=torch.float64)[:, :, None]
    real = torch.tensor([[True, True, True, False]])
    total, before = 1 + 1e-4, torch.full((1, 1, 3), 1 / 3, dtype=torch.float64)
    expected = [2 / 3 / total, 1 / 3 / total, 1e-4 / total]
    assert CountShares().client_share(losses, real, before).flatten().tolist() == pytest.approx(expected)


def test_weights_of_personal_models_by_em():
    # likelihoods 1/2, 1/4 and 1/4, 1/2, weights 1/3 and 2/3: gamma is 1/2, 1/2 and 1/5, 4/5; the third is padding
    losses = -torch.tensor([[[0.5, 0.25], [0.25, 0.5], [1e-9, 1]]], dtype=torch.float64).log()[:, :, None]
    before = torch.tensor([[[1 / 3, 2 / 3]]], dtype=torch.float64)
    found = PersonalEM().client_share(losses, torch.tensor([[True, True, False]]), before)
    assert found.flatten().tolist() == pytest.approx([0.35, 0.65])


def test_a_single_cluster_always_chooses_the_first():
    scores = torch.tensor([[[0.0, 5.0]], [[9.0, 1.0]]])
    assert SingleCluster().client_choose(scores).tolist() == [[0], [0]]


def test_lowest_loss_chooses_the_highest_score_in_each_restart():
    scores = torch.tensor([[[-3.0, -1.0, -2.0], [-0.1, -7.0, -0.2]]])  # one client, two restarts
    assert LowestLoss().client_choose(scores).tolist() == [[1, 0]]


def test_ties_go_to_the_lowest_index():
    scores = torch.tensor([[[-2.0, -1.0, -1.0]], [[-1.0, -1.0, -1.0]]])
    assert LowestLoss().client_choose(scores).tolist() == [[1], [0]]


def test_a_model_without_a_finite_score_is_never_preferred():
    scores = torch.tensor([[[-2.0, torch.nan, -3.0]], [[-torch.inf, torch.nan, -9.0]]])
    assert LowestLoss().client_choose(scores).tolist() == [[0], [2]]


def test_without_steps_the_number_of_clusters_is_fixed():
    assert Procedure().steps == ()


def test_only_assigned_clients_receive_a_group_and_only_hard_ones_score():
    assert {name: w.assigned for name, w in AssignmentRule.members.items()} == {
        "single-cluster": False,
        "lowest-loss": False,
        "nearest-parameters": False,
        "count-shares": False,
        "softmax-loss": False,
        "em-mixture": False,
        "personal-em": False,
        "assigned": True,
    }
    kept = {"nearest-parameters", "em-mixture", "count-shares", "personal-em"}
    assert {name for name, w in AssignmentRule.members.items() if w.keeps} == kept


def test_soft_weights_by_hand():
    # mean losses 0, ln 4 and a model that diverged: exp(0) to exp(-ln 4) is 4 to 1, the third counts nothing
    scores = torch.tensor([[[0.0, -math.log(4.0), -math.inf]]], dtype=torch.float64)
    found = SoftmaxLoss(1.0).client_weigh(scores)
    assert found.flatten().tolist() == pytest.approx([0.8, 0.2, 0.0])
    assert SoftmaxLoss(1.0).client_choose(scores).item() == 0
    colder = SoftmaxLoss(0.5).client_weigh(scores)  # exp(0) to exp(-2 ln 4) is 16 to 1
    assert colder.flatten().tolist() == pytest.approx([16 / 17, 1 / 17, 0.0])
    nowhere = SoftmaxLoss(1.0).client_weigh(torch.full((1, 1, 2), math.nan))
    assert nowhere.flatten().tolist() == [0.5, 0.5]


def test_members_are_found_by_their_names():
    for family in (Objective, AssignmentRule, ProcedureStep, Distance):
        assert all(name == member.name for name, member in family.members.items())
