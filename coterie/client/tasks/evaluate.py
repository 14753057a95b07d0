"""Evaluation of each client's model on its test or validation samples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.predictors import Predictor
from coterie.client.scoring import blocks_of, score_and_loss
from coterie.core.expected import Expected, RunFacts, Spec, Specs
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Positions, Shard
from coterie.core.task import Task


@register("evaluate")
@dataclass(frozen=True)
class Evaluate(Task):
    """Evaluation of each client's model, whose cluster is `own` in the broadcast.

    Rows: `score`, the accuracy, or the mean squared error for regression; `loss`, the mean loss.
    """

    on: Literal["test", "validation"] = "test"
    """Samples for evaluation. Without test samples, validation samples are used; without these, training samples."""
    predictor: Predictor | None = None
    """Predictor of clients that keep a state; None: clients predict with the model of their cluster."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard, own = clients.learner, clients.evaluated(self.on), broadcast.each["own"]
        if self.predictor is None:
            first, back = _distinct(shard, own)
        else:
            predict = self.predictor.client_outputs(learner, shard, broadcast, clients.states)
            first, back = np.arange(len(shard)), torch.arange(len(shard))
        part, own = shard.take(first), own[torch.from_numpy(first)]
        columns = {name: torch.zeros(len(part), dtype=torch.float64) for name in ("score", "loss")}
        for block in blocks_of(part, broadcast):
            places = torch.from_numpy(block.positions)
            mine = own[places]
            plain = self.predictor is None
            outputs = learner.outputs(broadcast.clusters.at(mine), block.x) if plain else predict(block)
            values = score_and_loss(learner, outputs, block)
            for name, value in values.items():
                columns[name][places] = value.double().cpu()
        return Reply(clients=shard.ids, rows={name: value[back] for name, value in columns.items()})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        return Expected(rows=expected_scores(run))


def expected_scores(run: RunFacts) -> Specs:
    """Return the expected form of a client's score and loss."""
    most = math.inf if run.classes is None else 1.0
    return {
        "score": Spec((), low=0, high=most, missing="shared"),
        "loss": Spec((), low=-1e-3, missing="shared"),
    }


def _distinct(shard: Shard, own: Tensor) -> tuple[Positions, Tensor]:
    """Return one client for each distinct pair of test samples and model, and the index of each client's pair."""
    triples = np.stack([shard.starts, shard.stops, own.numpy()], axis=1)
    _, first, back = np.unique(triples, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), torch.from_numpy(back.reshape(-1))
