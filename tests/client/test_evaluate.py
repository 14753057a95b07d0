"""Scores and losses of clients by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.client.tasks import Evaluate, Score
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.core.messages import Broadcast, Reply
from coterie.learners import make_learner
from coterie.learners.cnn import SmallCNN
from tests.core.make import class_data, make_shard, regression_data

LINE = make_learner("linear", Profile((1,), None))


def line_models(*slopes: float) -> Clusters:
    return Clusters({"weight": torch.tensor(slopes, dtype=torch.float64)[:, None]}, len(slopes))


def measured(data: list, slopes: list[float], own: list[int]) -> Reply:
    shard = make_shard([(np.array(x, float)[:, None], np.array(y, float)) for x, y in data])
    return Evaluate().run(ClientGroup(LINE, shard), Broadcast(0, line_models(*slopes), each={"own": torch.tensor(own)}))


def test_mean_squared_error_and_loss_by_hand():
    # slope 2: predictions 2, 4; errors 1 and -1 and so mse 1, loss 1/2. Slope 0: errors -3, -1, -2: mse 14/3
    reply = measured([([1, 2], [1, 5]), ([1, 1, 1], [3, 1, 2])], [0, 2], [1, 0])
    assert reply.rows["score"].tolist() == pytest.approx([1, 14 / 3])
    assert reply.rows["loss"].tolist() == pytest.approx([0.5, 7 / 3])
    assert reply.clients == ("c0", "c1")


def test_accuracy_by_hand():
    learner = make_learner("logistic:bias=false", Profile((1,), 2))
    models = Clusters({"weight": torch.tensor([[1.0], [-1.0]], dtype=torch.float64)}, 2)
    # model 0 predicts 1 for x > 0: correct for 1, 2 and -1, wrong for -3 -> 3/4; model 1 predicts the opposite: 1/4
    one = (np.array([[1.0], [2.0], [-1.0], [-3.0]]), np.array([1, 1, 0, 1]))
    sent = Broadcast(0, models, each={"own": torch.tensor([0, 1])})
    reply = Evaluate().run(ClientGroup(learner, make_shard([one, one])), sent)
    assert reply.rows["score"].tolist() == [0.75, 0.25]
    expected = np.log1p(np.exp(-np.array([1.0, 2.0, 1.0, -3.0]))).mean()
    assert reply.rows["loss"][0].item() == pytest.approx(expected)
    assert set(reply.rows) == {"score", "loss"}


def test_clients_that_share_test_set_and_cluster_get_equal_rows():
    learner = make_learner("logistic", Profile((2,), 3))
    base = make_shard(class_data([6, 6, 6, 6], (2,), 3))
    shared = replace(base, starts=np.array([0, 6, 0, 0]), stops=np.array([6, 12, 6, 6]))
    models = Clusters(learner.start([1, 2], torch.float64), 2)
    own = torch.tensor([1, 1, 1, 0])
    reply = Evaluate().run(ClientGroup(learner, shared), Broadcast(0, models, each={"own": own}))
    for name, rows in reply.rows.items():
        assert torch.equal(rows[0], rows[2]), name
        for i in range(4):  # each equals the client evaluated alone
            alone = Evaluate().run(
                ClientGroup(learner, shared.take(np.array([i]))), Broadcast(0, models, each={"own": own[i : i + 1]})
            )
            torch.testing.assert_close(rows[i], alone.rows[name][0])
    assert not torch.equal(reply.rows["loss"][0], reply.rows["loss"][1])
    assert not torch.equal(reply.rows["loss"][0], reply.rows["loss"][3])


def test_training_losses_under_every_model_by_hand():
    shard = make_shard([(np.array([[1.0], [2.0]]), np.array([1.0, 5.0])), (np.array([[1.0]]), np.array([0.0]))])
    reply = Score().run(ClientGroup(LINE, shard), Broadcast(0, line_models(0, 2)))
    assert reply.rows["losses"].tolist() == [[6.5, 0.5], [0, 2]]


@pytest.mark.parametrize("parts", [1, 2, 3])
def test_a_client_with_an_assigned_model_reports_only_its_training_loss(parts):
    data = [(np.array([[1.0], [2.0]]), np.array([1.0, 5.0]))] * 3
    sent = Broadcast(0, line_models(0, 2, 3), only=torch.tensor([[1], [0], [1]]))
    shard = make_shard(data)
    for places in np.array_split(np.arange(3), parts):
        rows = Score().run(ClientGroup(LINE, shard.take(places)), sent.to(places)).rows["losses"]
        assert rows.tolist() == [[[0.5], [6.5], [0.5]][i] for i in places]


def test_held_out_samples_are_used_where_there_are_any():
    train = make_shard([(np.array([[1.0]]), np.array([1.0]))])
    test = make_shard([(np.array([[1.0]]), np.array([4.0]))])
    sent = Broadcast(0, line_models(1), each={"own": torch.tensor([0])})
    assert Evaluate().run(ClientGroup(LINE, train, None), sent).rows["score"].tolist() == [0]
    assert Evaluate().run(ClientGroup(LINE, train, test), sent).rows["score"].tolist() == [9]


def test_taking_clients_takes_training_and_test_together():
    train, test = make_shard(regression_data([2, 3, 4], 1)), make_shard(regression_data([5, 6, 7], 1))
    part = ClientGroup(LINE, train, test).take(np.array([2, 0]))
    assert part.train.sizes.tolist() == [4, 2]
    assert part.test is not None
    assert part.test.sizes.tolist() == [7, 5]


def test_evaluation_never_returns_a_sample_axis():
    few = measured([([1, 2], [1, 5])], [0, 2], [1])
    many = measured([(list(range(20)), list(range(20)))], [0, 2], [1])
    assert {n: v.shape for n, v in few.rows.items()} == {n: v.shape for n, v in many.rows.items()}
    assert few.sums == {}


def test_one_pass_of_the_own_model_gives_score_and_loss(monkeypatch):
    learner = make_learner(lambda: SmallCNN(1, 4, 4, 1, 2, 3), Profile((4, 4), 3))
    models = Clusters(learner.start([1, 2, 3], torch.float64), 3)
    seen: list[int] = []
    real = SmallCNN.forward
    monkeypatch.setattr(SmallCNN, "forward", lambda self, x: (seen.append(len(x)), real(self, x))[1])
    sent = Broadcast(0, models, each={"own": torch.tensor([1])})
    Evaluate().run(ClientGroup(learner, make_shard(class_data([5], (4, 4), 3))), sent)
    assert seen == [5]
