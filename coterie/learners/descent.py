"""Local work: full-batch or mini-batch gradient steps, the same for every client and its own randomness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.keys import Purpose, fold, permutations
from coterie.learners.augment import augment


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
    """mu: pulls the local model back to the received one by (mu/2) ||theta - theta_received||^2, or to another."""
    implicit: bool = False
    """One proximal step, argmin of the loss plus ||theta - theta_received||^2 / (2 lr), instead of gradient steps; for
    learners that can solve it."""
    order: Literal["together", "heads-first", "solved-heads"] = "together"
    """Where clusters share a body and clients train all heads: steps on both at once, or on the heads first, with
    features as they are, and then on the body. `solved-heads`: no steps, clients only pool what the server needs to
    solve for the heads and to step on the body; for a learner that can (`learners/representation.py`)."""
    augment: str = "none"
    """Random changes of the images in every step, names separated by commas; `none`: they are taken as they are."""

    @property
    def full_batch_steps(self) -> int | None:
        """How many steps on one and the same full batch this is; None for mini-batches and changing images."""
        if self.batch_size is not None or self.augment != "none":
            return None
        return self.steps if self.steps is not None else self.epochs

    def settings(self) -> dict[str, int | float | str | None]:
        """Plain values, from which `LocalWork(**settings)` comes back."""
        return asdict(self)


@dataclass(frozen=True)
class Batch:
    """One gradient step of every client in a block."""

    x: Tensor
    y: Tensor
    share: Tensor
    """(B, b) what each sample counts in its client's loss: 1/b for b real samples, times its focus; 0 for padding."""
    counts: Tensor
    """(B,) how many real samples there are; 0 for clients that have finished, which take no step."""
    everybody: bool
    """Whether all clients take this step."""
    shares: Tensor | None = None
    """(B, b, K) what each sample counts for each of several models, its share in the mean included."""


def batches(block: Block, work: LocalWork, planned: Schedule | None = None) -> Iterator[Batch]:
    """The steps of one round, in order; `planned`, if the samples of all steps are known already."""
    steps = work.full_batch_steps
    if steps is None:
        yield from _mini_batches(block, work, planned or schedule(block, work))
        return
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = real.to(block.x.dtype) / block.counts[:, None]
    if block.focus is not None:
        share = share * block.focus
    shares = None if block.shares is None else block.shares * share[..., None]
    for _ in range(steps):
        yield Batch(block.x, block.y, share, block.counts, everybody=True, shares=shares)


@dataclass(frozen=True)
class Schedule:
    """Which samples of a block each of T mini-batches takes.

    Made for all steps at once: step by step it would cost more than the steps of a small model.
    """

    index: Tensor
    """(T, B b) among all samples of the block."""
    taken: npt.NDArray[np.int64]
    """(T, B, b) among those of each client."""
    y: Tensor
    """(T, B, b), as what follows: see `Batch`."""
    share: Tensor
    counts: Tensor
    everybody: list[bool]
    shares: Tensor | None


