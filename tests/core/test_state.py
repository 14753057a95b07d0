"""The server state: every array follows splits, merges, removals and the choice of a restart as it declares."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.core.client_state import NEVER
from coterie.core.clusters import ALIGNMENT, Clusters
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.state import UNKNOWN, ServerState, best_restart
from coterie.core.state_array import (
    ClusterNumber,
    Inherit,
    RegroupEvent,
    RegroupRule,
    Reset,
    Share,
    ShareByMember,
    StateArray,
    Unchanged,
)
from coterie.errors import ConfigError
from tests.core.states import events, slowly_regrouped, states

CLIENTS = ("a", "b", "c", "d")
SIZES = torch.tensor([1, 3])
SPLIT = Regroup((NewCluster((0,)), NewCluster((1,)), NewCluster((0,))))
MERGE = Regroup((NewCluster((0, 1), "average"),))
REMOVE = Regroup((NewCluster((1,)),))
BIRTH = Regroup((NewCluster((0,)), NewCluster((1,)), NewCluster(())))


def after(array: StateArray, regroup: Regroup) -> list:
    return array.regrouped(RegroupEvent(regroup, CLIENTS, SIZES)).value.tolist()


def doubles(*rows) -> torch.Tensor:
    return torch.tensor(rows, dtype=torch.float64)


# ---- single rules, by hand ---------------------------------------------------------------------------------------


def test_children_inherit_their_parent_and_a_merge_averages_by_clients():
    momentum = StateArray(doubles([4.0, 8.0], [0.0, 2.0]), ("cluster", None), Inherit())
    assert after(momentum, SPLIT) == [[4, 8], [0, 2], [4, 8]]
    # one client and three: (4 + 3 * 0) / 4 = 1, (8 + 3 * 2) / 4 = 3.5
    assert after(momentum, MERGE) == [[1, 3.5]]
    assert after(momentum, REMOVE) == [[0, 2]]
    assert after(momentum, BIRTH) == [[4, 8], [0, 2], [0, 0]]
    born = replace(momentum, rule=Inherit(newborn=0.5))
    assert after(born, BIRTH) == [[4, 8], [0, 2], [0.5, 0.5]]


def test_parents_without_clients_count_equally():
    array = StateArray(doubles(4.0, 8.0), ("cluster",), Inherit())
    assert array.regrouped(RegroupEvent(MERGE, CLIENTS, torch.tensor([0, 0]))).value.tolist() == [6]


def test_a_copy_is_exact_whatever_its_siblings_hold():
    array = StateArray(doubles(torch.nan, 0.1), ("cluster",), Inherit())
    assert after(array, REMOVE) == [0.1]
    assert after(array, Regroup((NewCluster((1,)), NewCluster((1,))))) == [0.1, 0.1]


def test_amounts_are_divided_by_a_split_and_added_up_by_a_merge():
    counts = StateArray(doubles([4.0, 8.0], [0.0, 2.0]), ("cluster", None), Share())
    assert after(counts, SPLIT) == [[2, 4], [0, 2], [2, 4]]
    assert after(counts, MERGE) == [[4, 10]]
    assert after(counts, REMOVE) == [[0, 2]]
    assert after(counts, BIRTH) == [[4, 8], [0, 2], [0, 0]]


def test_named_members_of_a_hard_split_have_everything_in_their_cluster():
    hard = Regroup((NewCluster((0,), members=("a",)), NewCluster((1,)), NewCluster((0,), members=("c",))), hard=True)
    weights = StateArray(
        doubles([0.8, 0.2], [0.5, 0.5], [0.4, 0.6], [0.0, 1.0]), ("client", "cluster"), ShareByMember()
    )
    assert after(weights, hard)[0] == [1, 0, 0]
    assert after(weights, hard)[2] == [0, 0, 1]
    assert after(weights, hard)[1] == [0.25, 0.5, 0.25]
    soft = replace(hard, hard=False)
    assert after(weights, soft)[0] == [0.4, 0.2, 0.4]


def test_numbers_of_clusters_become_those_of_the_first_children():
    choice = StateArray(torch.tensor([[0], [1], [UNKNOWN], [0]]), ("client", "restart"), ClusterNumber())
    assert after(choice, SPLIT) == [[0], [1], [-1], [0]]
    assert after(choice, REMOVE) == [[-1], [0], [-1], [-1]]
    hard = Regroup((NewCluster((0,), members=("a",)), NewCluster((1,)), NewCluster((0,), members=("c",))), hard=True)
    assert after(choice, hard) == [[0], [1], [2], [0]]


def test_counts_since_the_last_regroup_begin_again():
    assert after(StateArray(torch.tensor([3, 1, 0, 2]), ("client",), Reset()), SPLIT) == [0, 0, 0, 0]
    assert after(StateArray(torch.tensor([3, 1]), ("cluster",), Reset()), SPLIT) == [0, 0, 0]


def test_arrays_of_a_restart_are_cut_where_their_axis_is():
    value = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(StateArray(value, (None, "restart", None)).keep_restart(2).value, value[:, 2:3])
    assert torch.equal(StateArray(value, ("restart", None, None)).keep_restart(1).value, value[1:2])
    assert StateArray(value, (None, None, None)).keep_restart(1).value is value


# ---- declarations ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "axes", "rule", "message"),
    [
        (torch.zeros(2, 3), ("client",), Unchanged(), "2 dimensions needs 2 axes"),
        (torch.zeros(2, 2), ("client", "client"), Unchanged(), "two axes with the same meaning"),
        (
            torch.zeros(2),
            ("cluster",),
            Unchanged(),
            "needs a rule that resizes it, such as 'inherit' or 'share', got 'unchanged'",
        ),
        (torch.zeros(2, 2).long(), ("client", "cluster"), ClusterNumber(), "got 'cluster-number'"),
        (torch.zeros(2), ("client",), Inherit(), "'inherit' needs a cluster axis"),
        (torch.zeros(2), ("cluster",), ShareByMember(), "'share-by-member' needs a client axis"),
        (torch.zeros(2, dtype=torch.int64), ("cluster",), Share(), "'share' needs a floating dtype, got torch.int64"),
    ],
)
def test_a_declaration_that_cannot_be_followed_is_refused(value, axes, rule, message):
    with pytest.raises(ConfigError, match=message):
        StateArray(value, axes, rule)


@pytest.mark.parametrize(
    ("axis", "length", "message"),
    [
        ("cluster", 3, "'mine' has 3 entries along its cluster axis, expected 2"),
        ("restart", 2, "'mine' has 2 entries along its restart axis, expected 1"),
        ("client", 5, "'mine' has 5 entries along its client axis, expected 4"),
    ],
)
def test_an_array_that_does_not_fit_the_state_is_refused(axis, length, message):
    state = ServerState.fresh(Clusters({"w": torch.zeros(2, 1)}, 2), 4)
    rule: RegroupRule = Share() if axis == "cluster" else Unchanged()
    with pytest.raises(ConfigError, match=message):
        state.with_arrays({"mine": StateArray(torch.zeros(length), (axis,), rule)})


def test_a_fresh_state_knows_nothing_of_anybody():
    state = ServerState.fresh(Clusters({"w": torch.zeros(4, 1)}, 2, 2), 3)
    assert state.choice.tolist() == [[UNKNOWN] * 2] * 3
    assert state.steady.tolist() == [0] * 3
    assert state.loss.tolist() == [torch.inf] * 2
    assert state.accepted.tolist() == [NEVER] * 3
    assert (state.tables, state.tree) == ({}, {})
    assert (state.flows.numel(), state.portraits.numel()) == (0, 0)
    moving = ServerState.fresh(Clusters({"w": torch.zeros(2, 1)}, 2), 3, flows=True)
    assert moving.flows.tolist() == [[[1, 0], [0, 1]]] * 3


def test_another_rule_can_be_added_in_one_place():
    from coterie.core.registry import register

    @register("oldest-parent")
    @dataclass(frozen=True)
    class OldestParent(RegroupRule):
        """A new cluster takes the entry of its first parent."""

        resizes = True

        def carry_over(self, value, axes, event):
            return value.index_select(
                axes.index("cluster"), torch.tensor([n.parents[0] for n in event.regroup.clusters])
            )

    try:
        born = StateArray(torch.tensor([7, 9]), ("cluster",), OldestParent())
        state = ServerState.fresh(Clusters({"w": torch.zeros(2, 1)}, 2), 4).with_arrays({"born": born})
        assert state.regrouped(RegroupEvent(SPLIT, CLIENTS, SIZES)).arrays["born"].value.tolist() == [7, 9, 7]
    finally:
        del RegroupRule.members["oldest-parent"]


# ---- whole states ------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_every_array_of_a_state_follows_every_regroup(data):
    state = data.draw(states(restarts=1))
    for _ in range(data.draw(st.integers(1, 3))):
        event = data.draw(events(state))
        new = state.regrouped(event)
        assert new.clusters.K == event.regroup.K
        assert new.arrays.keys() == state.arrays.keys()
        for name, array in new.arrays.items():
            assert (array.axes, array.rule) == (state.arrays[name].axes, state.arrays[name].rule)
            assert array.value.dtype == state.arrays[name].value.dtype
            np.testing.assert_allclose(array.value, slowly_regrouped(state.arrays[name], event), rtol=0, atol=1e-12)
        state = new


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_every_array_of_a_state_follows_the_choice_of_a_restart(data):
    state = data.draw(states())
    R, K = state.clusters.restarts, state.clusters.K
    index = data.draw(st.integers(0, R - 1))
    kept = state.keep_restart(index)
    assert (kept.clusters.K, kept.clusters.restarts) == (K, 1)
    for name, p in kept.clusters.params.items():
        assert torch.equal(p, state.clusters.params[name][index * K : (index + 1) * K])
    for part in ("body", "overall"):
        before, now = getattr(state.clusters, part), getattr(kept.clusters, part)
        assert (before is None) == (now is None)
        assert all(torch.equal(now[name], p[index : index + 1]) for name, p in (before or {}).items())
    for name, array in kept.arrays.items():
        before, axes = state.arrays[name].value.numpy(), array.axes
        expected = before.take([index], axis=axes.index("restart")) if "restart" in axes else before
        assert np.array_equal(array.value, expected)


# ---- ties between restarts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("losses", "winner"),
    [
        ([3.0, 1.0, 2.0], 1),
        ([1.0 + 1e-10, 1.0, 2.0], 0),  # a tie goes to the lowest index
        ([1.0 + 1e-8, 1.0, 2.0], 1),
        ([-1.0 + 1e-10, -1.0], 0),
        ([-1.0 + 1e-8, -1.0], 1),
        ([0.0, 0.0], 0),
        ([torch.nan, 5.0, torch.inf], 1),
        ([-torch.inf, 5.0], 1),
        ([torch.inf, torch.nan], 0),
        ([torch.nan, torch.nan, torch.nan], 0),
        ([1e-300, 0.0], 1),
    ],
)
def test_the_least_loss_wins_up_to_a_tolerance(losses, winner):
    assert best_restart(torch.tensor(losses, dtype=torch.float64)) == winner


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_rounding_never_changes_the_winner(data):
    """Losses are equal, or apart by a thousandth and more; noise of 1e-10 may put equal ones in any order."""
    levels = data.draw(st.lists(st.integers(-50, 50), min_size=1, max_size=6))
    noise = st.lists(st.floats(-1e-10, 1e-10), min_size=len(levels), max_size=len(levels))
    winners = set()
    for _ in range(3):
        moved = [level * 0.02 * (1 + by) for level, by in zip(levels, data.draw(noise), strict=True)]
        winners.add(best_restart(torch.tensor(moved, dtype=torch.float64)))
    assert winners == {levels.index(min(levels))}


# ---- layout in memory ----------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_state_in_plain_layout_has_the_same_values_in_contiguous_aligned_arrays(data):
    state = data.draw(states())
    event = data.draw(events(state))
    # a regroup and the choice of a restart leave arrays that are transposed or start anywhere
    last = state.keep_restart(state.clusters.restarts - 1)
    for odd in (state, last, last.regrouped(event)):
        plain = odd.in_plain_layout()
        for before, after in zip(tensors_of(odd), tensors_of(plain), strict=True):
            assert torch.equal(before, after)
            assert after.is_contiguous()
            assert after.data_ptr() % ALIGNMENT == 0
        assert all(a is b for a, b in zip(tensors_of(plain), tensors_of(plain.in_plain_layout()), strict=True))


def tensors_of(state: ServerState) -> list[torch.Tensor]:
    clusters = state.clusters
    parts = (clusters.params, clusters.body or {}, clusters.overall or {}, state.under(""))
    return [tensor for part in parts for tensor in part.values()]
