"""Client side of classical statistical alternatives to clustering.

All of them are generalised linear models with an intercept on the features of the learner. The server fits common
coefficients from sums over clients, and the intercept of a client from a row of this client. Each client fits its local
model and does not send it.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.shard import Shard
from coterie.learners.minimum import GeneralisedLinear, Glm, minimise

ROWS_FOR_EACH_COEFFICIENT = 3
"""Minimum number of training samples for each coefficient of a local model."""
OWN_PENALTY = 0.01
"""Ridge penalty of local models: weight of half the squared slopes in the mean log-loss. A client may lack a class."""


def with_intercept(learner: GeneralisedLinear, block: Block) -> Glm:
    """Return the problem of a block's clients with the constant 1 as last feature, even if the learner has no bias."""
    problem = learner.glm(block)
    if not learner.bias:
        one = torch.ones_like(problem.phi[..., :1])
        one = one if problem.mask is None else torch.where(problem.mask[..., None], one, 0)
        problem = replace(problem, phi=torch.cat([problem.phi, one], dim=2))
    return replace(problem, penalty=torch.zeros_like(problem.phi[0, 0]), scale=1.0)


def own_models(learner: GeneralisedLinear, shard: Shard, pooled: Tensor) -> tuple[Tensor, Tensor]:
    """Fit a local model for each client.

    A client with too few samples, or whose likelihood has no maximum, has the pooled model instead.

    Args:
        learner: Learner that defines the features.
        shard: Training samples of the clients.
        pooled: Coefficients of the pooled model, (p, q).

    Returns:
        Coefficients of each client, (m, p, q), and whether they are those of a local model, (m,).
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
