"""The scores of the clients' own models on samples that they hold out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.predictors import Predictor
from coterie.client.scoring import blocks_of, models_held, score_and_loss
from coterie.core.blocks import Block
from coterie.core.expected import Expected, RunFacts, Spec, Specs
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Positions, Shard
from coterie.core.task import Task

CERTAIN = 99.0
"""The margin reported when every sample prefers the same model by the same amount."""


@register("evaluate")
@dataclass(frozen=True)
class Evaluate(Task):
    """Rows for each client, of its own model (`own` in the broadcast) on its held-out samples.

    `score`: accuracy, or mean squared error for a regression. `loss`: mean loss.
    """

    margin: bool = False
    """Whether to send `losses` under every model, and `margin`: by how many standard errors the own model beats the
    next best."""
    on: Literal["test", "validation"] = "test"
    """Samples to evaluate on; clients without test samples use validation samples, or else training samples."""
    predictor: Predictor | None = None
    """How clients predict with what they keep; None: with the model of their cluster."""
    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        learner, shard, own = clients.learner, clients.evaluated(self.on), broadcast.each["own"]
        if self.predictor is None:
            first, back = _distinct(shard, own)
        else:
            predict = self.predictor.client_outputs(learner, shard, broadcast, clients.states)
            first, back = np.arange(len(shard)), torch.arange(len(shard))
        part, own = shard.take(first), own[torch.from_numpy(first)]
        columns = {
            name: torch.zeros(len(part), *shape, dtype=torch.float64)
            for name, shape in self._columns(broadcast).items()
        }
        for block in blocks_of(part, broadcast):
            places = torch.from_numpy(block.positions)
            mine = own[places]
            plain = self.predictor is None
            outputs = learner.outputs(broadcast.clusters.at(mine), block.x) if plain else predict(block)
            values = score_and_loss(learner, outputs, block)
            if self.margin:
                each = learner.score(broadcast.clusters.all_models(), block).losses.double()
                values |= {"losses": block.mean(each), "margin": _margin(each, mine, block)}
            for name, value in values.items():
                columns[name][places] = value.double().cpu()
        return Reply(clients=shard.ids, rows={name: value[back] for name, value in columns.items()})

    def _columns(self, broadcast: Broadcast) -> dict[str, tuple[int, ...]]:
        """Return the shape of each row."""
        shapes: dict[str, tuple[int, ...]] = {"score": (), "loss": ()}
        if self.margin:
            shapes |= {"margin": (), "losses": (models_held(broadcast),)}
        return shapes

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        rows = expected_scores(run)
        if self.margin:
            losses = Spec((models_held(broadcast),), low=-1e-3, missing="shared")
            # infinite for all where there is one model
            rows = {**rows, "losses": losses, "margin": Spec((), low=-CERTAIN, missing="shared")}
        return Expected(rows=rows)


def expected_scores(run: RunFacts) -> Specs:
    """Return the form of a client's score and loss."""
    most = math.inf if run.classes is None else 1.0
    return {
        "score": Spec((), low=0, high=most, missing="shared"),
        "loss": Spec((), low=-1e-3, missing="shared"),
    }


def _distinct(shard: Shard, own: Tensor) -> tuple[Positions, Tensor]:
    """Return one client for each pair of test set and model, and the place of every client's pair among them."""
    triples = np.stack([shard.starts, shard.stops, own.numpy()], axis=1)
    _, first, back = np.unique(triples, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), torch.from_numpy(back.reshape(-1))


def _margin(each: Tensor, own: Tensor, block: Block) -> Tensor:
    """Return the least ratio of mean and standard error of the paired differences to other models, (B,).

    each: loss of every sample under every model, (B, n, K); own (B,): the client's own model.
    """
    mine = own.to(each.device)[:, None, None].expand(-1, each.shape[1], 1)
    gap = each - each.gather(2, mine)
    mean = block.mean(gap)
    counts = block.sizes.double()[:, None]
    variance = block.mean((gap - mean[:, None]) ** 2) * counts / (counts - 1).clamp_min(1)
    error = (variance / counts).sqrt()
    ratio = torch.where(error > 0, mean / error, torch.sign(mean) * CERTAIN).clamp(-CERTAIN, CERTAIN)
    ratio = torch.where((block.sizes > 1)[:, None], ratio, 0.0)  # one sample does not show any spread
    return ratio.scatter(1, own.to(each.device)[:, None], torch.inf).amin(dim=1)
