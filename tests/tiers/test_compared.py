"""How many members of a cluster are compared: a bounded number, chosen by their ids and the round alone."""

from dataclasses import replace

import numpy as np
import torch

from coterie.core.clusters import Clusters
from coterie.core.keys import hash_ids
from coterie.core.state import ServerState
from coterie.tiers.distance import Prototypes
from coterie.tiers.procedure import SplitByGap
from coterie.tiers.view import View

CLIENTS = tuple(f"client {i}" for i in range(30))


def view_of(clients: tuple[str, ...], round_: int) -> View:
    """One cluster; the first third of the clients has another feature mean of its only class than the others."""
    number = np.array([int(client.split()[1]) for client in clients])
    angle = torch.from_numpy(np.where(number < 10, 0.0, 1.2) + number / 1000)
    means = torch.stack([angle.cos(), angle.sin()], dim=1)
    rows = {
        "prototypes": means[:, None],
        "class_counts": torch.ones(len(clients), 1, dtype=torch.float64),
        "mean_feature": means,
    }
    choice = torch.zeros(len(clients), 1, dtype=torch.int64)
    state = ServerState.fresh(Clusters({"w": torch.zeros(1, 2)}, 1), len(clients)).with_values(choice=choice)
    return View(
        replace(state, round=round_),
        clients,
        np.arange(len(clients)),
        hash_ids(clients),
        rows,
        torch.ones(len(clients), 1, dtype=torch.float64),
        distance=Prototypes("cscp"),
    )


def test_compared_members_have_the_distances_they_have_among_all():
    view = view_of(CLIENTS, 0)
    everybody, apart = view.pairwise(0)
    some, between = view.pairwise(0, 8)
    assert len(set(some.tolist())) == 8
    places = [everybody.tolist().index(member) for member in some]
    assert places == sorted(places), "in the order of their hashes, as all are"
    for a, i in enumerate(places):
        for b, j in enumerate(places):
            assert abs(between[a, b] - apart[i, j]) < 1e-12


def test_compared_members_depend_on_the_round_but_not_on_any_order():
    def chosen(clients, round_):
        view = view_of(clients, round_)
        return set(view.ids(view.pairwise(0, 8)[0]))

    assert chosen(CLIENTS, 3) == chosen(CLIENTS[::-1], 3)
    assert set().union(*(chosen(CLIENTS, round_) for round_ in range(20))) == set(CLIENTS)


def test_few_members_are_all_compared():
    view = view_of(CLIENTS, 0)
    assert view.pairwise(0, 30)[0].tolist() == view.pairwise(0)[0].tolist()


def test_a_soft_split_names_compared_members_and_a_hard_one_all_members():
    view = view_of(CLIENTS, 0)
    soft = SplitByGap(0.1, most=8).server_propose(view)
    hard = SplitByGap(0.1, hard=True, most=8).server_propose(view)
    assert sum(len(new.members) for new in soft.clusters) == 8
    assert {frozenset(new.members) for new in hard.clusters} == {frozenset(CLIENTS[:10]), frozenset(CLIENTS[10:])}
    parts = [{int(client.split()[1]) < 10 for client in new.members} for new in soft.clusters]
    assert sorted(parts, key=str) == [{False}, {True}], "each part from one side"
