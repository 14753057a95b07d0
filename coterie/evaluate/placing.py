"""Choice of models for a client that did not train, and predictions by several models together.

With hard clusters, a client is served by the model with the lowest loss on a few labelled samples (the support), or by
a leaf of the tree of splits (`Tree`). With mixtures, it is served by all models, with weights that EM finds on the
support for fixed models. The objective `ratio` then assumes that classes are equally frequent in every cluster; if the
classes of the support are not balanced, the weights follow them in part. Mixtures that also model features (`Density`)
need no labels, and weigh the models for each sample.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, flat, unflat
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.learners.local_training import LocalTraining
from coterie.tiers.assignment import EMMixture
from coterie.tiers.assignment.base import Placing
from coterie.tiers.objective import Objective

ITERATIONS = 20
"""Number of steps of EM from equal weights, after which the weights of a newcomer have converged."""
CHUNK = 1000
"""Number of samples that a model predicts at once."""


def sample_losses(learner: Learner, models: Sequence[Params], x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of every model on every sample, (K, n), in float64."""
    return _through(learner, models, x, lambda outputs, rows: learner.loss(outputs, y[rows][None].to(outputs.device)))


def weigh(learner: Learner, losses: Tensor, placing: Placing, usual: float) -> Tensor:
    """Return the weights (K,) of the models for a client with these losses (K, n) on its support; they sum to one.

    usual: the mean training loss, from which a Gaussian's variance is taken where targets are numbers.
    """
    if placing == "least-loss":
        best = losses.mean(dim=1).nan_to_num(nan=torch.inf).argmin()
        return torch.nn.functional.one_hot(best, len(losses)).to(losses)
    cost = deviance(learner, losses.T, losses.new_full((len(losses),), usual))[None, :, None]
    return _by_em(cost, losses.new_full((len(losses),), 1 / len(losses)))


@dataclass(frozen=True)
class Density:
    """Density of the features in a mixture, which assigns samples without labels."""

    objective: Objective
    common: Params
    """Arrays of the objective that all clients received, of one restart."""
    usual: Tensor
    """Mean weights of the components over clients, from which EM starts, (P,)."""

    def weigh(self, learner: Learner, x: Tensor, cost: Tensor) -> Tensor:
        """Return the weights (P,) of a client by EM; cost: -log p_k(y|x) of its samples x, (K, n), 0 without labels."""
        block = _one_client(x)
        seen = self.objective.client_see(learner, block)
        full = self.objective.client_cost(cost.T[None, :, None], block, seen, self.common)
        return _by_em(full, self.usual)

    def shares(self, learner: Learner, x: Tensor, weights: Tensor, K: int) -> Tensor:
        """Return the weights (n, K) of the clusters for the samples x of a client with these weights (P,)."""
        seen = self.objective.client_see(learner, _one_client(x))
        return self.objective.client_prior(weights[None], seen, self.common, K)[0].double().cpu()


@dataclass(frozen=True)
class Tree:
    """Tree of the splits of a run, by which a new client is placed with its own updates of the split models (CFL)."""

    splits: Params
    """Arrays as in `core/tree.py`; empty without a split."""
    work: LocalTraining
    """Local training of a round."""
    lr: float

    def weigh(self, learner: Learner, models: Sequence[Params], x: Tensor, y: Tensor) -> Tensor:
        """Return weights (K,) of 1 for one model: from the first cluster always to the part with the larger cosine."""
        own = 0
        for row, cluster in enumerate(self.splits.get("cluster", torch.zeros(0)).tolist()):
            if cluster == own:
                update = self._update(learner, models[0], self.splits["model"][row], x, y)
                parts = torch.nn.functional.normalize(self.splits["updates"][row].double(), dim=1)
                first, second = (parts @ update).tolist()
                own = int(self.splits["second"][row]) if second > first else own
        return torch.nn.functional.one_hot(torch.tensor(own), len(models)).double()

    def _update(self, learner: Learner, like: Params, model: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Return the change (P,) of this model (P,) by the local steps of a round."""
        some = next(iter(like.values()))
        theta = unflat(model[None].to(some), {name: p[None] for name, p in like.items()})
        block = _one_client(x.to(some), y.to(some.device))
        change = learner.descend({name: p[:, None] for name, p in theta.items()}, block, self.work, self.lr)
        return flat({name: p[:, 0] for name, p in change.items()})[0].double().cpu()


def _one_client(x: Tensor, y: Tensor | None = None) -> Block:
    """Return the samples of one client, labelled or not, as a block."""
    labels = torch.zeros(1, len(x), dtype=torch.int64) if y is None else y[None]
    return Block(np.arange(1), x[None], labels, torch.tensor([len(x)]), None, np.zeros(1, dtype=np.uint64))


def _by_em(cost: Tensor, weights: Tensor) -> Tensor:
    """Return weights (P,) from costs (1, n, 1, P), by EM from `weights` (P,)."""
    for _ in range(ITERATIONS):
        weights = EMMixture().client_respond(cost, weights.to(cost)[None, None, None])[0].mean(dim=(0, 1, 2))
    return weights


def mixed(learner: Learner, models: Sequence[Params], weights: Tensor, x: Tensor) -> Tensor:
    """Return the predictions by `weights`, (K,) or (n, K): probabilities (n, C) or numbers (n,), in float64."""
    used = weights.reshape(-1, len(models)).amax(dim=0).nonzero().flatten().tolist()  # of many models mostly one
    outputs = _through(learner, [models[k] for k in used], x, lambda outputs, rows: _probable(learner, outputs))
    share = weights.reshape(-1, len(models))[:, used].T.to(outputs)  # (used, n or 1)
    return (outputs * share.reshape(*share.shape, *(1,) * (outputs.dim() - 2))).sum(dim=0)


def _probable(learner: Learner, outputs: Tensor) -> Tensor:
    return outputs if learner.classes is None else torch.softmax(outputs.double(), dim=-1)


def _through(learner: Learner, models: Sequence[Params], x: Tensor, read: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Return `read` of the outputs (1, rows, ...) of every model, for all samples, (K, n, ...)."""
    some = next(iter(models[0].values()))
    whole = [{name: p[None] for name, p in model.items()} for model in models]
    parts = []
    with torch.no_grad():
        for first in range(0, len(x), CHUNK):
            rows = slice(first, first + CHUNK)
            here = x[rows][None].to(some)
            parts.append(torch.cat([read(learner.outputs(model, here), rows) for model in whole]).double().cpu())
    return torch.cat(parts, dim=1)
