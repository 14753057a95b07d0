"""Gradient steps of local training on full batches or mini-batches; each client has its own random batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.keys import Purpose, fold, permutations
from coterie.errors import ConfigError
from coterie.learners.augment import augment
from coterie.learners.local_training import LocalTraining


@dataclass(frozen=True)
class Batch:
    """Samples of one gradient step of all clients in a block."""

    x: Tensor
    """Features, (B, b, ...)."""
    y: Tensor
    """Labels or targets, (B, b)."""
    share: Tensor
    """Weight of each sample in its client's loss, (B, b): its focus divided by the number of samples; 0 for padding."""
    counts: Tensor
    """Number of samples of each client, (B,); 0 for clients that have finished and take no step."""
    everyone: bool
    """Whether all clients take this step."""
    shares: Tensor | None = None
    """Weight of each sample for each of K models, including its share in the mean, (B, b, K)."""

    @property
    def active(self) -> Tensor | None:
        """Whether each client takes this step, (B,); None if all do."""
        return None if self.everyone else self.counts > 0


def batches(block: Block, training: LocalTraining, planned: BatchPlan | None = None) -> Iterator[Batch]:
    """Yield the batches of all gradient steps of a round, in order.

    Args:
        block: Samples of the clients.
        training: Local training that takes gradient steps.
        planned: All mini-batches, if they have already been planned by `plan_batches`.

    Raises:
        ConfigError: if the training takes no gradient steps.
    """
    if not training.takes_gradient_steps:
        raise ConfigError(
            f"this learner trains by gradient steps, not by {training.name}: use full-batch or mini-batch"
        )
    if training.full_batch_steps is None:
        yield from _mini_batches(block, training, planned or plan_batches(block, training))
        return
    batch = full_batch(block)
    for _ in range(training.full_batch_steps):
        yield batch


def full_batch(block: Block) -> Batch:
    """Return a batch of all samples of each client."""
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = real.to(block.x.dtype) / block.counts[:, None]
    if block.focus is not None:
        share = share * block.focus
    shares = None if block.shares is None else block.shares * share[..., None]
    return Batch(block.x, block.y, share, block.counts, everyone=True, shares=shares)


@dataclass(frozen=True)
class BatchPlan:
    """Samples of the T mini-batches of a block in a round.

    All steps are planned at once, since planning them one by one would take longer than the steps of a small model.
    """

    index: Tensor
    """Indices among all samples of the block, (T, B b)."""
    taken: npt.NDArray[np.int64]
    """Indices among the samples of each client, (T, B, b)."""
    y: Tensor
    """Labels or targets, (T, B, b). This and the following fields are those of `Batch` for each step."""
    share: Tensor
    """Weights of the samples, (T, B, b)."""
    counts: Tensor
    """Numbers of samples, (T, B)."""
    everyone: list[bool]
    """Whether all clients take the step, for each step."""
    shares: Tensor | None
    """Weights of the samples for each model, (T, B, b, K)."""


def plan_batches(block: Block, training: LocalTraining) -> BatchPlan:
    """Return the mini-batches of a round; each client shuffles its samples in every epoch."""
    sizes, width = block.sizes.cpu().numpy(), block.y.shape[1]
    size = training.batch_size_for(width)
    per_pass = -(-sizes // size)
    last = training.steps_for(per_pass)
    steps = np.arange(int(last.max()))[:, None]
    passes = np.minimum(steps, last - 1) // per_pass
    columns = (steps % per_pass)[..., None] * size + np.arange(size)
    real = (columns < sizes[:, None]) & (steps < last)[..., None]
    orders = np.stack([permutations(block.keys, sizes, width, epoch) for epoch in range(int(passes.max()) + 1)])
    client = np.arange(len(sizes))[:, None]
    taken = orders[passes[..., None], client, np.minimum(columns, width - 1)]
    counts = real.sum(axis=2)
    index = torch.from_numpy((client * width + taken).reshape(len(steps), -1)).to(block.x.device)
    share = torch.from_numpy(real / np.maximum(counts, 1)[..., None]).to(block.x)
    if block.focus is not None:
        share = share * block.focus.flatten()[index].reshape(taken.shape)
    return BatchPlan(
        index,
        taken,
        block.y.flatten()[index].reshape(taken.shape),
        share,
        torch.from_numpy(counts).to(block.x),
        counts.all(axis=1).tolist(),
        None if block.shares is None else _several(block.shares, index, share),
    )


def _several(shares: Tensor, index: Tensor, share: Tensor) -> Tensor:
    """Return the weights of the planned samples, (T, B, b, K), with the samples of each model adjacent in memory."""
    found = shares.flatten(0, 1).index_select(0, index.flatten()).reshape(*share.shape, -1)
    return (found.transpose(2, 3) * share[:, :, None]).transpose(2, 3)


def _mini_batches(block: Block, training: LocalTraining, planned: BatchPlan) -> Iterator[Batch]:
    x, several = block.x.flatten(0, 1), planned.shares
    for step, rows in enumerate(planned.index.unbind()):
        images = x.index_select(0, rows).reshape(*planned.taken.shape[1:], *x.shape[1:])
        if training.augment != "none":
            keys = fold(block.keys[:, None], int(Purpose.AUGMENTATION), step, planned.taken[step].astype(np.uint64))
            images = augment(images, training.augment, keys)
        yield Batch(
            images,
            planned.y[step],
            planned.share[step],
            planned.counts[step],
            planned.everyone[step],
            None if several is None else several[step],
        )


@dataclass(frozen=True)
class Descent:
    """Result of local training."""

    change: Params
    """Change of the models, {name: (B, ...)} or {name: (B, L, ...)}."""
    loss: Tensor | None
    """Mean loss of the mini-batches during training, each under the model of that step, without penalties (l2, prox),
    (B,) or (B, L). None for full-batch steps, for which the loss of the received model is reported instead."""


class RunningLoss:
    """Mean loss over the mini-batches of a round, each under the model of that step.

    Args:
        training: Local training; for full-batch steps, no loss is computed.
    """

    def __init__(self, training: LocalTraining) -> None:
        self.wanted = training.full_batch_steps is None
        self.losses: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, loss: Tensor, batch: Batch) -> None:
        """Add the mean loss of each client on a batch, (B,)."""
        self.losses.append(loss)
        self.counts.append(batch.counts)

    def mean(self) -> Tensor | None:
        """Return the mean over all samples of all batches, (B,); None for full-batch steps."""
        if not self.wanted:
            return None
        losses, counts = torch.stack(self.losses), torch.stack(self.counts)
        return torch.where(counts > 0, losses * counts, 0).sum(dim=0) / counts.sum(dim=0)


