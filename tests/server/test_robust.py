"""Robust aggregation within clusters: by hand, against plain loops, and under attack."""

import numpy as np
import pytest
import torch

import coterie
from coterie.core.clusters import Clusters
from coterie.core.messages import Reply
from coterie.core.regroup import Changes
from coterie.core.state import ServerState
from coterie.errors import ConfigError
from coterie.server.aggregate import RoundReplies
from coterie.server.averaging import Averaging
from coterie.server.combine import Krum, Median, Trimmed, krum, krum_scores, median, read_combine, trimmed_mean
from coterie.server.optimizers import ServerSGD, move_models
from coterie.server.robust import robust_sums, too_few
from coterie.testing.checks import small_federation
from coterie.tiers.assignment import LowestLoss


def column(*values):
    return torch.tensor(values, dtype=torch.float64)[:, None]


# ---- by hand -------------------------------------------------------------------------------------------------


def test_a_median_is_taken_coordinate_by_coordinate():
    changes = torch.tensor([[1.0, 50.0], [2.0, -3.0], [100.0, 4.0]], dtype=torch.float64)
    assert median(changes).tolist() == [2.0, 4.0]
    assert median(column(1, 2, 4, 100)).tolist() == [3.0]  # (2 + 4) / 2
    assert median(column(1, 2)).tolist() == [1.5]
    assert median(column(7)).tolist() == [7.0]


def test_a_trimmed_mean_leaves_out_a_share_of_each_end_rounded_up():
    assert trimmed_mean(column(-1000, 1, 2, 6, 1000), 0.2).tolist() == [3.0]  # 0.2 * 5 = 1 off each end: (1+2+6)/3
    assert trimmed_mean(column(0, 1, 2, 9), 0.1).tolist() == [1.5]  # ceil(0.4) = 1: (1+2)/2
    assert trimmed_mean(column(0, 1, 5), 0.4).tolist() == [1.0]  # ceil(1.2) = 2 would leave nothing: one each
    assert trimmed_mean(column(2, 4), 0.4).tolist() == [3.0]
    assert trimmed_mean(column(*range(30)), 0.1).tolist() == [
        14.5
    ]  # 3 off each end, not 4: 0.1 * 30 is 3.0000000000000004
    assert trimmed_mean(column(*[0] * 3, *[1] * 7, *[9] * 20), 0.1).tolist() == [pytest.approx((7 + 17 * 9) / 24)]


def test_krums_score_adds_the_nearest_squared_distances():
    # n = 5, f = 1: the n - f - 2 = 2 nearest others. 0: 1 + 4; 1: 1 + 1; 2: 1 + 4; 10: 1 + 64; 11: 1 + 81
    changes = column(0, 1, 2, 10, 11)
    assert krum_scores(changes, 1).tolist() == [5.0, 2.0, 5.0, 65.0, 82.0]
    assert krum(changes, 1, keep=1).tolist() == [1.0]
    assert krum(changes, 1, keep=2).tolist() == [0.5]  # of the two with 5 the first: (1 + 0) / 2
    assert krum(changes, 1, keep=9).tolist() == [0.5]  # at most n - f - 2 = 2 are kept


def test_krum_of_too_few_is_the_median():
    assert krum(column(0, 3, 4, 100), 1, keep=1).tolist() == [3.5]  # 2 f + 3 = 5 are needed


# ---- against a plain loop, cluster by cluster ----------------------------------------------------------------


