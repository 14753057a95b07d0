"""Above a limit groups are formed among some clients and the others join; the order of clients does not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.core.clusters import Clusters
from coterie.core.keys import hash_ids
from coterie.core.regroup import Changes
from coterie.core.state import ServerState
from coterie.data.arrays import from_arrays
from coterie.methods import PACFL
from coterie.tiers.distance import UpdateCosine
from coterie.tiers.landmarks import REPRESENTATIVES, assign_to_nearest_part, lowest_keys
from coterie.tiers.procedure import SplitByGap, SplitByNorm, SplitBySpectrum
from coterie.tiers.view import View
from coterie.training.planning import prepare

CLIENTS = 70
CUTS = {
    "norm": lambda most: SplitByNorm(1e9, 0, warmup=0, most=most),
    "spectrum": lambda most: SplitBySpectrum(0.01, most=most),
    "gap": lambda most: SplitByGap(0.3, hard=True, most=most),
}


def two_ways(order: np.ndarray) -> View:
    """Return a view in which clients of even and odd numbers have opposite updates and answer in this order."""
    random = np.random.default_rng(3)
    vectors = np.eye(2, 12)[np.arange(CLIENTS) % 2] + 0.1 * random.standard_normal((CLIENTS, 12))
    ids = tuple(f"c{i}" for i in order)
    clusters = Clusters({"weight": torch.zeros(1, 12, dtype=torch.float64)}, K=1)
    ones = torch.ones(CLIENTS, 1, dtype=torch.float64)
    changes = Changes(clusters, ids, ones.long() - 1, torch.from_numpy(vectors[order])[:, None], ones, ones)
    fresh = ServerState.fresh(clusters, CLIENTS).with_values(choice=torch.zeros(CLIENTS, 1, dtype=torch.int64))
    state = replace(fresh, round=30)
    return View(state, ids, np.arange(CLIENTS), hash_ids(ids), changes=changes, distance=UpdateCosine())


@pytest.mark.parametrize("cut", CUTS)
def test_a_split_of_compared_members_equals_a_split_of_all_in_any_order(cut: str):
    found = set()
    for order in (np.arange(CLIENTS), np.random.default_rng(5).permutation(CLIENTS)):
        for most in (8, CLIENTS, 10 * CLIENTS):
            decided = CUTS[cut](most).server_propose(two_ways(order))
            found.add(frozenset(frozenset(new.members) for new in decided.clusters))
    ways = [frozenset(f"c{i}" for i in range(first, CLIENTS, 2)) for first in (0, 1)]
    assert found == {frozenset(ways)}


def test_only_some_members_are_compared_and_others_in_the_next_round():
    view = two_ways(np.arange(CLIENTS))
    members, apart = view.pairwise(0, 8)
    assert apart.shape == (8, 8)
    assert set(members) <= set(view.members(0))
    assert set(members) == set(view.pairwise(0, 8)[0])
    assert set(members) != set(replace(view, state=replace(view.state, round=31)).pairwise(0, 8)[0])
    assert lowest_keys(np.array([5, 1, 4, 2], dtype=np.uint64), 2).tolist() == [1, 3]


def test_the_rest_join_by_a_plain_loop():
    random = np.random.default_rng(1)
    points, everybody = random.standard_normal((200, 3)), random.permutation(200)
    apart = np.linalg.norm(points[:, None] - points, axis=2)
    parts = [everybody[:40], everybody[40:43], everybody[43:70]]
    expected = [list(part) for part in parts]
    for i in everybody[70:]:
        means = [np.mean([apart[i, j] for j in part[: REPRESENTATIVES // 3]]) for part in parts]
        expected[int(np.argmin(means))].append(i)
    found = assign_to_nearest_part(parts, everybody, lambda places: apart[np.ix_(places, places)])
    assert [part.tolist() for part in found] == expected


def test_subspaces_are_grouped_among_some():
    """Samples of three groups lie along three axes; 20 founders for each of K, or 12 if the limit decides."""
    random = np.random.default_rng(0)
    axis = np.repeat(np.eye(3, 8)[np.arange(CLIENTS) % 3][:, None], 6, axis=1)
    x = axis + 0.05 * random.standard_normal((CLIENTS, 6, 8))
    truth = np.arange(CLIENTS) % 3
    for order in (np.arange(CLIENTS), random.permutation(CLIENTS)):
        data = from_arrays({f"c{i}": (x[i], np.arange(6) % 2) for i in order})
        method = PACFL(directions=1, beta=30)
        plan = prepare(data, method, "logistic", {"seed": 1})
        for K, founders in ((None, 12), (3, 60)):
            found = method.group(plan.run, K, most=12)
            assert (found.K, found.facts["founders"]) == (3, founders)
            pairs = {(int(k), int(truth[i])) for k, i in zip(found.labels, order, strict=True)}
            assert len(pairs) == 3
