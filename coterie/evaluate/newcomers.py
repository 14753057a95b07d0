"""How well the models serve somebody who did not train: one newcomer for each true group, with a few labelled samples.

A newcomer of a method with hard clusters takes the model of least loss on its support samples; one of a method with
soft weights estimates its weights there, by EM with the models as they are, and predicts by its mixture. (Guo, Tang,
Lin 2023 measure generalisation so; the classes of the support samples are balanced, so `ratio` needs no shares there.)
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.population import Newcomers
from coterie.core.shard import Shard
from coterie.evaluate.clients import Floats
from coterie.learners.base import Learner
from coterie.tiers.weights import SoftByEM

ITERATIONS = 20
"""Of EM, from equal weights; a newcomer's weights have settled by then."""
CHUNK = 1000
"""Samples that go through a model at once."""


def newcomer_scores(learner: Learner, models: Params, newcomers: Newcomers, soft: bool) -> Floats:
    """Accuracy, or mean squared error for numbers, of each newcomer on its query samples, (newcomers,)."""
    scores = []
    for support, query in zip(_each(newcomers.support), _each(newcomers.query), strict=True):
        losses = _through(learner, models, *support, of_loss=True)
        weights = _by_em(losses) if soft else torch.nn.functional.one_hot(losses.mean(dim=1).argmin(), len(losses))
        scores.append(_score(learner, models, weights.to(losses), *query))
    return np.array(scores)


def scores_of_own(learner: Learner, models: Params, newcomers: Newcomers, groups: np.ndarray) -> Floats:
    """Of each model alone on the query samples of its own group, (K,): for clients that trained alone."""
    queries = list(_each(newcomers.query))
    one = torch.ones(1, dtype=torch.float64)
    alone = ({name: p[k : k + 1] for name, p in models.items()} for k in range(len(groups)))
    return np.array([_score(learner, model, one, *queries[g]) for model, g in zip(alone, groups, strict=True)])


def _each(shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
    return ((shard.x[a:b], shard.y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True))


def _by_em(losses: Tensor) -> Tensor:
    """Weights (K,) from losses (K, n), by EM with the models as they are."""
    cost, weights = losses.T[None, :, None], losses.new_full((1, 1, len(losses)), 1 / len(losses))
    for _ in range(ITERATIONS):
        weights = SoftByEM().client_respond(cost, weights)[0].mean(dim=1)
    return weights[0, 0]


def _score(learner: Learner, models: Params, weights: Tensor, x: Tensor, y: Tensor) -> float:
    """All models together by `weights` (K,)."""
    said = _through(learner, models, x, y, of_loss=False)
    mixed = (weights.reshape(-1, *(1,) * (said.dim() - 1)) * said).sum(dim=0)
    hit = (mixed - y) ** 2 if learner.classes is None else (mixed.argmax(dim=-1) == y).double()
    return float(hit.double().mean())


def _through(learner: Learner, models: Params, x: Tensor, y: Tensor, of_loss: bool) -> Tensor:
    """Of every model on every sample, the loss (K, n), or what it says: probabilities (K, n, C) or numbers (K, n)."""
    some = next(iter(models.values()))
    parts = []
    for first in range(0, len(y), CHUNK):
        here, labels = x[first : first + CHUNK][None].to(some), y[first : first + CHUNK][None].to(some.device)
        columns = []
        for k in range(len(some)):
            outputs = learner.outputs({name: p[k : k + 1] for name, p in models.items()}, here)
            if of_loss:
                columns.append(learner.loss(outputs, labels)[0])
            else:
                columns.append(outputs[0] if learner.classes is None else torch.softmax(outputs[0], dim=-1))
        parts.append(torch.stack(columns).double().cpu())
    return torch.cat(parts, dim=1)
