"""One body for all clusters and a small head for each: features once, K heads on them.

A head is the last, fully connected layer of a learner with features (`HasFeatures`). Heads are held side by side,
{weight: (B, K, C, d), bias: (B, K, C)}, so that all of them are one product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.learners.base import HasFeatures, Learner
from coterie.learners.descent import Batch, LocalWork, batches, descend_by_autograd


class WithFeatures(Learner, HasFeatures, Protocol):
    """A learner that ends in one fully connected layer."""


@dataclass(frozen=True)
class Heads:
    """K heads for each of B clients."""

    weight: Tensor
    """(B, K, C, d)"""
    bias: Tensor
    """(B, K, C)"""

    def outputs(self, z: Tensor) -> Tensor:
        """From features (B, n, d) to (B, n, K, C)."""
        flat = torch.baddbmm(self.bias.flatten(1)[:, None], z, self.weight.flatten(1, 2).transpose(1, 2))
        return flat.reshape(*z.shape[:2], *self.bias.shape[1:])

    def params(self, head: str) -> Params:
        """By name, {name: (B, K, ...)}."""
        return {f"{head}.weight": self.weight, f"{head}.bias": self.bias}


def heads_of(learner: WithFeatures, params: Params, clients: int) -> Heads:
    """The heads {name: (K, ...)} of all clusters, for each client."""
    weight, bias = params[f"{learner.head}.weight"], params[f"{learner.head}.bias"]
    return Heads(weight.expand(clients, *weight.shape), bias.expand(clients, *bias.shape))


def head_losses(learner: WithFeatures, heads: Heads, z: Tensor, y: Tensor) -> Tensor:
    """The loss of every head on every sample, (B, n, K)."""
    out = heads.outputs(z)
    if learner.classes is None:
        return (out.squeeze(-1) - y[..., None]) ** 2 / 2
    return -torch.log_softmax(out, dim=-1).gather(3, y[:, :, None, None].expand(*out.shape[:3], 1)).squeeze(-1)


def descend_heads(
    learner: WithFeatures, heads: Heads, z: Tensor, block: Block, gamma: Tensor, work: LocalWork, lr: float
) -> Heads:
    """The heads after local steps on fixed features z (B, n, d), each sample counting by gamma (B, n, K)."""
    weight, bias = heads.weight.clone().flatten(1, 2), heads.bias.clone().flatten(1)  # (B, K C, d), (B, K C)
    shape = heads.bias.shape[1:]
    still = replace(work, augment="none")
    for batch in _batches(replace(block, x=z), gamma, still):
        out = torch.baddbmm(bias[:, None], batch.x, weight.transpose(1, 2)).reshape(*batch.y.shape, *shape)
        delta = (_slope(out, batch.y, learner.classes) * _shares(batch)[..., None]).flatten(2)  # (B, b, K C)
        weight.baddbmm_(delta.transpose(1, 2), batch.x, alpha=-lr)
        bias.sub_(delta.sum(dim=1), alpha=lr)
    return Heads(weight.reshape(heads.weight.shape), bias.reshape(heads.bias.shape))


def _slope(out: Tensor, y: Tensor, classes: int | None) -> Tensor:
    """d loss / d output, (B, b, K, C)."""
    if classes is None:
        return out - y[..., None, None]
    slope = torch.softmax(out, dim=-1)
    one = torch.ones((), dtype=slope.dtype, device=slope.device)
    return slope.scatter_add(3, y[:, :, None, None].expand(*out.shape[:3], 1), -one.expand(*out.shape[:3], 1))


def _shares(batch: Batch) -> Tensor:
    """What each sample counts for each head, (B, b, K)."""
    assert batch.shares is not None
    return batch.share[..., None] * batch.shares


def _batches(block: Block, gamma: Tensor, work: LocalWork) -> Iterator[Batch]:
    return batches(replace(block, focus=None, shares=gamma), work)


def descend_body(
    learner: WithFeatures, body: Params, heads: Heads, block: Block, gamma: Tensor, work: LocalWork, lr: float
) -> Params:
    """The change of each client's body {name: (B, ...)} by local steps while its heads stay as they are."""

    def objective(theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        losses = head_losses(learner, heads, learner.features(theta, batch.x), batch.y)
        loss = (losses * _shares(batch)).sum(dim=(1, 2))
        return loss, loss

    return descend_by_autograd(objective, body, replace(block, focus=None, shares=gamma), work, lr).change


def descend_together(
    learner: WithFeatures, body: Params, heads: Heads, block: Block, gamma: Tensor, work: LocalWork, lr: float
) -> tuple[Params, Heads]:
    """The change of body and heads by steps on both at once."""
    named = heads.params(learner.head)

    def objective(theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        now = Heads(*(theta[name] for name in named))
        losses = head_losses(learner, now, learner.features(theta, batch.x), batch.y)
        loss = (losses * _shares(batch)).sum(dim=(1, 2))
        return loss, loss

    part = replace(block, focus=None, shares=gamma)
    change = descend_by_autograd(objective, body | named, part, work, lr).change
    return {n: change[n] for n in body}, Heads(*(change[name] for name in named))
