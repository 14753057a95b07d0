"""Cluster heads on a shared body: features are computed once and evaluated by K heads.

A head is the last, fully connected layer of a learner with features (`HasFeatures`). All heads are stored in one array,
{weight: (B, K, C, d), bias: (B, K, C)}, and evaluated by one matrix product.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, rows_of
from coterie.learners.base import HasFeatures
from coterie.learners.descent import Batch, BatchPlan, Descent, batches, descend_by_autograd, group_by_group
from coterie.learners.local_training import LocalTraining


class WithFeatures(HasFeatures, Protocol):
    """A learner whose last layer is fully connected."""

    @property
    def one_by_one(self) -> bool:
        """Whether the clients of a block are trained one after the other."""
        ...


@runtime_checkable
class StepsBody(Protocol):
    """A learner that can train its body faster than by autograd."""

    def descend_body(
        self,
        body: Params,
        heads: Heads,
        block: Block,
        training: LocalTraining,
        lr: float,
        planned: BatchPlan | None = None,
    ) -> Params | None:
        """Return the change of each client's body by local training with fixed heads.

        Args:
            body: Parameters of the body, {name: (B, ...)}.
            heads: Heads of all clusters.
            block: Samples of the clients; `block.shares` is the weight of each sample for each head.
            training: Local training.
            lr: Learning rate of the round.
            planned: All mini-batches, if they have already been planned.

        Returns:
            The change, {name: (B, ...)}, or None if the training is not supported.
        """
        ...


@runtime_checkable
class StepsTogether(Protocol):
    """A learner that can train its body and the heads together faster than by autograd."""

    def descend_all(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None
    ) -> Params:
        """Return the change of each client's body and heads by gradient steps on both together.

        Args:
            theta: Parameters of the body, {name: (B, ...)}, and of the heads, {name: (B, K, ...)}.
            block: Samples of the clients; `block.shares` is the weight of each sample for each head.
            training: Local training.
            lr: Learning rate of the round.
            towards: Centre of the proximal term of the heads; None: no proximal term.
        """
        ...


@dataclass(frozen=True)
class Heads:
    """The K heads of each of B clients."""

    weight: Tensor
    """Weights, (B, K, C, d)."""
    bias: Tensor
    """Biases, (B, K, C)."""

    def rows(self, rows: slice) -> Heads:
        """Return the heads of some clients."""
        return Heads(self.weight[rows], self.bias[rows])

    def params(self, head: str) -> Params:
        """Return the heads by parameter name, {name: (B, K, ...)}."""
        return {f"{head}.weight": self.weight, f"{head}.bias": self.bias}


def heads_of(learner: WithFeatures, params: Params, clients: int) -> Heads:
    """Return the heads of all clusters, repeated for each client.

    Args:
        learner: Model family.
        params: Parameters of the heads, {name: (K, ...)}.
        clients: Number of clients.
    """
    weight, bias = params[f"{learner.head}.weight"], params[f"{learner.head}.bias"]
    return Heads(weight.expand(clients, *weight.shape), bias.expand(clients, *bias.shape))


def head_losses(learner: WithFeatures, heads: Heads, z: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each head on each sample, (B, n, K), given features z (B, n, d) and labels y (B, n)."""
    out = Top.of(heads, learner.classes).outputs(z)
    if learner.classes is None:
        return (out[:, 0].transpose(1, 2) - y[..., None]) ** 2 / 2
    where = y[:, None, None].expand(len(y), 1, *out.shape[2:])
    return -torch.log_softmax(out.flatten(2), dim=1).reshape(out.shape).gather(1, where)[:, 0].transpose(1, 2)


def for_heads(block: Block, gamma: Tensor) -> Block:
    """Return the block with the weights of the samples for each head, gamma (B, n, K)."""
    return replace(block, focus=None, shares=gamma)


