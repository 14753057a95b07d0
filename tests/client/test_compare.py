"""The task `Compare` by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.client.tasks import Compare
from coterie.client.tasks import compare as module
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import Broadcast, Reply
from coterie.learners import make_learner
from tests.core.make import class_data, make_shard, regression_data

LINE = make_learner("linear", Profile((1,), None))


def shard(*pairs: tuple[list[float], list[float]]):
    return make_shard([(np.array(x, float)[:, None], np.array(y, float)) for x, y in pairs])


def compared(train, test, slopes: list[float], own: list[int]) -> Reply:
    models = Clusters({"weight": torch.tensor(slopes, dtype=torch.float64)[:, None]}, len(slopes))
    return Compare().run(ClientGroup(LINE, train, test), Broadcast(0, models, each={"own": torch.tensor(own)}))


def test_losses_by_hand():
    # training x = 1, 2, y = 1, 5. Slope 0: (1 + 25) / 4 = 6.5; slope 2: errors 1, -1: 0.5
    # held out x = 1, 1, 1, y = 0, 2, 4. Slope 0: losses 0, 2, 8; slope 2: 2, 0, 2. Every other one: 4 and 2
    reply = compared(shard(([1, 2], [1, 5])), shard(([1, 1, 1], [0, 2, 4])), [0, 2], [1])
    assert reply.rows["training_losses"].tolist() == [[6.5, 0.5]]
    assert reply.rows["losses"].tolist() == pytest.approx(np.array([[10 / 3, 4 / 3]]))
    assert reply.rows["half_losses"].tolist() == [[4, 2]]
    assert reply.rows["held_out"].tolist() == [3]


def test_products_of_scores_by_hand():
    # own slope 0, x = 1, 2, y = 1, 5: gradients -1 and -5, features (1, 1) and (2, 1), scores (-1, -1) and (-10, -5)
    # product of the two scores 15, twice: 30; variance 2 * (15^2 + 15^2) = 900; squares 2 + 125; sum (-11, -6)
    reply = compared(shard(([1, 2], [1, 5])), None, [0, 2], [0])
    assert reply.rows["pairs"].tolist() == [30]
    assert reply.rows["pairs_variance"].tolist() == [900]
    assert reply.rows["spread"].tolist() == [127]
    assert reply.slotted["clusters"].slots.tolist() == [0]
    assert reply.slotted["clusters"].arrays["score"].tolist() == [[-11, -6]]
    assert reply.rows["held_out"].tolist() == [0]
    assert reply.rows["losses"].tolist() == [[0, 0]]


def test_scores_are_added_over_the_clients_of_each_cluster():
    data = shard(([1], [1]), ([1], [2]), ([1], [4]))
    reply = compared(data, None, [0, 1], [1, 0, 1])
    # slope 0 on y = 2: gradient -2; slope 1 on y = 1 and 4: gradients 0 and -3; features (1, 1)
    assert reply.slotted["clusters"].arrays["score"].tolist() == [[-2, -2], [-3, -3]]
    assert reply.slotted["clusters"].counts.tolist() == [1, 2]
    assert reply.rows["pairs"].tolist() == [0, 0, 0]  # one sample has no pair


@pytest.mark.parametrize("learner", ["linear", "logistic"])
def test_ragged_clients_equal_a_plain_loop(learner, monkeypatch):
    monkeypatch.setattr(module, "MOST_PRODUCTS", 300)  # a few clients at a time
    monkeypatch.setattr(module, "MOST_SAMPLES", 12)
    sizes, classes = [9, 10, 17, 1, 3], None if learner == "linear" else 3
    data = regression_data(sizes, 3) if classes is None else class_data(sizes, (3,), 3)
    model = make_learner(learner, Profile((3,), classes))
    clusters, own = Clusters(model.start(range(2), torch.float64), 2), torch.tensor([0, 1, 1, 0, 1])
    reply = Compare().run(ClientGroup(model, make_shard(data)), Broadcast(0, clusters, each={"own": own}))
    score = np.zeros((2, 4 * (classes or 1)))
    for i, (x, y) in enumerate(data):
        theta = {name: p[own[i]][None] for name, p in clusters.params.items()}
        outputs = model.outputs(theta, torch.tensor(x)[None])[0].numpy()[:12]
        if classes is None:
            gradient = (outputs - y[:12])[:, None]
        else:
            gradient = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True) - np.eye(3)[y[:12]]
        psi = np.einsum("nc,nd->ncd", gradient, np.c_[x[:12], np.ones(len(x[:12]))]).reshape(len(x[:12]), -1)
        off = [psi[j] @ psi[k] for j in range(len(psi)) for k in range(len(psi)) if j != k]
        assert reply.rows["pairs"][i].item() == pytest.approx(sum(off))
        assert reply.rows["pairs_variance"][i].item() == pytest.approx(2 * sum(value**2 for value in off))
        assert reply.rows["spread"][i].item() == pytest.approx((psi**2).sum())
        score[own[i]] += psi.sum(axis=0)
    np.testing.assert_allclose(reply.slotted["clusters"].arrays["score"].numpy(), score, atol=1e-12)


def test_shared_held_out_samples_are_evaluated_once_and_may_be_missing(monkeypatch):
    train = shard(([1], [1]), ([1], [2]), ([1], [3]))
    test = shard(([1, 1], [0, 2]), ([1], [9]), ([1], [9]))
    shared = replace(test, starts=np.array([0, 0, 2]), stops=np.array([2, 2, 2]))
    seen: list[int] = []
    real = type(LINE).score
    monkeypatch.setattr(
        type(LINE), "score", lambda self, m, block: (seen.append(len(block.y)), real(self, m, block))[1]
    )
    reply = compared(train, shared, [0, 2], [0, 1, 0])
    assert seen == [3, 1]
    assert reply.rows["held_out"].tolist() == [2, 2, 0]
    assert reply.rows["losses"].tolist() == [[1, 1], [1, 1], [0, 0]]


def test_many_features_are_averaged(monkeypatch):
    monkeypatch.setattr(module, "MOST_ENTRIES", 3)
    learner = make_learner("linear", Profile((4,), None))
    data = make_shard([(np.array([[1.0, 3.0, 5.0, 7.0]]), np.array([1.0]))])
    models = Clusters({"weight": torch.zeros(1, 4, dtype=torch.float64)}, 1)
    reply = Compare().run(ClientGroup(learner, data), Broadcast(0, models, each={"own": torch.tensor([0])}))
    assert reply.slotted["clusters"].arrays["score"].tolist() == [[-2, -6, -1]]  # gradient -1, means 2 and 6, constant


def test_validation_samples_are_held_out_samples_if_there_are_no_test_samples():
    train, aside = shard(([1], [1])), shard(([1], [4]))
    assert ClientGroup(LINE, train, None, aside).held_out is aside
    assert ClientGroup(LINE, train, train, aside).held_out is train
    assert ClientGroup(LINE, train).held_out is None
