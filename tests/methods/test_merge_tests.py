"""Merges and separate bodies by tests on held-out halves: figures by hand, and whole runs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import coterie
from coterie.core.clusters import Clusters
from coterie.core.regroup import NewCluster, Regroup
from coterie.core.state import AGE
from coterie.core.state_array import Age, StateArray
from coterie.errors import ConfigError
from coterie.methods import CFL, FullBatch, HCFLPlus
from coterie.methods.trials import TRIAL_LENGTH, RoundTrials, nearest_pairs
from coterie.testing.checks import small_federation
from coterie.tiers import MergeByTest, OwnBodiesByTest
from coterie.tiers.assignment import EMMixture
from coterie.tiers.view import View
from coterie.training.fitting import initialize
from coterie.training.planning import prepare


def view_of(targets: list[float], models: list[float], own: list[int]) -> View:
    """Clients whose samples all have x = 1 and the same y, with a model theta for each cluster."""
    data = coterie.from_arrays({f"c{i}": (np.ones((4, 1)), np.full(4, float(y))) for i, y in enumerate(targets)})
    method = CFL(local=FullBatch(steps=1, lr=0.1))
    plan = initialize(prepare(data, method, "linear", {"rounds": 1, "dtype": "float64"}))
    params = {name: torch.tensor(models, dtype=torch.float64)[:, None] for name in plan.state.clusters.params}
    state = replace(plan.state, clusters=Clusters(params, len(models))).with_choice(torch.tensor(own))
    run = plan.plan.run
    return View(
        state, data.clients, np.arange(len(targets)), run.federation.hashes, distance=run.tiers.distance,
        trials=RoundTrials(run),
    )  # fmt: skip


def test_the_gain_of_two_models_over_one_by_hand():
    """The models 1 and 3 have the mean 2; clients with y = 0, 2 and 2, 4 lack -2, 0, 0, 2 there.

    A step of 0.1 on the mean of (y - theta)^2 / 2 leaves 0.9 of what a client lacks, so 4 steps bring s = 1 - 0.9^4 of
    it. One model for all stays at 2, those of the parts go to 2 - s and 2 + s. So the losses fall by 2 s - s^2 / 2 for
    y = 0 and 4, and rise by s^2 / 2 for the others.
    """
    view = view_of([0, 2, 2, 4], [1, 3], [0, 0, 1, 1])
    assert TRIAL_LENGTH == 4
    assert MergeByTest(every=1).server_propose(view) is None
    (found,) = view.statistics
    s = 1 - 0.9**4
    gains = np.array([2 * s, 0, 0, 2 * s]) - s**2 / 2
    factor = 1 if found.more["loss"] == pytest.approx(1) else 2
    assert found.more["error"] / factor == pytest.approx(gains.std(ddof=1) / math.sqrt(4))
    assert found.more["loss"] / factor == pytest.approx((2 + 0 + 0 + 2) / 4)


def test_clusters_with_equal_models_merge():
    view = view_of([0, 4, 0, 4], [1.5, 2.5], [0, 0, 1, 1])
    decided = MergeByTest(every=1).server_propose(view)
    assert decided is not None
    assert decided.clusters == (NewCluster((0, 1), "average"),)
    after = view.after(decided)
    assert after.clusters.all_models().popitem()[1].item() == 2
    assert after.choice.tolist() == [0, 0, 0, 0]


def test_only_trials_and_clusters_with_members_are_tested():
    view = view_of([0, 4, 0, 4], [1.5, 2.5], [0, 0, 0, 1])
    assert MergeByTest(every=1).server_propose(view) is None  # a test needs more than one member
    assert MergeByTest(every=2).server_propose(view_of([0, 4, 0, 4], [1, 2], [0, 0, 1, 1])) is None
    assert not view.statistics


def test_nearest_pairs_are_disjoint():
    at = torch.tensor([[0.0], [10.0], [11.0], [3.0], [10.4]])
    assert nearest_pairs(at, range(5)) == [(0, 3), (1, 4)]  # 2 is left over: 4 is nearer to 1
    assert nearest_pairs(at, [0, 2]) == [(0, 2)]
    assert nearest_pairs(at, [3]) == []


def test_bodies_are_copied_and_heads_stay():
    body, heads = {"body.weight": torch.ones(1, 2)}, {"head.weight": torch.arange(6.0).reshape(3, 2)}
    clusters = Clusters(heads, 3, body=body)
    copies = Regroup(tuple(NewCluster((k,)) for k in range(3)), own_bodies=True)
    after = copies.apply(clusters, torch.ones(3))
    assert not after.shared
    assert after.params["body.weight"].tolist() == [[1, 1]] * 3
    assert torch.equal(after.params["head.weight"], heads["head.weight"])


def test_separate_bodies_wait_until_clusters_are_stable():
    plan = initialize(prepare(small_federation("mlp"), HCFLPlus(clusters=2), "mlp:hidden=4", {"rounds": 1}))
    run = plan.plan.run
    half = torch.arange(len(run.federation.clients)) % 2
    for age, tested in ((4, 0), (5, 1)):
        ages = StateArray(torch.tensor([9, age]), ("cluster",), Age())
        state = plan.state.with_choice(half).with_arrays({AGE: ages})
        view = View(
            replace(state, round=4), run.federation.clients, np.arange(len(half)), run.federation.hashes,
            distance=run.tiers.distance, trials=RoundTrials(run),
        )  # fmt: skip
        OwnBodiesByTest(5).server_propose(view)
        assert len(view.statistics) == tested


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"assignment": "em-mixture"}, "but nothing is shared: set shared=body"),
        ({"assignment": "personal-em", "shared": "body"}, "clients keep personal heads: use assignment=em-mixture"),
        ({"assignment": "em-mixture", "shared": "body", "procedure": "merge-by-test:every=0"}, "at least 1, got 0"),
    ],
)
def test_steps_that_cannot_work_are_refused(options, message):
    given = {"procedure": "own-bodies-by-test", "distance": "update-cosine", "rounds": 1} | options
    with pytest.raises(ConfigError, match=message):
        prepare(small_federation("mlp"), "tiered", "mlp:hidden=4", given)


def test_the_penalty_of_eq_2_by_hand():
    """mu-tilde 1/4: the factor is (3/4) / (1/4) = 3; KL((1/2, 1/2), (1/4, 3/4)) = log(2)/2 + log(2/3)/2."""
    own, each = torch.tensor([[[[0.5, 0.5]]]]), torch.tensor([[[[0.25, 0.75]], [[0.5, 0.5]]]])
    found = EMMixture(mu=0.25).client_penalty(own, each)
    assert found[0, :, 0].tolist() == pytest.approx([3 * (math.log(2) + math.log(2 / 3)) / 2, 0])