def descend_heads(
    learner: WithFeatures,
    heads: Heads,
    z: Tensor,
    block: Block,
    gamma: Tensor,
    training: LocalTraining,
    lr: float,
    towards: Heads | None = None,
    planned: BatchPlan | None = None,
) -> Heads:
    """Return the heads after local training with fixed features.

    Args:
        learner: Model family.
        heads: Heads from which training starts.
        z: Features, (B, n, d).
        block: Samples of the clients.
        gamma: Weight of each sample for each head, (B, n, K).
        training: Local training.
        lr: Learning rate of the round.
        towards: Centre of the proximal term; None: no proximal term.
        planned: All mini-batches, if they have already been planned.
    """
    top = Top.of(heads, learner.classes)
    centre = None if towards is None else Top.of(towards, learner.classes)
    step = _plain_steps(top, centre, training, lr) if training.optimizer.plain else _steps(top, centre, training, lr)
    for batch in batches(for_heads(replace(block, x=z), gamma), replace(training, augment="none"), planned):
        step(batch)
    return top.heads()


def _plain_steps(top: Top, centre: Top | None, training: LocalTraining, lr: float) -> Callable[[Batch], None]:
    """Return a function that takes a step of plain SGD on all heads, without storing gradients."""

    def step(batch: Batch) -> None:
        delta = top.output_gradient(batch.x, batch)
        if centre is not None:  # uses the heads before this step, like the gradient; finished clients do not move
            pull = lr * training.prox * (batch.counts > 0).to(delta)[:, None, None]
            top.weight.add_(pull * (centre.weight - top.weight))
            top.bias.add_(pull * (centre.bias - top.bias))
        top.weight.baddbmm_(delta, batch.x, alpha=-lr)
        top.bias.sub_(delta.sum(dim=2, keepdim=True), alpha=lr)

    return step


def _steps(top: Top, centre: Top | None, training: LocalTraining, lr: float) -> Callable[[Batch], None]:
    """Return a function that takes a step of the optimizer on all heads."""
    theta = {"weight": top.weight, "bias": top.bias}
    state = training.optimizer.init(theta)

    def step(batch: Batch) -> None:
        delta = top.output_gradient(batch.x, batch)
        gradient = {"weight": torch.bmm(delta, batch.x), "bias": delta.sum(dim=2, keepdim=True)}
        if centre is not None:
            gradient["weight"].add_(top.weight - centre.weight, alpha=training.prox)
            gradient["bias"].add_(top.bias - centre.bias, alpha=training.prox)
        training.optimizer.step(theta, gradient, state, lr, batch.active)

    return step


@dataclass(frozen=True)
class Top:
    """All heads of a client as a single layer, with the axes in the order classes, heads, samples.

    The softmax over classes is then vectorised over K n adjacent numbers; with classes last, it is ten times slower.
    """

    weight: Tensor
    """Weights, (B, C K, d)."""
    bias: Tensor
    """Biases, (B, C K, 1)."""
    K: int
    """Number of heads."""
    classes: int | None
    """Number of classes (C); None for regression."""

    @classmethod
    def of(cls, heads: Heads, classes: int | None) -> Top:
        """Return a copy of the heads as a single layer."""
        weight = heads.weight.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        bias = heads.bias.transpose(1, 2).clone(memory_format=torch.contiguous_format)
        return cls(weight.flatten(1, 2), bias.flatten(1)[..., None], heads.bias.shape[1], classes)

    def heads(self) -> Heads:
        """Return the heads; the inverse of `of`."""
        shape = (len(self.weight), -1, self.K)
        weight, bias = self.weight.reshape(*shape, self.weight.shape[2]), self.bias.reshape(shape)
        return Heads(weight.transpose(1, 2), bias.transpose(1, 2))

    def outputs(self, z: Tensor) -> Tensor:
        """Return the outputs, (B, C, K, n), for features (B, n, d)."""
        out = torch.baddbmm(self.bias, self.weight, z.transpose(1, 2))
        return out.reshape(len(z), -1, self.K, z.shape[1])

    def output_gradient(self, z: Tensor, batch: Batch) -> Tensor:
        """Return the gradient of the loss with respect to the outputs of all heads, (B, C K, b).

        Args:
            z: Features of the batch, (B, b, d).
            batch: Labels and weights of the samples.
        """
        assert batch.shares is not None
        out, shares = self.outputs(z).flatten(2), batch.shares.transpose(1, 2)  # (B, C, K b), (B, K, b)
        if self.classes is None:
            return (out.reshape(shares.shape) - batch.y[:, None]) * shares
        where = batch.y[:, None].expand(shares.shape).reshape(len(z), 1, -1)
        counted = shares.reshape(where.shape)
        gradient = torch.softmax(out, dim=1).mul_(counted).scatter_add_(1, where, -counted)
        return gradient.reshape(len(z), -1, z.shape[1])


