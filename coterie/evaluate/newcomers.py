"""Scores of newcomers: clients that did not train, one for each true group, with a few labelled samples.

A newcomer is assigned by its support samples, see `placing`, and evaluated on its query samples, as Guo, Tang, Lin 2023
measure generalisation. The classes of the support samples are balanced.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.dataset import Newcomers
from coterie.core.shard import Shard
from coterie.evaluate.clients import Floats
from coterie.evaluate.placing import Density, Tree, mixed, sample_losses, weigh
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.tiers.assignment.base import Placing


def newcomer_scores(
    learner: Learner,
    models: Sequence[Params],
    newcomers: Newcomers,
    placing: Placing,
    usual: float,
    density: Density | None = None,
    tree: Tree | None = None,
) -> Floats:
    """Return the score of each newcomer on its query samples, (newcomers,): accuracy, or mean squared error.

    Args:
        learner: The learner.
        models: The models of the clusters.
        newcomers: Support and query samples of the newcomers.
        placing: How the method assigns newcomers.
        usual: Mean training loss, as `weigh` needs it.
        density: The joint density, for mixtures that model features as well.
        tree: The tree of splits, if newcomers descend it.
    """
    some = next(iter(models[0].values()))
    scores = []
    for (x, y), query in zip(_each(newcomers.support), _each(newcomers.query), strict=True):
        losses = sample_losses(learner, models, x, y)
        if tree is not None:
            weights = tree.weigh(learner, models, x, y)
        elif density is None:
            weights = weigh(learner, losses, placing, usual)
        else:
            own = density.weigh(learner, x.to(some), deviance(learner, losses, losses.new_full((1,), usual)))
            weights = density.shares(learner, query[0].to(some), own, len(models))
        scores.append(_score(learner, models, weights, *query))
    return np.array(scores)


def scores_of_own(learner: Learner, models: Sequence[Params], newcomers: Newcomers, groups: np.ndarray) -> Floats:
    """Return the score of each model on the query samples of its group, (K,), for clients with local models."""
    queries, one = list(_each(newcomers.query)), torch.ones(1, dtype=torch.float64)
    return np.array([_score(learner, [model], one, *queries[g]) for model, g in zip(models, groups, strict=True)])


def _each(shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
    return ((shard.x[a:b], shard.y[a:b]) for a, b in zip(shard.starts, shard.stops, strict=True))


def _score(learner: Learner, models: Sequence[Params], weights: Tensor, x: Tensor, y: Tensor) -> float:
    """Return the score of the mixture of all models with `weights`, (K,) or (n, K)."""
    outputs = mixed(learner, models, weights, x)
    hit = (outputs - y) ** 2 if learner.classes is None else (outputs.argmax(dim=-1) == y).double()
    return float(hit.double().mean())
