"""Evidence of each client's samples for the clusters, and for differences between clients of the same cluster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.scoring import blocks_of, models_held
from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.expected import Expected, RunFacts, Slots, Spec
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.registry import register
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.learners.base import Learner

MOST_SAMPLES = 256
"""Maximum number of training samples of a client for which scores are computed; more samples add little."""
MOST_PRODUCTS = 4_000_000
"""Maximum number of products of two samples in memory at once."""
MOST_ENTRIES = 60_000
"""Maximum number of entries of a score; for more features, adjacent ones are averaged."""


@register("compare")
@dataclass(frozen=True)
class Compare(Task):
    """Comparison of each client with all clusters and with the other clients of its cluster.

    The broadcast contains the cluster of each client (`own`). The reply has these rows:

    - `training_losses` and `losses` (K,): mean loss under every model on training and on held-out samples;
    - `half_losses` (K,): mean loss under every model on every other held-out sample;
    - `held_out`: number of held-out samples; without any, their losses are 0;
    - `pairs`: sum of psi_j' psi_l over pairs of different samples, with mean 0 if the model fits the client;
    - `pairs_variance`: variance of `pairs` if the model fits the client;
    - `spread`: sum of |psi_j|^2.

    The score psi_j is the gradient of a training sample's loss with respect to the outputs of the client's model, times
    the features and a constant. The sum `score` adds psi_j over the clients of each cluster.
    """

    evaluates: ClassVar[bool] = True

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        own, learner = broadcast.each["own"], clients.learner
        rows = _rows(len(clients.train), models_held(broadcast))
        slots, slot_of, counts = torch.unique(own, return_inverse=True, return_counts=True)
        score = torch.zeros(len(slots), 1, dtype=torch.float64)
        for block in blocks_of(clients.train, broadcast):
            places = torch.from_numpy(block.positions)
            losses = learner.score(broadcast.clusters.all_models(), block).losses.double()
            _set(rows, places, {"training_losses": block.mean(losses)})
            theta = broadcast.clusters.at(own[places])
            for part, gradient, features in _few_samples(learner, theta, block):
                _set(rows, places[part], _products(gradient, features))
                summed = (gradient.mT @ features).flatten(1).cpu()
                score = score.expand(-1, summed.shape[1]).index_add(0, slot_of[places[part]], summed)
        held_out = clients.held_out
        if held_out is not None:
            _add_held_out(learner, held_out, broadcast, rows)
        return Reply(
            clients=clients.train.ids, rows=rows, slotted={"clusters": Slotted(slots, {"score": score}, counts)}
        )

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        losses = Spec((models_held(broadcast),), low=-1e-3, missing="shared")
        amount = Spec((), low=0, missing="shared")
        score = Spec((None,), missing="shared")
        return Expected(
            rows={
                "held_out": Spec((), low=0, whole=True),
                **dict.fromkeys(("losses", "half_losses", "training_losses"), losses),
                "pairs": Spec((), missing="shared"),
                "pairs_variance": amount,
                "spread": amount,
            },
            slotted={"clusters": Slots(broadcast.clusters.K, {"score": score})},
        )


def _rows(clients: int, K: int) -> Params:
    """Return the rows of the reply, all zero."""
    shapes: dict[str, tuple[int, ...]] = {
        **dict.fromkeys(("losses", "half_losses", "training_losses"), (K,)),
        **dict.fromkeys(("held_out", "pairs", "pairs_variance", "spread"), ()),
    }
    return {name: torch.zeros(clients, *shape, dtype=torch.float64) for name, shape in shapes.items()}


def _set(rows: Params, places: Tensor, values: Params) -> None:
    for name, value in values.items():
        rows[name][places] = value.double().cpu()


def _few_samples(learner: Learner, theta: Params, block: Block) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield parts of the block's clients with gradients (b, n, C) and features (b, n, d + 1).

    Only the first `MOST_SAMPLES` samples of each client are used. Gradients are zero for padding.
    """
    x, y = block.x[:, :MOST_SAMPLES], block.y[:, :MOST_SAMPLES]
    outputs = learner.outputs(theta, x).detach().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(learner.loss(outputs, y).sum(), outputs)
    gradient = gradient.double().reshape(*y.shape, -1)
    if block.mask is not None:
        gradient = torch.where(block.mask[:, :MOST_SAMPLES, None], gradient, 0.0)
    features = x.double().flatten(2)
    most = MOST_ENTRIES // gradient.shape[2]
    features = features if features.shape[2] < most else torch.nn.functional.adaptive_avg_pool1d(features, most - 1)
    features = torch.cat([features, features.new_ones(*y.shape, 1)], dim=2)
    step = max(1, MOST_PRODUCTS // y.shape[1] ** 2)
    for first in range(0, len(y), step):
        part = slice(first, first + step)
        yield part, gradient[part], features[part]


def _products(gradient: Tensor, features: Tensor) -> Params:
    """Return the rows that depend on products of the scores of two samples."""
    products = (gradient @ gradient.mT) * (features @ features.mT)
    squares = products.diagonal(dim1=1, dim2=2)
    return {
        "pairs": products.sum(dim=(1, 2)) - squares.sum(dim=1),
        "pairs_variance": (2 * ((products**2).sum(dim=(1, 2)) - (squares**2).sum(dim=1))).clamp_min(0),
        "spread": squares.sum(dim=1),
    }


def _add_held_out(learner: Learner, shard: Shard, broadcast: Broadcast, rows: Params) -> None:
    """Fill in the rows that depend on held-out samples; samples that clients share are evaluated once."""
    spans = np.stack([shard.starts, shard.stops], axis=1)
    _, first, back = np.unique(spans, axis=0, return_index=True, return_inverse=True)
    sets = shard.take(first.astype(np.int64))
    some = sets.take(np.flatnonzero(sets.sizes))
    found = {name: torch.zeros(len(sets), *rows[name].shape[1:]).double() for name in ("losses", "half_losses")}
    places = torch.from_numpy(np.flatnonzero(sets.sizes))
    for block in blocks_of(some, broadcast):
        losses = learner.score(broadcast.clusters.all_models(), block).losses.double()
        every_other = torch.arange(losses.shape[1], device=losses.device) % 2 == 0
        inside = every_other if block.mask is None else every_other & block.mask
        half = torch.where(inside[..., None].expand_as(losses), losses, 0.0).sum(dim=1)
        count = ((block.sizes + 1) // 2).double()[:, None]
        _set(
            found,
            places[torch.from_numpy(block.positions)],
            {"losses": block.mean(losses), "half_losses": half / count},
        )
    for name, value in found.items():
        rows[name] = value[torch.from_numpy(back.reshape(-1))]
    rows["held_out"] = torch.from_numpy(shard.sizes).double()
