"""Step of an anchor client in moment descent."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.residuals import residuals
from coterie.core.blocks import Block, cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.learners.linear import as_linear

StepRule = Literal["least-squares", "line-search", "paper"]
"""Rule for the step of an anchor client; see `AnchorStep.rule`."""


@register("anchor-step")
@dataclass(frozen=True)
class AnchorStep(Task):
    """Step of each anchor client in its subspace.

    Rows: `anchor` (m, p), the next estimate, and `sigma` (m,), the length of Sigma (theta* - theta).

    Each anchor receives its estimate `anchor` (m, p), its `basis` (m, p, q) and its `floor` (m,); it does not move if
    sigma is below the floor.
    """

    fresh: int | None = None
    """Number of pairs of samples (l) of each iteration, which are used only once, as in the paper; None: all samples in
    every iteration."""
    iteration: int = 0
    """Number of the iteration, which determines its samples."""
    rule: StepRule = "paper"
    """Rule for the step. `paper`: along the leading direction, by the scalar `step` times sigma. `line-search`: along
    the same direction, to the smallest squared error of the anchor's samples. `least-squares`: to the smallest squared
    error in the subspace, with a ridge of q mean squares over n samples."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        linear, shard, fresh = as_linear(clients.learner), clients.train, self.fresh
        part = shard if fresh is None else _fresh(shard, fresh, self.iteration)
        moved = broadcast.each["anchor"].clone()
        sigma = torch.zeros(len(shard), dtype=torch.float64)
        for block in cut(part, part.hashes, 0):
            places = torch.from_numpy(block.positions)
            theta, basis = broadcast.each["anchor"][places], broadcast.each["basis"][places]
            phi = linear.features(block.x)
            gradients = (phi @ basis) * residuals(phi, block, theta[:, None])[:, 0, :, None]  # U^T eps_j, (B, n, q)
            matrix = _projected_pairs(gradients, block.counts) if fresh is None else _projected_halves(gradients)
            direction, length = _leading(matrix, gradients.sum(dim=1))
            floor = broadcast.each["floor"][places].to(length)
            if self.rule == "paper":
                move = direction * (broadcast.scalars["step"] * length)[:, None]
            elif self.rule == "line-search":
                move = _line_search(_within(phi @ basis, block), gradients, direction)
            else:
                move = _ridge(_within(phi @ basis, block), gradients, block.counts)
            move = torch.where((length > floor)[:, None], move, 0)  # no move if the length is NaN after an overflow
            moved[places] += (basis @ move[..., None]).squeeze(2)
            sigma[places] = length.double().cpu()
        return Reply(clients=shard.ids, rows={"anchor": moved, "sigma": sigma})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        anchor = broadcast.each["anchor"]
        return Expected(rows={"anchor": Spec(tuple(anchor.shape[1:]), anchor.dtype), "sigma": Spec((), low=0)})


def _fresh(shard: Shard, pairs: int, iteration: int) -> Shard:
    """Return the 2 l samples of each client for this iteration."""
    starts = shard.starts + 2 * pairs * iteration
    return replace(shard, starts=starts, stops=starts + 2 * pairs)


def _within(z: Tensor, block: Block) -> Tensor:
    """Return the projected features without padding."""
    return z if block.mask is None else z * block.mask[..., None]


def _line_search(z: Tensor, gradients: Tensor, direction: Tensor) -> Tensor:
    """Return the step along `direction` (B, q) to the smallest squared error of the samples, never backwards."""
    along = ((z @ direction[..., None]) ** 2).sum(dim=(1, 2))
    fall = (gradients.sum(dim=1) * direction).sum(dim=1)
    pace = torch.where(along > 0, fall / along.clamp_min(torch.finfo(z.dtype).tiny), 0).clamp_min(0)
    return direction * pace[:, None]


def _ridge(z: Tensor, gradients: Tensor, counts: Tensor) -> Tensor:
    """Return the step (B, q) to the smallest squared error in the subspace, with a ridge of q / n mean squares.

    The ridge shrinks the step of an anchor with few samples for each of the q directions by about n / (n + q); further
    iterations compensate for this.
    """
    q = z.shape[2]
    products = z.transpose(1, 2) @ z
    mean = products.diagonal(dim1=1, dim2=2).mean(dim=1)
    ridge = (mean * q / counts).clamp_min(torch.finfo(z.dtype).tiny)
    matrix = products + ridge[:, None, None] * torch.eye(q, dtype=z.dtype, device=z.device)
    known = matrix.isfinite().flatten(1).all(dim=1) & (mean > 0)
    matrix = torch.where(known[:, None, None], matrix, torch.eye(q, dtype=z.dtype, device=z.device))
    solved: Tensor = torch.linalg.solve(matrix, gradients.sum(dim=1))
    return torch.where(known[:, None], solved, 0)


def _projected_pairs(gradients: Tensor, counts: Tensor) -> Tensor:
    """Return (s s^T - sum_j z_j z_j^T) / (n (n - 1)), (B, q, q)."""
    total = gradients.sum(dim=1)
    within = gradients.transpose(1, 2) @ gradients
    return (total[:, :, None] * total[:, None] - within) / (counts * (counts - 1))[:, None, None]


def _projected_halves(gradients: Tensor) -> Tensor:
    """Return (1/l) sum_j z_j z~_j^T over the two halves of the samples, (B, q, q)."""
    half = gradients.shape[1] // 2
    return gradients[:, :half].transpose(1, 2) @ gradients[:, half:] / half


def _leading(matrix: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """Return the leading left singular vector (B, q) and the square root of its singular value (B,).

    This is the limit of power iteration on A A^T, whose eigenvalue is the fourth power of the required length. The sign
    of a singular vector is arbitrary; it is chosen so that the vector points to `towards`, the sum of the gradients.
    """
    known = matrix.isfinite().flatten(1).all(dim=1)  # no decomposition after an overflow
    left, values, _ = torch.linalg.svd(torch.where(known[:, None, None], matrix, 0))
    direction = left[:, :, 0]
    away = (direction * towards).sum(dim=1, keepdim=True) < 0
    return torch.where(away, -direction, direction), torch.where(known, values[:, 0].sqrt(), torch.nan)
