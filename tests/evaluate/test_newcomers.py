"""Newcomers: by hand, for hard and for soft clusters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import coterie
from coterie.core.dataset import Newcomers, Profile
from coterie.evaluate.newcomers import newcomer_scores, scores_of_own
from coterie.learners.logistic import logistic
from tests.core.make import make_shard

LEARNER = logistic(Profile((1,), 2), bias=False)
# logit = weight * x: the first model says class 1 for positive x, the second for negative
MODELS = [{"weight": torch.tensor([w], dtype=torch.float64)} for w in (3.0, -3.0)]
X = np.array([[1.0], [-1.0], [2.0], [-2.0]])
UP, DOWN = np.array([1, 0, 1, 0]), np.array([0, 1, 0, 1])


def newcomers(*labels: tuple[np.ndarray, np.ndarray]) -> Newcomers:
    return Newcomers(make_shard([(X, s) for s, _ in labels]), make_shard([(X, q) for _, q in labels]))


def test_a_newcomer_takes_the_model_of_least_loss():
    # the second one's support is of the second model, its query samples half so: 2 of 4 right
    found = newcomer_scores(LEARNER, MODELS, newcomers((UP, UP), (DOWN, np.array([0, 1, 1, 0]))), "least-loss", 0.5)
    assert found.tolist() == [1.0, 0.5]


def test_a_soft_newcomer_predicts_by_its_mixture():
    # EM from equal weights: p = (s, 1 - s) for samples of the first kind with s = sigmoid(3 |x|), so the weights go to
    # the first model; the plain loop below is the same arithmetic
    x, y = X[:, 0], np.array([1, 0, 1, 1])  # the last label fits the second model
    p = np.stack([1 / (1 + np.exp(-(2 * y - 1) * 3 * x)), 1 / (1 + np.exp((2 * y - 1) * 3 * x))])
    w = np.array([0.5, 0.5])
    for _ in range(20):
        gamma = w[:, None] * p / (w[:, None] * p).sum(axis=0)
        w = gamma.mean(axis=1)
    mixed = w[0] / (1 + np.exp(-3 * x)) + w[1] / (1 + np.exp(3 * x))
    expected = ((mixed > 0.5) == UP).mean()
    found = newcomer_scores(LEARNER, MODELS, newcomers((y, UP)), "mixture", 0.5)
    assert w[0] == pytest.approx(0.75, abs=0.02)
    assert found.tolist() == [expected]


def test_models_of_single_clients_are_measured_on_their_own_group():
    assert scores_of_own(LEARNER, MODELS, newcomers((UP, UP), (DOWN, DOWN)), np.array([0, 1])).tolist() == [1.0, 1.0]
    assert scores_of_own(LEARNER, MODELS, newcomers((UP, UP), (DOWN, DOWN)), np.array([1, 0])).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("method", ["fedavg", "ifca", "fedem", "fedrc", "fesem", "local", "oracle"])
def test_a_run_measures_newcomers_in_every_round_and_at_the_end(method: str):
    data = coterie.scenario("diverse-shift", clients=6)
    result = (
        coterie.fit(data, method, rounds=2, restarts=1)
        if method in ("ifca", "fedem", "fedrc", "fesem")
        else (coterie.fit(data, method, rounds=2))
    )
    assert 0 <= result.metrics["newcomers"] <= 1
    if method != "local":
        last = result.records[-1]["newcomers"]
        assert result.metrics["best_newcomers"] == max(record["newcomers"] for record in result.records)
        assert method == "ifca" or result.metrics["newcomers"] == pytest.approx(last)
