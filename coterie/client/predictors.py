"""How clients predict with what they keep: a mixture of all models, or a model of their own."""

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
"""The outputs of a block's clients on their samples, (B, n, ...)."""


class Predictor(Registered, ABC, family="predictor"):
    """How clients predict in one restart of a run."""

    @abstractmethod
    def client_outputs(
        self, learner: Learner, shard: Shard, broadcast: Broadcast, states: ClientStates | None
    ) -> Outputs:
        """Return the function that predicts for the blocks of a shard."""


@register("personal-model")
@dataclass(frozen=True)
class PersonalModel(Predictor):
    """A client predicts with its own model; before it has one, with the equal mixture of the clusters' models."""

    restart: int
    """The restart that the broadcast holds the models of."""
    restarts: int
    """Number of restarts that clients keep models for."""

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
    """A client predicts with all models, weighted by the weights that it keeps."""

    objective: Objective
    restart: int
    """The restart that the broadcast holds the models of."""
    restarts: int
    """Number of restarts that clients keep weights for."""

    def client_outputs(
        self, learner: Learner, shard: Shard, broadcast: Broadcast, states: ClientStates | None
    ) -> Outputs:
        K, everybody = broadcast.clusters.K, np.arange(len(shard))
        shape = (self.restarts, self.objective.client_components(K))
        kept = kept_weights(states, everybody, broadcast, shape)[:, self.restart]

        def outputs(block: Block) -> Tensor:
            z = self.objective.client_see(learner, block)
            share = self.objective.client_prior(kept[block.positions].to(block.x.device), z, broadcast.common, K)
            return _mixed(learner, broadcast.clusters.all_models(), block, share)

        return outputs


def _mixed(learner: Learner, models: Params, block: Block, share: Tensor) -> Tensor:
    """Return the log of mixed probabilities (B, n, C), or mixed predictions (B, n) for a regression.

    share: weight of each model for a client, (B, K), or for each of its samples, (B, n, K).
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
