"""Prediction by clients that keep a state: with a mixture of all models or with a personal model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.client.interfaces import Objective
from coterie.client.kept import kept_models, kept_weights, mixed_models
from coterie.core.blocks import Block
from coterie.core.client_state import ClientStates
from coterie.core.clusters import Params, take_rows
from coterie.core.messages import Broadcast
from coterie.core.registry import Registered, register
from coterie.core.shard import Shard
from coterie.learners.base import Learner

Outputs = Callable[[Block], Tensor]
"""Function that returns the outputs for all samples of a block, (B, n, ...)."""


class Predictor(Registered, ABC, family="predictor"):
    """Base class of prediction by clients that keep a state, in one restart."""

    @abstractmethod
    def client_outputs(
        self, learner: Learner, shard: Shard, broadcast: Broadcast, states: ClientStates | None
    ) -> Outputs:
        """Return the function that computes the outputs for blocks of a shard.

        Args:
            learner: Model family of the run.
            shard: Samples of the clients.
            broadcast: Message of the server.
            states: State of the clients.
        """


@register("personal-model")
@dataclass(frozen=True)
class PersonalModel(Predictor):
    """Prediction with a client's personal model; before its first round, with the mean of the clusters' models."""

    restart: int
    """Restart to which the models in the broadcast belong."""
    restarts: int
    """Number of restarts for which clients keep models."""

    def client_outputs(
        self, learner: Learner, shard: Shard, broadcast: Broadcast, states: ClientStates | None
    ) -> Outputs:
        count, K = len(shard), broadcast.clusters.K
        equal = mixed_models(broadcast.clusters, torch.full((count, 1, K), 1 / K))
        first = {name: p.expand(-1, self.restarts, *p.shape[2:]) for name, p in equal.items()}
        models = kept_models(states, np.arange(count), broadcast.each["accepted"], first)
        body = take_rows(broadcast.clusters.shared, torch.zeros(count, dtype=torch.int64))
        whole = {name: p[:, self.restart] for name, p in models.items()} | body
        return lambda block: learner.outputs({n: p[block.positions] for n, p in whole.items()}, block.x)


@register("mixture")
@dataclass(frozen=True)
class Mixture(Predictor):
    """Prediction with a mixture of all models, with the weights that the client keeps."""

    objective: Objective
    """Objective of the method."""
    restart: int
    """Restart to which the models in the broadcast belong."""
    restarts: int
    """Number of restarts for which clients keep weights."""

    def client_outputs(
        self, learner: Learner, shard: Shard, broadcast: Broadcast, states: ClientStates | None
    ) -> Outputs:
        K, positions = broadcast.clusters.K, np.arange(len(shard))
        shape = (self.restarts, self.objective.client_components(K))
        kept = kept_weights(states, positions, broadcast, shape)[:, self.restart]

        def outputs(block: Block) -> Tensor:
            z = self.objective.client_see(learner, block)
            share = self.objective.client_prior(kept[block.positions].to(block.x.device), z, broadcast.common, K)
            return _mixed(learner, broadcast.clusters.all_models(), block, share)

        return outputs


def _mixed(learner: Learner, models: Params, block: Block, share: Tensor) -> Tensor:
    """Return the logarithms of mixed probabilities, (B, n, C), or mixed predictions for regression, (B, n).

    Args:
        learner: Model family of the run.
        models: Parameters of the K models, {name: (K, ...)}.
        block: Samples of B clients.
        share: Weight of each model for each client, (B, K), or for each sample, (B, n, K).
    """
    total: Tensor | None = None
    share = share if share.dim() == 3 else share[:, None]
    for k in range(share.shape[2]):
        theta = {name: p[k : k + 1].expand(len(share), *p.shape[1:]) for name, p in models.items()}
        outputs = learner.outputs(theta, block.x)
        outputs = outputs if learner.classes is None else torch.softmax(outputs, dim=-1)
        part = share[..., k].to(outputs)
        weighted = outputs * (part if outputs.dim() == 2 else part[..., None])
        total = weighted if total is None else total + weighted
    assert total is not None
    return total if learner.classes is None else total.clamp_min(torch.finfo(total.dtype).tiny).log()
