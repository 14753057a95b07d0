"""Alternatives to clustering that a statistician would fit, from the side of a client.

All of them are generalised linear models with an intercept, on the features of the learner. What they have in common is
fitted by the server from sums; the intercept of a client from the client's own row; the model of a client alone by the
client, which keeps it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.shard import Shard
from coterie.learners.minimum import GeneralisedLinear, Glm, minimise

ROWS_FOR_EACH_COEFFICIENT = 3
"""Training rows that a client needs for each coefficient of a model of its own."""
OWN_PENALTY = 0.01
"""Weight of half the squared slopes in the mean log-loss of a model of a client alone, which may lack a class."""


def with_intercept(learner: GeneralisedLinear, block: Block) -> Glm:
    """Return the problem of a block's clients with the constant 1 as last feature, whatever the learner has."""
    problem = learner.glm(block)
    if not learner.bias:
        one = torch.ones_like(problem.phi[..., :1])
        one = one if problem.mask is None else torch.where(problem.mask[..., None], one, 0)
        problem = replace(problem, phi=torch.cat([problem.phi, one], dim=2))
    return replace(problem, penalty=torch.zeros_like(problem.phi[0, 0]), scale=1.0)


def own_models(learner: GeneralisedLinear, shard: Shard, pooled: Tensor) -> tuple[Tensor, Tensor]:
    """Return the model of each client alone, (m, p, q), and whether it has one, (m,).

    A client with too few rows, or whose likelihood has no maximum, has the pooled model instead.

    Args:
        learner: The learner.
        shard: Training samples of the clients.
        pooled: (p, q) the pooled model.
    """
    models = pooled.double().repeat(len(shard), 1, 1)
    has_own = torch.zeros(len(shard), dtype=torch.bool)
    enough = torch.from_numpy(shard.sizes) >= ROWS_FOR_EACH_COEFFICIENT * len(pooled)
    chosen = enough.nonzero().flatten()
    part = shard.take(chosen.numpy())
    for block in cut(part, part.hashes, 0):
        problem = with_intercept(learner, block)
        if problem.classes is not None:
            slopes = torch.full_like(problem.penalty, OWN_PENALTY)
            slopes[-1] = 0
            problem = replace(problem, penalty=slopes)
        solved = minimise(problem)
        theta = solved.theta.cpu()
        theta = theta if theta.shape[2] == pooled.shape[1] else theta[..., 1:] - theta[..., :1]
        rows = chosen[torch.from_numpy(block.positions)[solved.found.cpu()]]
        models[rows] = theta[solved.found.cpu()]
        has_own[rows] = True
    return models, has_own
