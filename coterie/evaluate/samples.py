"""Agreement of the clusters of single samples with their true groups, for clients that mix several groups.

It is for simulations only, and is computed from the data itself. In a federation the responsibilities of samples stay
with the clients, since nothing with a sample axis is sent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.dataset import FederatedDataset
from coterie.core.shard import Positions, Shard, spans
from coterie.evaluate.clients import Floats
from coterie.evaluate.metrics import Ints, agreement
from coterie.evaluate.placing import sample_losses
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.tiers.assignment import EMMixture
from coterie.tiers.objective import Objective


def sample_agreement(data: FederatedDataset, positions: Positions, found: Ints) -> dict[str, float]:
    """Return how well the clusters of training samples agree with their true groups.

    Samples that were held out for validation count as well.

    Args:
        data: The data, with the true group of each sample.
        positions: Clients whose samples are counted.
        found: (N,) the cluster of each of their samples.

    Returns:
        `sample_ari`, the adjusted Rand index, and `sample_identity`, the share of samples in the right cluster under
        the best one-to-one matching.
    """
    assert data.sample_truth is not None
    agreed = agreement(data.sample_truth[rows_of(data.train, positions)], found)
    return {"sample_ari": agreed["ari"], "sample_identity": agreed["identity"]}


def by_client(shard: Shard, positions: Positions, own: Ints) -> Ints:
    """Return the cluster of each sample, (N,), with hard clusters: that of its client, `own` (answered,)."""
    return np.repeat(own, shard.sizes[positions])


def by_responsibility(
    learner: Learner,
    models: Sequence[Params],
    objective: Objective,
    common: Params,
    usual: float,
    shard: Shard,
    positions: Positions,
    weights: Floats,
) -> Ints:
    """Return the cluster of each sample, (N,), with mixtures: that of its largest responsibility gamma.

    Args:
        learner: The learner.
        models: The models of the clusters.
        objective: The objective of the mixture.
        common: Arrays that clients receive for the objective, of one restart.
        usual: Mean training loss, from which the variance of a Gaussian is taken where targets are numbers.
        shard: Training samples of all clients.
        positions: Clients whose samples are assigned.
        weights: (answered, P) the mixture weights of these clients.
    """
    rows = torch.from_numpy(rows_of(shard, positions))
    block = _each_a_client(shard, rows, next(iter(models[0].values())))
    losses = sample_losses(learner, models, shard.x[rows], shard.y[rows]).T  # (N, K)
    likely = deviance(learner, losses, losses.new_full((len(models),), usual))
    cost = objective.client_cost(likely[:, None, None], block, objective.client_see(learner, block), common)
    own = torch.from_numpy(np.repeat(weights, shard.sizes[positions], axis=0))[:, None, None]
    gamma: Tensor = objective.client_by_cluster(EMMixture().client_respond(cost, own)[0], len(models))
    return np.asarray(gamma[:, 0, 0].argmax(dim=1).numpy())


def _each_a_client(shard: Shard, rows: Tensor, like: Tensor) -> Block:
    """Return the samples as clients with one sample each; features have the shape of `like`."""
    one = torch.ones(len(rows), dtype=torch.int64)
    keys = np.zeros(len(rows), dtype=np.uint64)
    return Block(np.arange(len(rows)), shard.x[rows][:, None].to(like), shard.y[rows][:, None], one, None, keys)


def rows_of(shard: Shard, positions: Positions) -> Positions:
    """Return the rows of x of the clients at `positions`, client after client."""
    return spans(shard.starts[positions], shard.sizes[positions])
