"""Split, merge, remove: parameters and soft weights by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.clusters import Clusters
from coterie.core.regroup import Changes, NewCluster, Regroup
from coterie.errors import ConfigError

SIZES = torch.tensor([5, 2, 5])


def clusters() -> Clusters:
    return Clusters(
        {"weight": torch.tensor([[0.0, 2.0], [3.0, 4.0], [6.0, 9.0]]), "bias": torch.tensor([1.0, 2, 6])}, 3
    )


def regroup(*new: NewCluster) -> Regroup:
    return Regroup(new)


SPLIT = regroup(NewCluster((0,)), NewCluster((1,)), NewCluster((2,)), NewCluster((1,)))
MERGE = regroup(NewCluster((0, 2), "average"), NewCluster((1,)))
REMOVE = regroup(NewCluster((0,)), NewCluster((2,)))


def test_a_split_copies_the_parent():
    new = SPLIT.apply(clusters(), SIZES)
    assert new.K == SPLIT.K == 4
    assert new.params["weight"].tolist() == [[0, 2], [3, 4], [6, 9], [3, 4]]
    assert new.params["bias"].tolist() == [1, 2, 6, 2]


def test_a_merge_averages_plainly():
    new = MERGE.apply(clusters(), SIZES)
    # (0 + 6) / 2 = 3, (2 + 9) / 2 = 5.5, (1 + 6) / 2 = 3.5; sizes do not count
    assert new.params["weight"].tolist() == [[3, 5.5], [3, 4]]
    assert new.params["bias"].tolist() == [3.5, 2]


@pytest.mark.parametrize(
    ("parents", "sizes", "kept"),
    [((0, 1), [5, 2, 5], 0), ((1, 2), [5, 2, 5], 2), ((0, 2), [5, 2, 5], 0), ((2, 1), [0, 4, 4], 1)],
)
def test_larger_keeps_the_larger_parent_and_the_lower_of_equals(parents, sizes, kept):
    new = regroup(NewCluster(parents, "larger")).apply(clusters(), torch.tensor(sizes))
    assert new.params["weight"].tolist() == clusters().params["weight"][[kept]].tolist()


def test_removal_keeps_the_others_untouched():
    assert REMOVE.apply(clusters(), SIZES).params["bias"].tolist() == [1, 6]


@pytest.mark.parametrize("how", ["copy", "average", "larger"])
def test_a_newborn_starts_from_the_mean_of_all(how):
    new = regroup(NewCluster((0,)), NewCluster((), how)).apply(clusters(), SIZES)
    # (0 + 3 + 6) / 3 = 3, (2 + 4 + 9) / 3 = 5, (1 + 2 + 6) / 3 = 3
    assert new.params["weight"][1].tolist() == [3, 5]
    assert new.params["bias"][1].item() == 3


def test_the_shared_body_stays():
    body = {"base": torch.tensor([[7.0]])}
    old = Clusters(clusters().params, 3, body=body)
    assert MERGE.apply(old, SIZES).body is body


def test_apply_leaves_the_old_clusters_alone():
    old = clusters()
    SPLIT.apply(old, SIZES)
    assert old.K == 3
    assert old.params["weight"].shape == (3, 2)


def test_a_split_halves_weights():
    weights = torch.tensor([[0.2, 0.6, 0.2], [0.0, 1.0, 0.0]])
    torch.testing.assert_close(SPLIT.map_weights(weights), torch.tensor([[0.2, 0.3, 0.2, 0.3], [0, 0.5, 0, 0.5]]))


def test_a_merge_adds_weights():
    weights = torch.tensor([[0.25, 0.5, 0.25]])
    assert MERGE.map_weights(weights).tolist() == [[0.5, 0.5]]


def test_a_removal_renormalises():
    weights = torch.tensor([[0.25, 0.5, 0.25], [0.2, 0.2, 0.6]])
    # 0.2 / 0.8 = 0.25, 0.6 / 0.8 = 0.75
    torch.testing.assert_close(REMOVE.map_weights(weights), torch.tensor([[0.5, 0.5], [0.25, 0.75]]))


def test_a_row_left_with_nothing_becomes_uniform():
    assert REMOVE.map_weights(torch.tensor([[0.0, 1.0, 0.0]])).tolist() == [[0.5, 0.5]]


def test_a_newborn_starts_without_weight():
    kept_and_new = regroup(NewCluster((0,)), NewCluster((1,)), NewCluster((2,)), NewCluster(()))
    weights = torch.tensor([[0.25, 0.5, 0.25]])
    assert kept_and_new.map_weights(weights).tolist() == [[0.25, 0.5, 0.25, 0.0]]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(0, 3), max_size=3, unique=True), min_size=1, max_size=6), st.integers(0, 10**6))
def test_mapped_rows_sum_to_one_and_follow_the_slow_loop(parents, seed):
    change = Regroup(tuple(NewCluster(tuple(p), "average") for p in parents))
    raw = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weights = raw / raw.sum(dim=1, keepdim=True)
    moved = change.map_weights(weights)
    children = [sum(k in p for p in parents) for k in range(4)]
    for before, after in zip(weights.tolist(), moved.tolist(), strict=True):
        plain = [sum(before[k] / children[k] for k in p) for p in parents]
        total = sum(plain)
        expected = [v / total for v in plain] if total > 0 else [1 / len(parents)] * len(parents)
        assert after == pytest.approx(expected, abs=1e-12)
        assert sum(after) == pytest.approx(1)


def test_the_last_cluster_cannot_be_removed():
    with pytest.raises(ConfigError, match="at least one new cluster"):
        Regroup(())


def test_two_parents_cannot_be_copied():
    with pytest.raises(ConfigError, match="cannot copy 2 parents: use 'average' or 'larger'"):
        Regroup((NewCluster((0, 1), "copy"),))


def test_several_lanes_cannot_be_regrouped():
    two = Clusters({"weight": torch.zeros(4, 1)}, K=2, restarts=2)
    with pytest.raises(ConfigError, match="only one restart can be regrouped, got 2"):
        REMOVE.apply(two, SIZES)


@pytest.mark.parametrize("parent", [-1, 3])
def test_a_parent_that_does_not_exist_is_refused(parent):
    with pytest.raises(ConfigError):
        regroup(NewCluster((parent,))).apply(clusters(), SIZES)


def changes() -> Changes:
    """Two clients that trained cluster 0 and one that trained cluster 1, with masses 1, 3 and 2."""
    vectors = torch.tensor([[[1.0, 0.0, 2.0]], [[5.0, 4.0, 2.0]], [[9.0, 9.0, 9.0]]])  # bias first, then weight
    mass = torch.tensor([[1.0], [3.0], [2.0]])
    return Changes(clusters(), ("a", "b", "c"), torch.tensor([[0], [0], [1]]), vectors, mass, mass)


def test_members_make_a_cluster_of_what_they_made_of_its_parent():
    # cluster 0 is weight (0, 2), bias 1; a and b together: change (1 + 3 * 5) / 4 = 4, (0 + 3 * 4) / 4 = 3, 2
    parts = Regroup((NewCluster((0,), "members", ("a",)), NewCluster((1,)), NewCluster((0,), "members", ("a", "b"))))
    new = parts.apply(clusters(), SIZES, changes())
    assert new.params["bias"].tolist() == [2, 2, 5]
    assert new.params["weight"].tolist() == [[0, 4], [3, 4], [3, 4]]


def test_members_that_did_not_train_the_parent_leave_it_as_it_is():
    new = Regroup((NewCluster((2,), "members", ("a",)),)).apply(clusters(), SIZES, changes())
    assert new.params["bias"].tolist() == [6]


def test_after_a_regroup_changes_belong_to_the_first_child():
    moved = changes().after(Regroup((NewCluster((1,)), NewCluster((0,)), NewCluster((0,)))))
    assert moved.slots.flatten().tolist() == [1, 1, 0]
    assert moved.before.params["bias"].tolist() == [2, 1, 1]
    gone = changes().after(Regroup((NewCluster((1,)),)))
    assert gone.slots.flatten().tolist() == [-1, -1, 0]


def test_members_of_a_hard_regroup_are_placed_by_id_and_others_follow_their_cluster():
    hard = Regroup(
        (NewCluster((0,), "members", ("a",)), NewCluster((2,)), NewCluster((0,), "members", ("b",))), hard=True
    )
    # a stays, b goes to the new one; c was in 1, which is gone; d in 2, now 1; e in 0 and is not named; f unknown
    choice = torch.tensor([0, 0, 1, 2, 0, -1])
    assert hard.place(["a", "b", "c", "d", "e", "f"], choice).tolist() == [0, 2, -1, 1, 0, -1]
    soft = replace(hard, hard=False)
    assert soft.place(["a", "b", "c", "d", "e", "f"], choice).tolist() == [0, 0, -1, 1, 0, -1]


def test_flows_halve_add_up_and_lose_and_put_hard_members_into_one():
    split = Regroup(
        (NewCluster((0,), "members", ("a",)), NewCluster((1,)), NewCluster((0,), "members", ("b",))), hard=True
    )
    flows = split.flows(["a", "b", "c"], 2)
    assert flows[0].tolist() == [[1, 0, 0], [1, 0, 0]]
    assert flows[1].tolist() == [[0, 0, 1], [0, 0, 1]]
    assert flows[2].tolist() == [[0.5, 0, 0.5], [0, 1, 0]]
    assert MERGE.flows([""], 3)[0].tolist() == [[1, 0], [0, 1], [1, 0]]
    assert REMOVE.flows([""], 3)[0].tolist() == [[1, 0], [0, 0], [0, 1]]


def test_a_cluster_made_by_members_needs_members_and_a_parent():
    with pytest.raises(ConfigError, match="needs the ids of its members"):
        Regroup((NewCluster((0,), "members"),))