Objective = Callable[[Params, Batch], tuple[Tensor, Tensor]]
"""Function that returns each client's local objective on a batch and its mean loss without penalties, both (B,)."""


GradientOf = Callable[[Params, Batch], tuple[Params, Tensor]]
"""Function that returns each client's gradient on a batch, {name: (B, ...)}, and its mean loss, (B,).

The gradient may be overwritten after the call."""


def descend_by_autograd(
    objective: Objective, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
) -> Descent:
    """Return the result of gradient steps of all clients like `descend_by_steps`, with gradients by autograd."""
    return descend_by_steps(lambda now, batch: _gradients(objective, now, batch), theta, block, training, lr, towards)


def descend_by_steps(
    gradient_of: GradientOf,
    theta: Params,
    block: Block,
    training: LocalTraining,
    lr: float,
    towards: Params | None = None,
) -> Descent:
    """Return the result of gradient steps of all clients.

    After a single step of plain SGD, the change is exactly -lr times the gradient.

    Args:
        gradient_of: Function that computes gradients.
        theta: Models from which the clients start, {name: (B, ...)}.
        block: Samples of the clients.
        training: Local training.
        lr: Learning rate of the round.
        towards: Centre of the proximal term, which then acts on the parameters with these names only; None: `theta`.
    """
    moved = {name: p.clone() for name, p in theta.items()}
    change: Params | None = None
    optimizer, state = training.optimizer, training.optimizer.init(moved)
    running = RunningLoss(training)
    centre = theta if towards is None else towards
    for step, batch in enumerate(batches(block, training)):
        gradients, loss = gradient_of(moved, batch)
        if running.wanted:
            running.add(loss, batch)
        if training.prox and (step or towards is not None):
            for name in gradients.keys() & centre.keys():
                gradients[name].add_(moved[name] - centre[name], alpha=training.prox)
        optimizer.step(moved, gradients, state, lr, batch.active)
        change = {name: g.mul_(-lr) for name, g in gradients.items()} if step == 0 and optimizer.plain else None
    return Descent(change or {name: moved[name] - p for name, p in theta.items()}, running.mean())


def _gradients(objective: Objective, theta: Params, batch: Batch) -> tuple[Params, Tensor]:
    """Return the gradient and the loss of each client, computed in a single backward pass for all clients."""
    leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
    with torch.enable_grad():
        values, losses = objective(leaves, batch)
        total = values.sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, (g.contiguous() for g in found), strict=True)), losses.detach()


def descend_each_track(
    objective: Objective, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
) -> Descent:
    """Return the result of `descend_by_autograd` for L models of each client, {name: (B, L, ...)}."""
    return join_tracks(
        [descend_by_autograd(objective, one, block, training, lr, to) for one, to in tracks(theta, towards)]
    )


def tracks(theta: Params, towards: Params | None = None) -> list[tuple[Params, Params | None]]:
    """Return L models of each client, {name: (B, L, ...)}, one by one, {name: (B, ...)}, with the centre of each.

    Args:
        theta: Models from which the clients start.
        towards: Centre of the proximal term, {name: (B, L, ...)}; None: the centre of each model is None.
    """
    count = next(iter(theta.values())).shape[1]
    return [(_track(theta, track), towards and _track(towards, track)) for track in range(count)]


def join_tracks(done: list[Descent]) -> Descent:
    """Return the results for L models of each client, as `tracks` returns them, as one, {name: (B, L, ...)}."""
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: _stacked([one.change[name] for one in done]) for name in done[0].change}
    return Descent(change, _stacked(losses) if losses else None)


def groups_of(block: Block, size: int) -> list[slice]:
    """Return the rows of groups of clients of a block that are trained one after the other.

    Args:
        block: Samples of the clients.
        size: Maximum number of clients of a group.
    """
    clients = len(block.positions)
    return [slice(first, min(first + size, clients)) for first in range(0, clients, size)]


def group_by_group(descend: Callable[[slice, Block], Descent], block: Block, size: int = 1) -> Descent:
    """Train groups of clients of a block one after the other, to save memory for activations and padding.

    Args:
        descend: Function that trains the clients at these rows of the block.
        block: Samples of the clients.
        size: Maximum number of clients of a group.
    """
    done = [descend(rows, block.part(rows)) for rows in groups_of(block, size)]
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: torch.cat([one.change[name] for one in done]) for name in done[0].change}
    return Descent(change, torch.cat(losses) if losses else None)


def _track(theta: Params, track: int) -> Params:
    return {name: p[:, track] for name, p in theta.items()}


def _stacked(tracks: list[Tensor]) -> Tensor:
    """Stack tensors (B, ...) of L models to (B, L, ...); a single one is not copied."""
    return tracks[0][:, None] if len(tracks) == 1 else torch.stack(tracks, dim=1)