def schedule(block: Block, work: LocalWork) -> Schedule:
    """Each client walks through its own shuffled passes; a pass ends with a short batch."""
    sizes, width = block.sizes.cpu().numpy(), block.y.shape[1]
    size = min(work.batch_size or width, width)
    per_pass = -(-sizes // size)
    last = np.full(len(sizes), work.steps) if work.steps is not None else per_pass * (work.epochs or 0)
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
    return Schedule(
        index,
        taken,
        block.y.flatten()[index].reshape(taken.shape),
        share,
        torch.from_numpy(counts).to(block.x),
        counts.all(axis=1).tolist(),
        None if block.shares is None else _several(block.shares, index, share),
    )


def _several(shares: Tensor, index: Tensor, share: Tensor) -> Tensor:
    """(T, B, b, K) of (B, n, K), with the samples of a model side by side: so they are used."""
    found = shares.flatten(0, 1).index_select(0, index.flatten()).reshape(*share.shape, -1)
    return (found.transpose(2, 3) * share[:, :, None]).transpose(2, 3)


def _mini_batches(block: Block, work: LocalWork, planned: Schedule) -> Iterator[Batch]:
    x, several = block.x.flatten(0, 1), planned.shares
    for step, rows in enumerate(planned.index.unbind()):
        images = x.index_select(0, rows).reshape(*planned.taken.shape[1:], *x.shape[1:])
        if work.augment != "none":
            keys = fold(block.keys[:, None], int(Purpose.AUGMENTATION), step, planned.taken[step].astype(np.uint64))
            images = augment(images, work.augment, keys)
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
    """What a client's local steps brought."""

    change: Params
    """By how much its models moved, {name: (B, ...)} or {name: (B, L, ...)}."""
    loss: Tensor | None
    """Mean loss of the samples stepped on, each under the model of that moment, (B,) or (B, L); without the terms
    that only pull (l2, prox). None for full-batch steps: there the loss under the model received is the measure."""


class RunningLoss:
    """The mean loss over the mini-batches of a round as they are stepped on."""

    def __init__(self, work: LocalWork) -> None:
        self.wanted = work.full_batch_steps is None
        self.losses: list[Tensor] = []
        self.counts: list[Tensor] = []

    def add(self, loss: Tensor, batch: Batch) -> None:
        """The clients' mean losses (B,) on a batch."""
        self.losses.append(loss)
        self.counts.append(batch.counts)

    def mean(self) -> Tensor | None:
        """The mean over all samples visited, (B,)."""
        if not self.wanted:
            return None
        losses, counts = torch.stack(self.losses), torch.stack(self.counts)
        return torch.where(counts > 0, losses * counts, 0).sum(dim=0) / counts.sum(dim=0)


Objective = Callable[[Params, Batch], tuple[Tensor, Tensor]]
"""Each client's local objective on a batch, and the mean loss in it, (B,) both."""


def descend_by_autograd(
    objective: Objective, theta: Params, block: Block, work: LocalWork, lr: float, towards: Params | None = None
) -> Descent:
    """Gradient descent for every client at once, from `theta` {name: (B, ...)}; `prox` pulls to it, or to `towards`,
    and then only those that are named there.

    Clients are independent, so one backward pass through the sum of their objectives gives each its own
    gradient. After a single step the change is exactly -lr times the gradient.
    """
    moved = {name: p.clone() for name, p in theta.items()}
    change: Params | None = None
    running = RunningLoss(work)
    centre = theta if towards is None else towards
    for step, batch in enumerate(batches(block, work)):
        gradients, loss = _gradients(objective, moved, batch)
        if running.wanted:
            running.add(loss, batch)
        for name, gradient in gradients.items():
            if work.prox and name in centre and (step or towards is not None):
                gradient.add_(moved[name] - centre[name], alpha=work.prox)
            if not batch.everybody:
                gradient.mul_((batch.counts > 0).reshape(-1, *(1,) * (gradient.dim() - 1)))
            moved[name].sub_(gradient, alpha=lr)
        change = {name: g.mul_(-lr) for name, g in gradients.items()} if step == 0 else None
    return Descent(change or {name: moved[name] - p for name, p in theta.items()}, running.mean())


def _gradients(objective: Objective, theta: Params, batch: Batch) -> tuple[Params, Tensor]:
    """Each client's gradient, {name: (B, ...)}, free to be overwritten, and its loss (B,)."""
    leaves = {name: p.detach().requires_grad_() for name, p in theta.items()}
    with torch.enable_grad():
        values, losses = objective(leaves, batch)
        total = values.sum()
    found = torch.autograd.grad(total, list(leaves.values()), allow_unused=True, materialize_grads=True)
    return dict(zip(leaves, (g.contiguous() for g in found), strict=True)), losses.detach()


def descend_each_track(
    objective: Objective, theta: Params, block: Block, work: LocalWork, lr: float, towards: Params | None = None
) -> Descent:
    """`descend_by_autograd` for {name: (B, L, ...)}."""
    return each_track(lambda one, to: descend_by_autograd(objective, one, block, work, lr, to), theta, towards)


def each_track(
    descend: Callable[[Params, Params | None], Descent], theta: Params, towards: Params | None = None
) -> Descent:
    """A descent of {name: (B, ...)} applied to {name: (B, L, ...)}, one track after the other."""
    tracks = next(iter(theta.values())).shape[1]
    done = [descend(_track(theta, track), towards and _track(towards, track)) for track in range(tracks)]
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: _side_by_side([one.change[name] for one in done]) for name in theta}
    return Descent(change, _side_by_side(losses) if losses else None)


def one_by_one(descend: Callable[[slice, Block], Descent], block: Block) -> Descent:
    """A descent of some rows of a block, applied to one client after the other, without padding: only one client's
    activations are held at a time."""
    done = [descend(slice(b, b + 1), block.alone(b)) for b in range(len(block.positions))]
    losses = [one.loss for one in done if one.loss is not None]
    change = {name: torch.cat([one.change[name] for one in done]) for name in done[0].change}
    return Descent(change, torch.cat(losses) if losses else None)


def _track(theta: Params, track: int) -> Params:
    return {name: p[:, track] for name, p in theta.items()}


def _side_by_side(tracks: list[Tensor]) -> Tensor:
    """(B, ...) for each track to (B, L, ...); a single one is not copied."""
    return tracks[0][:, None] if len(tracks) == 1 else torch.stack(tracks, dim=1)
