"""A local round of a shard against a slow loop over clients."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.client.tasks import LocalRound
from coterie.core import blocks
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import ALL, Broadcast, Reply, decode_reply, encode_reply, merge
from coterie.core.plain import from_plain
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.errors import ConfigError
from coterie.learners import make_learner
from coterie.learners.local_training import FullBatch, LocalTraining, MiniBatch
from coterie.server.averaging import Averaging
from coterie.tiers.assignment import LowestLoss, SingleCluster
from coterie.tiers.composition import Tiers
from tests.core.make import Samples, class_data, make_block, make_shard, regression_data

D = 3
SIZES = [4, 9, 4, 10, 1, 17]
LINEAR = make_learner("linear:bias=true", Profile((D,), None))
TWO_STEPS = FullBatch(steps=2)
BATCHES = MiniBatch(batch_size=3, epochs=1)
NEAR = {"rtol": 1e-6, "atol": 1e-9}


def task(work: LocalTraining = TWO_STEPS, weight: str = "uniform", assignment=None, seed: int = 5):
    averaging = Averaging(client_weight=weight)
    return Tiers(assignment=assignment or LowestLoss(), K=1, local=work, averaging=averaging).task(seed, 1)


def local_round(learner, shard: Shard, task_: LocalRound, sent: Broadcast) -> Reply:
    return task_.run(ClientGroup(learner, shard), sent)


def random_clusters(K: int = 3, restarts: int = 1, learner=LINEAR) -> Clusters:
    return Clusters(learner.start(range(K * restarts), torch.float64), K, restarts)


def broadcast(clusters: Clusters, only: list | None = None, round_: int = 4) -> Broadcast:
    return Broadcast(round_, clusters, None if only is None else torch.tensor(only), {"lr": 0.1})


def slow_round(data: list[Samples], clusters: Clusters, steps: int, weight: str, lr: float = 0.1) -> dict:
    """Return the sums of a round in plain NumPy: choice by mean loss, gradient steps, sums, for each restart."""
    w, b = clusters.params["weight"].numpy(), clusters.params["bias"].numpy()
    S = len(b)
    out: dict = {
        "loss": np.zeros(clusters.restarts),
        "weight": np.zeros_like(w),
        "bias": np.zeros_like(b),
        "mass": np.zeros(S),
        "count": np.zeros(S, int),
        "cluster": np.zeros((len(data), clusters.restarts), int),
    }
    for i, (x, y) in enumerate(data):
        for restart in range(clusters.restarts):
            losses = [
                ((x @ w[s] + b[s] - y) ** 2).mean() / 2 for s in range(restart * clusters.K, (restart + 1) * clusters.K)
            ]
            k = int(np.argmin(losses))
            s = restart * clusters.K + k
            theta, offset = w[s].copy(), b[s]
            for _ in range(steps):
                gap = (x @ theta + offset - y) / len(y)
                theta, offset = theta - lr * x.T @ gap, offset - lr * gap.sum()
            mass = len(y) if weight == "samples" else 1
            out["loss"][restart] += losses[k] * len(y)
            out["weight"][s] += mass * (theta - w[s])
            out["bias"][s] += mass * (offset - b[s])
            out["mass"][s] += mass
            out["count"][s] += 1
            out["cluster"][i, restart] = k
    return out


@pytest.mark.parametrize("weight", ["uniform", "samples"])
@pytest.mark.parametrize("restarts", [1, 2])
def test_a_round_equals_the_slow_loop(weight, restarts):
    data = regression_data(SIZES, D)
    clusters = random_clusters(3, restarts)
    reply = local_round(LINEAR, make_shard(data), task(weight=weight), broadcast(clusters))
    slow = slow_round(data, clusters, 2, weight)
    used = np.flatnonzero(slow["count"])
    sums = reply.slotted["clusters"]
    assert reply.clients == tuple(f"c{i}" for i in range(len(SIZES)))
    assert reply.rejected == ()
    assert reply.rows["cluster"].tolist() == slow["cluster"].tolist()
    assert sums.slots.tolist() == used.tolist()
    assert sums.counts.tolist() == slow["count"][used].tolist()
    np.testing.assert_allclose(sums.arrays["mass"].numpy(), slow["mass"][used])
    np.testing.assert_allclose(sums.arrays["change/weight"].numpy(), slow["weight"][used], **NEAR)
    np.testing.assert_allclose(sums.arrays["change/bias"].numpy(), slow["bias"][used], **NEAR)
    np.testing.assert_allclose(reply.sums["loss"].numpy(), slow["loss"], **NEAR)
    assert float(reply.sums["samples"]) == sum(SIZES)
    assert len(used) > 1  # the example is worth looking at only if clients differ


def assert_same(a: Reply, b: Reply) -> None:
    assert a.clients == b.clients
    assert a.rejected == b.rejected
    for x, y in ((a.sums, b.sums), (a.rows, b.rows)):
        assert x.keys() == y.keys()
        for name in x:
            torch.testing.assert_close(x[name], y[name], rtol=1e-9, atol=1e-12)
    for name in a.slotted:
        assert torch.equal(a.slotted[name].slots, b.slotted[name].slots)
        assert torch.equal(a.slotted[name].counts, b.slotted[name].counts)
        for key, value in a.slotted[name].arrays.items():
            torch.testing.assert_close(value, b.slotted[name].arrays[key], rtol=1e-9, atol=1e-12)


def cut_in_parts(learner, shard: Shard, task_, sent: Broadcast, parts: int) -> Reply:
    places = np.array_split(np.arange(len(shard)), parts)
    return merge([local_round(learner, shard.take(p), task_, sent.to(p)) for p in places])


@pytest.mark.parametrize("parts", [2, len(SIZES)])
@pytest.mark.parametrize("work", [FullBatch(steps=2), BATCHES])
def test_the_result_does_not_depend_on_the_cut(parts, work):
    shard, sent = make_shard(regression_data(SIZES, D)), broadcast(random_clusters(3, 2))
    whole = local_round(LINEAR, shard, task(work), sent)
    assert_same(whole, cut_in_parts(LINEAR, shard, task(work), sent, parts))


def test_batches_differ_by_round_and_seed():
    shard, clusters, work = make_shard(regression_data([20], D)), random_clusters(1), BATCHES

    def change(seed: int, round_: int) -> torch.Tensor:
        reply = local_round(LINEAR, shard, task(work, seed=seed), broadcast(clusters, round_=round_))
        return reply.slotted["clusters"].arrays["change/weight"]

    assert torch.equal(change(1, 0), change(1, 0))
    assert not torch.equal(change(1, 0), change(1, 1))
    assert not torch.equal(change(1, 0), change(2, 0))


def test_equal_models_are_chosen_by_the_lowest_index():
    one = LINEAR.start([1], torch.float64)
    clusters = Clusters({n: p.repeat(3, *(1,) * (p.dim() - 1)) for n, p in one.items()}, 3)
    reply = local_round(LINEAR, make_shard(regression_data(SIZES, D)), task(), broadcast(clusters))
    assert reply.rows["cluster"].flatten().tolist() == [0] * len(SIZES)


def test_one_cluster_needs_no_scores():
    data, clusters = regression_data(SIZES, D), random_clusters(1)
    reply = local_round(LINEAR, make_shard(data), task(assignment=SingleCluster()), broadcast(clusters))
    slow = slow_round(data, clusters, 2, "uniform")
    np.testing.assert_allclose(reply.slotted["clusters"].arrays["change/weight"].numpy(), slow["weight"], **NEAR)
    np.testing.assert_allclose(reply.sums["loss"].numpy(), slow["loss"], **NEAR)


def test_the_loss_of_mini_batches_is_computed_before_each_step():
    """One client, all its samples in every batch: the mean of the losses before the two steps of a plain loop."""
    ((x, y),) = data = regression_data([4], D)
    clusters = random_clusters(1)
    reply = local_round(LINEAR, make_shard(data), task(MiniBatch(batch_size=4, steps=2)), broadcast(clusters))
    w, b, losses = clusters.params["weight"][0].numpy(), float(clusters.params["bias"][0]), []
    for _ in range(2):
        gap = x @ w + b - y
        losses.append((gap**2).mean() / 2)
        w, b = w - 0.1 * x.T @ gap / 4, b - 0.1 * gap.mean()
    assert float(reply.sums["loss"]) == pytest.approx(4 * np.mean(losses), rel=1e-9)


@pytest.mark.parametrize(("K", "work", "scored"), [(1, BATCHES, 0), (1, TWO_STEPS, 6), (2, TWO_STEPS, 6)])
def test_losses_are_computed_only_if_needed(K, work, scored, monkeypatch):
    counted: list[int] = []
    real = type(LINEAR).score
    monkeypatch.setattr(
        type(LINEAR), "score", lambda self, m, block: (counted.append(len(block.positions)), real(self, m, block))[1]
    )
    local_round(LINEAR, make_shard(regression_data(SIZES, D)), task(work), broadcast(random_clusters(K)))
    assert sum(counted) == scored


def test_a_chosen_and_an_assigned_cluster_have_the_same_loss():
    shard, sent, work = (
        make_shard(regression_data(SIZES, D)),
        broadcast(random_clusters(1)),
        BATCHES,
    )
    chosen = local_round(LINEAR, shard, task(work), sent)
    given = local_round(LINEAR, shard, task(work), broadcast(sent.clusters, [[0]] * len(SIZES)))
    assert_same(chosen, given)


def test_the_reply_lists_the_computation_paths(monkeypatch):
    monkeypatch.setattr(blocks, "PADDING_BYTES", 0)  # a block for every size
    shard = make_shard(regression_data(SIZES, D))
    reply = local_round(LINEAR, shard, task(), broadcast(random_clusters()))
    assert reply.paths == ("closed-form", "closed-form-flat")  # n > p needs the changes, n <= p does not
    assert local_round(LINEAR, shard, task(BATCHES), broadcast(random_clusters())).paths == ("autograd",)
    parts = [local_round(LINEAR, shard.take(np.array([i])), task(), broadcast(random_clusters())) for i in range(6)]
    assert merge(parts).paths == reply.paths
    assert decode_reply(encode_reply(reply)).paths == reply.paths
    assert replace(reply, paths=()).nbytes == reply.nbytes  # a note, no part of the message


def test_a_client_trains_its_assigned_model():
    data, clusters = regression_data([5, 5, 5], D), random_clusters(3)
    shard, slots = make_shard(data), [2, 0, 2]
    sent = broadcast(clusters, [[s] for s in slots])
    reply = local_round(LINEAR, shard, task(), sent.to(np.arange(3)))
    assert reply.rows["cluster"].flatten().tolist() == slots
    assert reply.slotted["clusters"].slots.tolist() == [0, 2]
    assert reply.slotted["clusters"].counts.tolist() == [1, 2]
    w, b = clusters.params["weight"].numpy(), clusters.params["bias"].numpy()
    loss = sum(((x @ w[s] + b[s] - y) ** 2).sum() / 2 for (x, y), s in zip(data, slots, strict=True))
    assert float(reply.sums["loss"]) == pytest.approx(loss)


@pytest.mark.parametrize("work", [FullBatch(steps=2), BATCHES])
def test_clients_with_and_without_assigned_models_can_be_combined(work):
    data, clusters = regression_data(SIZES, D), random_clusters(3)
    shard = make_shard(data)
    free = local_round(LINEAR, shard, task(), broadcast(clusters)).rows["cluster"].flatten().tolist()
    assigned = [(k + 1) % 3 for k in free]  # other clusters than they would choose
    only = [[assigned[i] if i % 2 else ALL] for i in range(len(SIZES))]
    sent = broadcast(clusters, only)
    reply = local_round(LINEAR, shard, task(work), sent.to(np.arange(len(SIZES))))
    assert reply.rows["cluster"].flatten().tolist() == [assigned[i] if i % 2 else free[i] for i in range(len(SIZES))]
    assert_same(reply, cut_in_parts(LINEAR, shard, task(work), sent, len(SIZES)))


def test_assigned_clients_have_a_slot_in_each_restart():
    data, clusters = regression_data([5, 5], D), random_clusters(2, restarts=2)
    reply = local_round(LINEAR, make_shard(data), task(), broadcast(clusters, [[1, 2], [0, 3]]).to(np.arange(2)))
    assert reply.rows["cluster"].tolist() == [[1, 0], [0, 1]]
    assert reply.slotted["clusters"].slots.tolist() == [0, 1, 2, 3]


# ---- contributions that are not finite -----------------------------------------------------------------------


def spoiled(data: list[Samples], client: int) -> list[Samples]:
    return [(x * 1e200 if i == client else x, y) for i, (x, y) in enumerate(data)]


def test_a_client_whose_update_is_not_finite_is_rejected():
    reply = local_round(LINEAR, make_shard(spoiled(regression_data(SIZES, D), 1)), task(), broadcast(random_clusters()))
    assert reply.rejected == ("c1",)
    assert reply.clients == ("c0", "c2", "c3", "c4", "c5")
    assert len(reply.rows["cluster"]) == 5
    assert float(reply.sums["samples"]) == sum(SIZES) - 9


def test_a_rejected_client_leaves_the_changes_untouched():
    data, sent = regression_data(SIZES, D), broadcast(random_clusters())
    bad = local_round(LINEAR, make_shard(spoiled(data, 1)), task(), sent)
    others = make_shard(data).take(np.array([0, 2, 3, 4, 5]))
    good = local_round(LINEAR, others, task(), sent)
    for name, value in good.slotted["clusters"].arrays.items():
        torch.testing.assert_close(bad.slotted["clusters"].arrays[name], value, rtol=1e-12, atol=1e-14)
    assert torch.equal(bad.slotted["clusters"].counts, good.slotted["clusters"].counts)


def test_a_rejected_client_leaves_the_loss_untouched():
    data, sent = regression_data(SIZES, D), broadcast(random_clusters())
    bad = local_round(LINEAR, make_shard(spoiled(data, 1)), task(), sent)
    good = local_round(LINEAR, make_shard(data).take(np.array([0, 2, 3, 4, 5])), task(), sent)
    torch.testing.assert_close(bad.sums["loss"], good.sums["loss"], rtol=1e-12, atol=0)


def test_a_rejection_does_not_depend_on_the_cut():
    shard, sent = make_shard(spoiled(regression_data(SIZES, D), 1)), broadcast(random_clusters())
    whole = local_round(LINEAR, shard, task(), sent)
    assert_same(whole, cut_in_parts(LINEAR, shard, task(), sent, len(SIZES)))


def test_a_reply_without_accepted_clients_is_empty():
    data = [(x * 1e200, y) for x, y in regression_data([3, 4], D)]
    reply = local_round(LINEAR, make_shard(data), task(), broadcast(random_clusters()))
    assert (reply.clients, reply.rejected) == ((), ("c0", "c1"))
    assert len(reply.slotted["clusters"].slots) == 0


def test_a_failed_restart_is_never_the_best():
    clusters = random_clusters(1, restarts=2)
    clusters.params["weight"][1] *= 1e200
    reply = local_round(LINEAR, make_shard(regression_data([4, 4], D)), task(), broadcast(clusters))
    assert reply.clients == ("c0", "c1")
    assert reply.slotted["clusters"].slots.tolist() == [0]
    assert reply.sums["loss"].isfinite().tolist() == [True, False]


# ---- a shared body -------------------------------------------------------------------------------------------


def shared_clusters(learner, K: int, restarts: int) -> Clusters:
    start = learner.start(range(K * restarts), torch.float64)
    body = {n: p[::K].clone() for n, p in start.items() if n.startswith("layer0")}
    return Clusters({n: p for n, p in start.items() if n not in body}, K, restarts, body)


@pytest.mark.parametrize("restarts", [1, 2])
def test_the_change_of_the_body_is_summed_over_all_clusters(restarts):
    learner = make_learner("mlp:hidden=4", Profile((D,), 2))
    data = class_data([4, 8, 4, 5, 8], (D,), 2)
    clusters = shared_clusters(learner, 3, restarts)
    reply = local_round(learner, make_shard(data), task(weight="samples"), broadcast(clusters))
    chosen = reply.rows["cluster"]
    total = {n: torch.zeros_like(p) for n, p in clusters.shared.items()}
    for i, one in enumerate(data):
        for restart in range(restarts):
            slot = torch.tensor([[restart * 3 + int(chosen[i, restart])]])
            change = learner.descend(clusters.at(slot), make_block([one], [f"c{i}"]), FullBatch(steps=2), 0.1)
            for name in total:
                total[name][restart] += len(one[1]) * change[name][0, 0]
    body = reply.slotted["body"]
    assert body.slots.tolist() == list(range(restarts))
    assert body.counts.tolist() == [5] * restarts
    for name, value in total.items():
        torch.testing.assert_close(body.arrays[f"change/{name}"], value, rtol=1e-9, atol=1e-12)
    assert "change/layer0.weight" not in reply.slotted["clusters"].arrays


# ---- privacy -------------------------------------------------------------------------------------------------


def shapes(reply: Reply) -> dict[str, tuple[int, ...]]:
    found = {f"sum {n}": tuple(v.shape) for n, v in reply.sums.items()}
    found |= {f"row {n}": tuple(v.shape) for n, v in reply.rows.items()}
    for name, slotted in reply.slotted.items():
        found |= {f"{name} {n}": tuple(v.shape) for n, v in slotted.arrays.items()}
    return found


def test_no_shape_in_a_reply_depends_on_the_number_of_samples():
    sent = broadcast(random_clusters(1))
    few = local_round(LINEAR, make_shard(regression_data([2, 3], D)), task(), sent)
    many = local_round(LINEAR, make_shard(regression_data([31, 57], D)), task(), sent)
    assert shapes(few) == shapes(many)
    assert shapes(few) == {
        "sum loss": (1,),
        "sum samples": (),
        "row cluster": (2, 1),
        "clusters change/weight": (1, D),
        "clusters change/bias": (1,),
        "clusters mass": (1,),
    }


def test_an_unknown_task_is_refused_by_name():
    with pytest.raises(ConfigError, match="unknown client task 'local-rund': did you mean 'local-round'"):
        from_plain(Task, {"name": "local-rund"})
