"""Which models serve somebody who did not train, and what several models say together.

With hard clusters that is the model of least loss on a few labelled samples, the support. With mixtures it is all of
them, by weights that EM finds on the support while the models stay as they are. The objective `ratio` takes the classes
as equally frequent in every cluster then: where those of the support are not balanced, the weights follow them in part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.learners.base import Learner
from coterie.learners.deviance import deviance
from coterie.methods.base import Placing
from coterie.tiers.weights import SoftByEM

ITERATIONS = 20
"""Of EM, from equal weights; a newcomer's weights have settled by then."""
CHUNK = 1000
"""Samples that go through a model at once."""


def sample_losses(learner: Learner, models: Sequence[Params], x: Tensor, y: Tensor) -> Tensor:
    """The loss of every model on every sample, (K, n), in float64."""
    return _through(learner, models, x, lambda said, rows: learner.loss(said, y[rows][None].to(said.device)))


def weigh(learner: Learner, losses: Tensor, placing: Placing, usual: float) -> Tensor:
    """What each model counts (K,) for somebody with these losses (K, n) on its support; sums to one.

    usual: the mean training loss, from which a Gaussian's variance is taken where targets are numbers.
    """
    if placing == "least-loss":
        best = losses.mean(dim=1).nan_to_num(nan=torch.inf).argmin()
        return torch.nn.functional.one_hot(best, len(losses)).to(losses)
    cost = deviance(learner, losses.T, losses.new_full((len(losses),), usual))[None, :, None]
    weights = losses.new_full((1, 1, len(losses)), 1 / len(losses))
    for _ in range(ITERATIONS):
        weights = SoftByEM().client_respond(cost, weights)[0].mean(dim=1)
    return weights[0, 0]


def mixed(learner: Learner, models: Sequence[Params], weights: Tensor, x: Tensor) -> Tensor:
    """What the models say by `weights` (K,): probabilities (n, C) or numbers (n,), in float64."""
    used = [k for k, weight in enumerate(weights.tolist()) if weight > 0]  # of many models mostly one
    said = _through(learner, [models[k] for k in used], x, lambda said, rows: _probable(learner, said))
    total: Tensor = torch.tensordot(weights[used].to(said), said, dims=1)
    return total


def _probable(learner: Learner, said: Tensor) -> Tensor:
    return said if learner.classes is None else torch.softmax(said.double(), dim=-1)


def _through(learner: Learner, models: Sequence[Params], x: Tensor, read: Callable[[Tensor, slice], Tensor]) -> Tensor:
    """Of every model on every sample what `read` makes of its outputs (1, rows, ...) for some rows; (K, n, ...)."""
    some = next(iter(models[0].values()))
    whole = [{name: p[None] for name, p in model.items()} for model in models]
    parts = []
    with torch.no_grad():
        for first in range(0, len(x), CHUNK):
            rows = slice(first, first + CHUNK)
            here = x[rows][None].to(some)
            parts.append(torch.cat([read(learner.outputs(model, here), rows) for model in whole]).double().cpu())
    return torch.cat(parts, dim=1)
