"""Groups that tests on halves of the clients' samples find: their number, and clients that join later."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie
from coterie.client.tasks.introduce_halves import SKETCH, IntroduceHalves, folded
from coterie.core.clusters import Clusters
from coterie.core.messages import Broadcast
from coterie.errors import ConfigError
from coterie.report.one_shot import grouped
from coterie.tiers.distance import AnchorCosine
from coterie.tiers.halves_groups import GroupByHalves
from coterie.tiers.tree_test import count_by_halves, cut_tree
from coterie.training.planning import prepare


def halves_of(groups: int, clients: int, noise: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of ten numbers for both halves of clients in equal groups."""
    random = np.random.default_rng([seed, groups])
    means = random.standard_normal((groups, 10))[np.arange(clients) % groups]
    one, two = (means + noise * random.standard_normal(means.shape) for _ in range(2))
    return one, two


def test_one_group_is_rarely_divided():
    """At a rate of 0.3 at most 12 of 40 would be; a binomial with that probability exceeds 21 once in 1000 times."""
    divided = sum(count_by_halves(*halves_of(1, 12, 1.0, seed), np.ones(12), rate=0.3).K > 1 for seed in range(40))
    assert divided <= 21


@pytest.mark.parametrize("groups", [1, 2, 4, 6])
def test_clear_groups_are_counted(groups: int):
    counted = count_by_halves(*halves_of(groups, 48, 0.3, 0), np.ones(48))
    assert groups == counted.K
    assert sum(test.accepted for test in counted.tests) == groups - 1


def test_fewer_clients_than_two_groups_of_two_are_one_group():
    assert count_by_halves(*halves_of(3, 3, 0.01, 0), np.ones(3)).K == 1


def test_a_split_by_hand():
    """Two pairs at 0 and 10 on a line: the mean of a client's own pair without itself is the other member.

    Second halves lie 1 above the first. |b - a|^2 - |b|^2 for the fellow is a^2 - 2 b a: 0 for those at 0, and
    100 - 2 * 11 * 10 = -120 for those at 10. The mean of the three others is 20 / 3 for those at 0, where it is
    400/9 - 2 * 1 * 20/3 = 280/9, and 10 / 3 for those at 10, where it is 100/9 - 2 * 11 * 10/3 = -560/9. The mean gain
    is (280/9 + 120 - 560/9) / 2 = 400/9.
    """
    a, b = np.array([[0.0], [0], [10], [10]]), np.array([[1.0], [1], [11], [11]])
    tree = np.array([[0, 1, 0, 2], [2, 3, 0, 2], [4, 5, 10, 4]], dtype=float)
    tested = cut_tree(tree, a @ a.T, b @ a.T, np.ones(4)).tests[0]
    assert tested.gain == pytest.approx(400 / 9)
    assert tested.loss == pytest.approx((280 / 9 - 560 / 9) / 2)


def test_folding_keeps_short_rows_and_sums():
    short = torch.arange(2.0 * SKETCH).reshape(2, -1)
    assert torch.equal(folded(short, 1), short)
    one, two = torch.randn(3, 5000, generator=torch.manual_seed(0)), torch.ones(3, 5000)
    assert folded(one, 1).shape == (3, SKETCH)
    torch.testing.assert_close(folded(one + two, 1), folded(one, 1) + folded(two, 1))
    # a sum of squares keeps its mean under random signs: 5000 +- some per cent
    assert (folded(one, 1) ** 2).sum(dim=1).numpy() == pytest.approx((one**2).sum(dim=1).numpy(), rel=0.3)


def three_slopes(seed: int = 0, clients: int = 24, single: bool = False) -> coterie.FederatedDataset:
    """Linear data of three groups; with `single` the first client has one sample."""
    random = np.random.default_rng(seed)
    slopes = 2 * np.eye(3)
    made = {}
    for i in range(clients):
        x = random.standard_normal((1 if single and i == 0 else 30, 3))
        made[f"c{i:02d}"] = (x, x @ slopes[i % 3] + 0.3 * random.standard_normal(len(x)))
    return coterie.from_arrays(made, truth=[i % 3 for i in range(clients)])


@pytest.mark.parametrize("share", [1.0, 0.4])
def test_stocfl_finds_groups_without_tau(share: float):
    result = coterie.fit(three_slopes(), "stocfl", rounds=6, lr=0.1, participation=share, seed=1)
    assert (len(result.models), result.metrics["ari"]) == (3, 1.0)
    kinds = [event["kind"] for record in result.records for event in record.events]
    assert kinds[0] == "arrival"
    assert "merge" not in kinds
    if share == 1.0:
        assert kinds == ["arrival"]
        assert [test["statistic"] for test in result.records[0].tests] == ["p"] * len(result.records[0].tests)


def test_a_client_of_one_sample_joins_a_group():
    result = coterie.fit(three_slopes(single=True), "stocfl", rounds=2, lr=0.1)
    assert len(result.models) == 3
    assert result.assignments["c00"] in (0, 1, 2)


def test_an_onboarding_row_contains_both_halves():
    """A frozen linear model: rows are the updates by each half, and do not depend on other clients."""
    plan = prepare(three_slopes(), "stocfl", None, {"lr": 0.1, "seed": 3})
    task = plan.tiers.onboarding_task(3)
    assert isinstance(task, IntroduceHalves)

    def told(who: list[int]) -> torch.Tensor:
        sent = Broadcast(0, Clusters({}, K=1), scalars={"lr": 0.1})
        return plan.federation.ask(task, sent, np.array(who)).reply.rows["anchor"]

    everybody = told(list(range(24)))
    assert everybody.shape == (24, 6)
    assert torch.equal(told([5, 7]), everybody[[5, 7]])
    assert not torch.equal(everybody[:, :3], everybody[:, 3:])


def test_tiered_takes_the_step():
    options = {"assignment": "assigned", "procedure": "group-by-halves", "distance": "anchor-cosine"}
    one = coterie.fit(three_slopes(), "tiered", rounds=3, lr=0.1, pull=0.05, **options)
    two = coterie.fit(three_slopes(), "stocfl", rounds=3, lr=0.1)
    assert all(np.array_equal(a["weight"], b["weight"]) for a, b in zip(one.models, two.models, strict=True))
    with pytest.raises(ConfigError, match="group-by-halves and distance anchor-cosine work only together"):
        coterie.fit(three_slopes(), "tiered", rounds=1, assignment="assigned", procedure=(GroupByHalves(),))
    assert AnchorCosine().needs == "anchor"


def test_fedgroup_counts_its_groups():
    result = coterie.fit(three_slopes(), "fedgroup", rounds=2, lr=0.1)
    assert (len(result.models), result.metrics["ari"]) == (3, 1.0)
    told = result.metrics["grouping"]
    assert told["clusters"] == 3
    assert [test["value"] < test["threshold"] for test in told["tests"]].count(True) == 2


def test_fedgroup_finds_one_group_of_similar_clients():
    random = np.random.default_rng(5)
    x = random.standard_normal((20, 30, 3))
    clients = {f"c{i}": (own, own.sum(axis=1) + random.standard_normal(30)) for i, own in enumerate(x)}
    result = coterie.fit(coterie.from_arrays(clients), "fedgroup", rounds=1, lr=0.1)
    assert len(result.models) == 1
    assert "never cut; closest test: held-out loss" in (grouped(result.metrics) or "")