def plain_median(rows):
    found = []
    for values in zip(*rows, strict=True):
        ordered, n = sorted(values), len(values)
        found.append(ordered[n // 2] if n % 2 else (ordered[n // 2 - 1] + ordered[n // 2]) / 2)
    return np.array(found)


def plain_trimmed(rows, cut):
    return np.array([np.mean(sorted(values)[cut : len(values) - cut]) for values in zip(*rows, strict=True)])


def plain_krum(rows, f, keep):
    n, scored = len(rows), []
    for i in range(n):
        distances = sorted(float(((rows[i] - rows[j]) ** 2).sum()) for j in range(n) if j != i)
        scored.append((sum(distances[: n - f - 2]), i))
    return np.mean([rows[i] for _, i in sorted(scored)[:keep]], axis=0)


PLAIN = {
    "median": plain_median,
    "trimmed:share=0.2": lambda rows: plain_trimmed(rows, int(np.ceil(0.2 * len(rows)))),
    "krum:attackers=2,keep=3": lambda rows: plain_krum(rows, 2, 3),
}
RESTARTS, K, P, M = 2, 2, 5, 24


def averaged(clusters, reply, answered, combine, **averaging):
    by = Averaging(combine=read_combine(combine), **averaging)
    update = LowestLoss().server_aggregate(RoundReplies(clusters, reply, np.full(M, 3), answered, by))
    return move_models(ServerSGD(0.5), ServerState.fresh(clusters, M), update).clusters


def some_round(order=None):
    """Return the rows of a reply of 24 clients in 2 clusters and 2 restarts, optionally in another order."""
    random = np.random.default_rng(0)
    params = {
        "a": torch.from_numpy(random.normal(size=(RESTARTS * K, 2))),
        "b": torch.from_numpy(random.normal(size=(4, 3))),
    }
    vectors, chosen = random.normal(size=(M, RESTARTS, P)), random.integers(K, size=(M, RESTARTS))
    order = np.arange(M) if order is None else order
    names = tuple(f"client-{i:02d}" for i in order)
    rows = {"cluster": torch.from_numpy(chosen[order]), "change": torch.from_numpy(vectors[order])}
    return Clusters(params, K, RESTARTS), Reply(names, rows=rows), vectors, chosen


@pytest.mark.parametrize("over", ["members", "all"])
@pytest.mark.parametrize("combine", PLAIN)
def test_every_cluster_of_every_restart_equals_a_plain_loop(combine, over):
    clusters, reply, vectors, chosen = some_round()
    moved = averaged(clusters, reply, np.arange(M), combine, over=over)
    for restart in range(RESTARTS):
        for k in range(K):
            members = vectors[chosen[:, restart] == k, restart]
            part = len(members) / M if over == "all" else 1.0  # `all` divides by all clients instead of the members
            change = 0.5 * part * PLAIN[combine](members)
            for name, where in (("a", slice(0, 2)), ("b", slice(2, 5))):
                slot = restart * K + k
                expected = clusters.params[name][slot].numpy() + change[where]
                assert np.abs(moved.params[name][slot].numpy() - expected).max() < 1e-9


@pytest.mark.parametrize("combine", PLAIN)
def test_the_order_of_clients_does_not_matter_at_all(combine):
    found = []
    for order in (None, np.random.default_rng(1).permutation(M)):
        clusters, reply, _, _ = some_round(order)
        answered = np.arange(M) if order is None else order
        found.append(averaged(clusters, reply, answered, combine))
    assert all(torch.equal(found[0].params[name], found[1].params[name]) for name in ("a", "b"))


def test_equal_scores_go_to_the_first_id_in_any_order():
    values = {"d": 0.0, "b": 1.0, "a": 5.0, "c": 6.0, "e": 20.0}  # n - f - 2 = 2 neighbours: 26, 17, 17, 26, 421
    for names in (("d", "b", "a", "c", "e"), ("e", "c", "a", "b", "d")):
        vectors = torch.tensor([[[values[n]]] for n in names], dtype=torch.float64)
        ones = torch.ones(5, 1, dtype=torch.float64)
        clusters = Clusters({"w": torch.zeros(1, 1, dtype=torch.float64)}, 1)
        sums = robust_sums(
            Krum(1), clusters, Changes(clusters, names, torch.zeros(5, 1, dtype=torch.int64), vectors, ones, ones)
        )
        assert float(sums.arrays["change/w"] / sums.arrays["mass"]) == 5.0  # a before b


# ---- attackers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("huge", [1e6, -1e300])
@pytest.mark.parametrize("attackers", [1, 2, 3])
def test_a_minority_of_attackers_cannot_leave_the_range_of_the_honest(huge, attackers):
    honest = torch.from_numpy(np.random.default_rng(2).normal(size=(9 - attackers, 4)))
    changes = torch.cat([torch.full((attackers, 4), huge, dtype=torch.float64), honest])
    low, high = honest.min(dim=0).values, honest.max(dim=0).values
    found = [median(changes), trimmed_mean(changes, attackers / 9), krum(changes, attackers, keep=1)]
    for centre in found:
        assert bool((low <= centre).all())
        assert bool((centre <= high).all())
    assert float(changes.mean(dim=0).abs().min()) > 1e4  # as for a mean


def test_a_majority_of_attackers_determines_the_result():
    assert median(column(0, 0, 9, 9, 9)).tolist() == [9.0]


def test_a_change_that_is_not_finite_in_one_restart_counts_in_the_other_only():
    clusters = Clusters({"w": torch.zeros(2, 1, dtype=torch.float64)}, 1, 2)
    vectors = torch.tensor([[[1.0], [torch.nan]], [[2.0], [5.0]], [[9.0], [7.0]]], dtype=torch.float64)
    ones = torch.ones(3, 2, dtype=torch.float64)
    sums = robust_sums(
        Median(), clusters, Changes(clusters, ("a", "b", "c"), torch.tensor([[0, 1]] * 3), vectors, ones, ones)
    )
    assert sums.arrays["mass"].tolist() == [3.0, 2.0]
    assert (sums.arrays["change/w"][:, 0] / sums.arrays["mass"]).tolist() == [2.0, 6.0]


# ---- notes and refusals --------------------------------------------------------------------------------------


def test_a_record_reports_clusters_with_too_few_members():
    clusters, reply = (
        Clusters({"w": torch.zeros(3, 1)}, 3),
        Reply((), rows={"cluster": torch.tensor([[0]] * 5 + [[2]] * 2)}),
    )
    assert too_few(read_combine("mean"), clusters, reply) == ()
    assert [note.reason for note in too_few(Trimmed(), clusters, reply)] == [
        "combine=trimmed needs at least 3 members, so the mean was used for cluster 2 (2)"
    ]
    assert [note.reason for note in too_few(Krum(2), clusters, reply)] == [
        "combine=krum needs at least 7 members, so the median was used for cluster 0 (5), cluster 2 (2)"
    ]
    result = coterie.fit(small_federation("linear"), "ifca", clusters=2, combine="krum:attackers=3", rounds=1, lr=0.01)
    assert "combine=krum needs at least 9 members" in result.records[0]["notes"][0]["reason"]


REFUSED = [
    ("ifca", {"combine": "medain"}, "did you mean 'median'"),
    ("ifca", {"combine": "trimmed:share=0.5"}, "must be above 0 and below 0.5"),
    ("ifca", {"combine": "krum"}, "krum needs attackers: write krum:attackers="),
    ("ifca", {"combine": "krum:attackers=0"}, "at least 1"),
    ("ifca", {"combine": "median", "client_weight": "samples"}, "gives every client the same weight"),
    ("ifca", {"combine": "median", "averaging": "responsibility"}, "averaging=members or all"),
    (
        "ifca",
        {"combine": "median", "learner": "mlp:hidden=4", "shared": "layer0"},
        "a shared body would still be a plain mean",
    ),
    ("two-phase", {"combine": "median", "soft": 0.5, "init": "random"}, "members of one cluster each"),
    ("tiered", {"combine": "median"}, "members of one cluster each"),
    (
        "tiered",
        {
            "combine": "median",
            "assignment": "assigned",
            "procedure": "split-by-norm:eps1=1,eps2=1",
            "distance": "update-cosine",
        },
        "fixed",
    ),
    ("fedem", {"combine": "median"}, "has no meaning for method fedem"),
]


@pytest.mark.parametrize(("method", "options", "sentence"), REFUSED)
def test_refusals_say_what_to_do(method, options, sentence):
    learner = options.get("learner", "linear")
    data = small_federation("linear" if learner == "linear" else "mlp")
    with pytest.raises(ConfigError, match=sentence):
        coterie.fit(data, method, **{"learner": learner, **options})


def test_all_clients_have_weight_one_by_default():
    data = small_federation("linear")
    result = coterie.fit(data, "fedavg", combine="median", rounds=2, lr=0.01, local_epochs=1, batch_size=4)
    assert result.config["client_weight"] == "uniform"
    assert result.records[0]["loss"] > 0