def descend_body(
    learner: WithFeatures,
    body: Params,
    heads: Heads,
    block: Block,
    gamma: Tensor,
    training: LocalTraining,
    lr: float,
    planned: BatchPlan | None = None,
) -> Params:
    """Return the change of each client's body, {name: (B, ...)}, by local training with fixed heads.

    Args:
        learner: Model family.
        body: Parameters of the body, {name: (B, ...)}.
        heads: Heads of all clusters.
        block: Samples of the clients.
        gamma: Weight of each sample for each head, (B, n, K).
        training: Local training.
        lr: Learning rate of the round.
        planned: All mini-batches, if they have already been planned.
    """
    part = for_heads(block, gamma)
    fast = learner.descend_body(body, heads, part, training, lr, planned) if isinstance(learner, StepsBody) else None
    return descend_body_by_autograd(learner, body, heads, part, training, lr) if fast is None else fast


def descend_body_by_autograd(
    learner: WithFeatures, body: Params, heads: Heads, block: Block, training: LocalTraining, lr: float
) -> Params:
    """Return the same as `descend_body` for any learner; the weights of the samples are in `block.shares`."""

    def descend(rows: slice, part: Block) -> Descent:
        own = heads.rows(rows)

        def objective(theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
            return _mixed_loss(learner, theta, own, batch)

        return descend_by_autograd(objective, rows_of(body, rows), part, training, lr)

    return _descended(learner, descend, block).change


def descend_together(
    learner: WithFeatures,
    body: Params,
    heads: Heads,
    block: Block,
    gamma: Tensor,
    training: LocalTraining,
    lr: float,
    towards: Heads | None = None,
) -> tuple[Params, Heads]:
    """Return the change of body and heads by gradient steps on both together.

    Args:
        learner: Model family.
        body: Parameters of the body, {name: (B, ...)}.
        heads: Heads of all clusters.
        block: Samples of the clients.
        gamma: Weight of each sample for each head, (B, n, K).
        training: Local training.
        lr: Learning rate of the round.
        towards: Centre of the proximal term of the heads; None: no proximal term.
    """
    named = heads.params(learner.head)

    def objective(theta: Params, batch: Batch) -> tuple[Tensor, Tensor]:
        return _mixed_loss(learner, theta, Heads(*(theta[name] for name in named)), batch)

    centre = {} if towards is None else towards.params(learner.head)

    def descend(rows: slice, part: Block) -> Descent:
        own_centre = rows_of(centre, rows) if centre else None
        return descend_by_autograd(objective, rows_of(body | named, rows), part, training, lr, own_centre)

    part = for_heads(block, gamma)
    if isinstance(learner, StepsTogether):
        change = learner.descend_all(body | named, part, training, lr, centre or None)
    else:
        change = _descended(learner, descend, part).change
    return {n: change[n] for n in body}, Heads(*(change[name] for name in named))


def _mixed_loss(learner: WithFeatures, theta: Params, heads: Heads, batch: Batch) -> tuple[Tensor, Tensor]:
    """Return each client's weighted loss over all heads, as the objective and as the loss without penalties."""
    assert batch.shares is not None
    losses = head_losses(learner, heads, learner.features(theta, batch.x), batch.y)
    loss = (losses * batch.shares).sum(dim=(1, 2))
    return loss, loss


def _descended(learner: WithFeatures, descend: Callable[[slice, Block], Descent], block: Block) -> Descent:
    return group_by_group(descend, block) if learner.one_by_one else descend(slice(None), block)
