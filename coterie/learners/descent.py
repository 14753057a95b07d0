"""Gradient steps of local training, on full batches or mini-batches; each client draws its own batches."""

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
    """One gradient step of every client in a block."""

    x: Tensor
    y: Tensor
    share: Tensor
    """(B, b) weight of each sample in its client's loss: 1/b for b real samples, times its focus; 0 for padding."""
    counts: Tensor
    """(B,) number of real samples; 0 for clients that have finished, which take no step."""
    everybody: bool
    """Whether all clients take this step."""
    shares: Tensor | None = None
    """(B, b, K) weight of each sample for each of several models, its share in the mean included."""

    @property
    def active(self) -> Tensor | None:
        """Which clients take this step, (B,); None if all do."""
        return None if self.everybody else self.counts > 0


def batches(block: Block, training: LocalTraining, planned: BatchPlan | None = None) -> Iterator[Batch]:
    """Yield the gradient steps of one round, in order.

    Args:
        block: Clients that take the steps together.
        training: Local training that takes gradient steps.
        planned: Samples of all mini-batches, if `plan_batches` was called before.

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
    """Return the step of every client on all of its samples."""
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = real.to(block.x.dtype) / block.counts[:, None]
    if block.focus is not None:
        share = share * block.focus
    shares = None if block.shares is None else block.shares * share[..., None]
    return Batch(block.x, block.y, share, block.counts, everybody=True, shares=shares)


@dataclass(frozen=True)
class BatchPlan:
    """The samples of T mini-batches of a block.

    All steps are planned at once: one by one, the planning would cost more than the steps of a small model.
    """

    index: Tensor
    """(T, B b) indices among all samples of the block."""
    taken: npt.NDArray[np.int64]
    """(T, B, b) indices among the samples of each client."""
    y: Tensor
    """(T, B, b); this and the following fields are those of `Batch` for every step."""
    share: Tensor
    counts: Tensor
    everybody: list[bool]
    shares: Tensor | None


def plan_batches(block: Block, training: LocalTraining) -> BatchPlan:
    """Return the mini-batches of a round: each client goes through its own shuffled passes."""
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
    """Return (T, B, b, K) from (B, n, K); the samples of a model are adjacent in memory, as they are used."""
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
            planned.everybody[step],
            None if several is None else several[step],
        )


@dataclass(frozen=True)
class Descent:
    """The result of local training."""

    change: Params
    """Change of the models, {name: (B, ...)} or {name: (B, L, ...)}."""
    loss: Tensor | None
    """Mean loss of the samples during mini-batch training, each under the model of that step, (B,) or (B, L), without
    penalties (l2, prox). None for full-batch steps, for which the loss of the received model is reported instead."""


class RunningLoss:
    """Mean loss over the mini-batches of a round, each under the model of that step."""

    def __init__(self, training: LocalTraining) -> None:
        self.wanted = training.full_batch_steps is None
        self.losses: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, loss: Tensor, batch: Batch) -> None:
        """Add the clients' mean losses (B,) on a batch."""
        self.losses.append(loss)
        self.counts.append(batch.counts)

    def mean(self) -> Tensor | None:
        """Return the mean over all samples of all batches, (B,); None for full-batch steps."""
        if not self.wanted:
            return None
        losses, counts = torch.stack(self.losses), torch.stack(self.counts)
        return torch.where(counts > 0, losses * counts, 0).sum(dim=0) / counts.sum(dim=0)


Objective = Callable[[Params, Batch], tuple[Tensor, Tensor]]
"""Function that returns each client's local objective on a batch and the mean loss without penalties, (B,) both."""


GradientOf = Callable[[Params, Batch], tuple[Params, Tensor]]
"""Function that returns each client's gradient on a batch, {name: (B, ...)}, and its mean loss, (B,).

The caller may overwrite the gradient."""


def descend_by_autograd(
    objective: Objective, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
) -> Descent:
    """Return the result of the gradient steps of every client, as `descend_by_steps`, with gradients by autograd."""
    return descend_by_steps(lambda now, batch: _gradients(objective, now, batch), theta, block, training, lr, towards)


def descend_by_steps(
    gradient_of: GradientOf,
    theta: Params,
    block: Block,
    training: LocalTraining,
    lr: float,
    towards: Params | None = None,
) -> Descent:
    """Return the result of the gradient steps of every client, from `theta` {name: (B, ...)}.

    The proximal term pulls to `theta`, or to `towards`, and then only the parameters that are named there. After a
    single step of plain SGD the change is exactly -lr times the gradient.
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
    """Return each client's gradient and loss; clients are independent, so one backward pass serves all of them."""
    leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
    with torch.enable_grad():
        values, losses = objective(leaves, batch)
        total = values.sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, (g.contiguous() for g in found), strict=True)), losses.detach()


def descend_each_track(
    objective: Objective, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
) -> Descent:
    """Return the result of `descend_by_autograd` for {name: (B, L, ...)}."""
    return each_track(lambda one, to: descend_by_autograd(objective, one, block, training, lr, to), theta, towards)


def each_track(
    descend: Callable[[Params, Params | None], Descent], theta: Params, towards: Params | None = None
) -> Descent:
    """Apply a function of {name: (B, ...)} to {name: (B, L, ...)}, one model of each client after the other."""
    tracks = next(iter(theta.values())).shape[1]
    done = [descend(_track(theta, track), towards and _track(towards, track)) for track in range(tracks)]
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: _side_by_side([one.change[name] for one in done]) for name in theta}
    return Descent(change, _side_by_side(losses) if losses else None)


def one_by_one(descend: Callable[[slice, Block], Descent], block: Block) -> Descent:
    """Apply a function of some rows of a block to one client after the other, without padding.

    Only one client's activations are held at a time.
    """
    done = [descend(slice(b, b + 1), block.alone(b)) for b in range(len(block.positions))]
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: torch.cat([one.change[name] for one in done]) for name in done[0].change}
    return Descent(change, torch.cat(losses) if losses else None)


def _track(theta: Params, track: int) -> Params:
    return {name: p[:, track] for name, p in theta.items()}


def _side_by_side(tracks: list[Tensor]) -> Tensor:
    """Stack (B, ...) of L models to (B, L, ...); a single one is not copied."""
    return tracks[0][:, None] if len(tracks) == 1 else torch.stack(tracks, dim=1)
