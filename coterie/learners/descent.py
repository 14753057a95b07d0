"""Local work: full-batch or mini-batch gradient steps, the same for every client and its own randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.keys import permutations


@dataclass(frozen=True)
class LocalWork:
    """What a client does with the model it was given."""

    steps: int | None = 1
    """tau: gradient steps a round; None when epochs are counted."""
    epochs: int | None = None
    """Passes over the client's data a round; None when steps are counted."""
    batch_size: int | None = None
    """Samples a step, the last batch of a pass short; None: all of the client's samples."""
    prox: float = 0.0
    """mu: pulls the local model back to the received one by (mu/2) ||theta - theta_received||^2."""

    @property
    def full_batch_steps(self) -> int | None:
        """How many full-batch steps this is; None for mini-batches."""
        if self.batch_size is not None:
            return None
        return self.steps if self.steps is not None else self.epochs

    def settings(self) -> dict[str, int | float | None]:
        """Plain values, from which `LocalWork(**settings)` comes back."""
        return asdict(self)


@dataclass(frozen=True)
class Batch:
    """One gradient step of every client in a block."""

    x: Tensor
    y: Tensor
    share: Tensor
    """(B, b) what each sample counts in its client's loss: 1/b for b real samples, 0 for padding."""
    active: Tensor
    """(B,) 1.0 for clients that take this step, 0.0 for those that have finished."""
    everybody: bool
    """Whether all clients take this step."""


def batches(block: Block, work: LocalWork) -> Iterator[Batch]:
    """The steps of one round, in order."""
    steps = work.full_batch_steps
    if steps is None:
        yield from _mini_batches(block, work)
        return
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = real.to(block.x.dtype) / block.counts[:, None]
    everyone = torch.ones(len(block.positions), dtype=block.x.dtype, device=block.x.device)
    for _ in range(steps):
        yield Batch(block.x, block.y, share, everyone, everybody=True)


def _mini_batches(block: Block, work: LocalWork) -> Iterator[Batch]:
    """Each client walks through its own shuffled passes; a pass ends with a short batch."""
    assert work.batch_size is not None
    sizes, width = block.sizes.cpu().numpy(), block.y.shape[1]
    size = min(work.batch_size, width)
    per_pass = -(-sizes // size)
    last = np.full(len(sizes), work.steps) if work.steps is not None else per_pass * (work.epochs or 0)
    orders: dict[int, np.ndarray] = {}
    client = np.arange(len(sizes))[:, None]
    for step in range(int(last.max())):
        passes = step // per_pass
        for epoch in np.unique(passes):
            if int(epoch) not in orders:
                orders[int(epoch)] = permutations(block.keys, sizes, width, int(epoch))
        order = np.stack([orders[int(e)][i] for i, e in enumerate(passes)])
        columns = (step % per_pass)[:, None] * size + np.arange(size)[None, :]
        real = (columns < sizes[:, None]) & (step < last)[:, None]
        index = np.take_along_axis(order, np.minimum(columns, width - 1), axis=1)
        rows, taken = torch.from_numpy(client), torch.from_numpy(index)
        share = real / np.maximum(real.sum(axis=1, keepdims=True), 1)
        yield Batch(
            block.x[rows, taken],
            block.y[rows, taken],
            torch.from_numpy(share).to(block.x),
            torch.from_numpy(step < last).to(block.x),
            everybody=bool((step < last).all()),
        )


Objective = Callable[[Params, Batch], Tensor]
"""Each client's local objective on a batch, (B,)."""


def descend_by_autograd(objective: Objective, theta: Params, block: Block, work: LocalWork, lr: float) -> Params:
    """Gradient descent for every client at once: the change {name: (B, ...)} of `theta` {name: (B, ...)}.

    Clients are independent, so one backward pass through the sum of their objectives gives each its own
    gradient. After a single step the change is exactly -lr times the gradient.
    """
    moved = {name: p.clone() for name, p in theta.items()}
    change: Params | None = None
    for step, batch in enumerate(batches(block, work)):
        gradients = _gradients(objective, moved, batch)
        for name, gradient in gradients.items():
            if work.prox and step:
                gradient.add_(moved[name] - theta[name], alpha=work.prox)
            if not batch.everybody:
                gradient.mul_(batch.active.reshape(-1, *(1,) * (gradient.dim() - 1)))
            moved[name].sub_(gradient, alpha=lr)
        change = {name: g.mul_(-lr) for name, g in gradients.items()} if step == 0 else None
    return change or {name: moved[name] - p for name, p in theta.items()}


def _gradients(objective: Objective, theta: Params, batch: Batch) -> Params:
    """Each client's gradient, {name: (B, ...)}, free to be overwritten."""
    leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
    with torch.enable_grad():
        total = objective(leaves, batch).sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, (g.contiguous() for g in found), strict=True))


def descend_each_track(objective: Objective, theta: Params, block: Block, work: LocalWork, lr: float) -> Params:
    """`descend_by_autograd` for {name: (B, L, ...)}."""
    return each_track(lambda one: descend_by_autograd(objective, one, block, work, lr), theta)


def each_track(descend: Callable[[Params], Params], theta: Params) -> Params:
    """A function of {name: (B, ...)} applied to {name: (B, L, ...)}, one track after the other."""
    tracks = next(iter(theta.values())).shape[1]
    changes = [descend({name: p[:, track] for name, p in theta.items()}) for track in range(tracks)]
    return {name: torch.stack([change[name] for change in changes], dim=1) for name in theta}
