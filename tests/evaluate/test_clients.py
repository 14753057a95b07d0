"""Figures that clients compute themselves, asked for through a federation."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coterie.client.group import ClientGroup
from coterie.core.clusters import Clusters
from coterie.core.dataset import Profile
from coterie.engines.in_shards import InShards
from coterie.engines.sequential import Sequential
from coterie.engines.simulated import Simulated
from coterie.errors import TrainingError
from coterie.evaluate.clients import scores, training_losses
from coterie.learners import make_learner
from tests.core.make import make_shard

LINE = make_learner("linear", Profile((1,), None))
ONES = np.ones((2, 1))
# every client has x = 1, 1; the models predict 0, 1 and 5
DATA = [(ONES, np.array([0.0, 0.0])), (ONES, np.array([1.0, 3.0])), (ONES, np.array([4.0, 6.0]))]
MODELS = Clusters({"weight": torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64)}, 3)
ENGINES = [Simulated, Sequential, lambda side, **kw: InShards(side, shards=2, **kw)]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_scores_by_hand(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None))
    found = scores(federation, MODELS, torch.tensor([0, 1, 2]), 0, regression=True)
    # mean squared errors 0, (0 + 4) / 2 = 2, (1 + 1) / 2 = 1
    assert found.score.tolist() == pytest.approx([0, 2**0.5, 1])
    assert found.loss.tolist() == [0, 1, 0.5]
    assert found.positions.tolist() == [0, 1, 2]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_only_clients_with_a_cluster_are_asked(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None))
    found = scores(federation, MODELS, torch.tensor([-1, 1, 2]), 0, regression=True)
    assert found.positions.tolist() == [1, 2]
    assert found.loss.tolist() == [1, 0.5]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_training_losses_by_hand(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None))
    positions, table = training_losses(federation, MODELS, None, 0)
    assert positions.tolist() == [0, 1, 2]
    assert table.tolist() == [[0, 0.5, 12.5], [2.5, 1, 5], [13, 8.5, 0.5]]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_training_losses_of_given_groups_are_the_own_ones(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None))
    _, table = training_losses(federation, MODELS, torch.tensor([1, 1, 2]), 0)
    assert table.tolist() == [[0.5], [1], [0.5]]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_clients_that_do_not_answer_have_no_row(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None), missing={3: ["c1"]})
    found = scores(federation, MODELS, torch.tensor([0, 1, 2]), 3, regression=True)
    assert found.positions.tolist() == [0, 2]
    assert training_losses(federation, MODELS, None, 3)[0].tolist() == [0, 2]


@pytest.mark.parametrize("engine", ENGINES, ids=["simulated", "sequential", "two-shards"])
def test_silence_of_all_clients_is_an_error_in_words(engine):
    federation = engine(ClientGroup(LINE, make_shard(DATA), None), missing={3: ["c0", "c1", "c2"]})
    with pytest.raises(TrainingError):
        scores(federation, MODELS, torch.tensor([0, 1, 2]), 3, regression=True)
    with pytest.raises(TrainingError):
        training_losses(federation, MODELS, None, 3)
