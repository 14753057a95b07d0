"""An anchor's own step in moment descent."""

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
"""How far an anchor moves: see `AnchorStep.rule`."""


@register("anchor-step")
@dataclass(frozen=True)
class AnchorStep(Task):
    """Rows: each anchor's next estimate `anchor` (m, p), and `sigma` (m,), the length of its Sigma (theta* - theta).

    Each is sent its own `anchor` (m, p), `basis` (m, p, q) and `floor` (m,): with a smaller sigma it stays where it is.
    """

    fresh: int | None = None
    """l: every iteration takes 2 l of the anchor's samples, paired as in the paper; None: all samples each time."""
    iteration: int = 0
    """Number of the iteration, which selects the fresh samples."""
    rule: StepRule = "paper"
    """paper: along the leading direction by the scalar `step` times sigma. line-search: along the same direction to the
    least squared error of the anchor's samples. least-squares: to the least squared error over the whole subspace, with
    a ridge of q mean squares over n samples."""

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
            move = torch.where((length > floor)[:, None], move, 0)  # NaN, after an overflow, does not move either
            moved[places] += (basis @ move[..., None]).squeeze(2)
            sigma[places] = length.double().cpu()
        return Reply(clients=shard.ids, rows={"anchor": moved, "sigma": sigma})

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        anchor = broadcast.each["anchor"]
        return Expected(rows={"anchor": Spec(tuple(anchor.shape[1:]), anchor.dtype), "sigma": Spec((), low=0)})


def _fresh(shard: Shard, pairs: int, iteration: int) -> Shard:
    """Return the 2 l samples of each client that this iteration may use."""
    starts = shard.starts + 2 * pairs * iteration
    return replace(shard, starts=starts, stops=starts + 2 * pairs)


def _within(z: Tensor, block: Block) -> Tensor:
    """Return the projected features without padding."""
    return z if block.mask is None else z * block.mask[..., None]


def _line_search(z: Tensor, gradients: Tensor, direction: Tensor) -> Tensor:
    """Return the step along `direction` (B, q) to the least squared error of the samples; none backwards."""
    along = ((z @ direction[..., None]) ** 2).sum(dim=(1, 2))
    fall = (gradients.sum(dim=1) * direction).sum(dim=1)
    pace = torch.where(along > 0, fall / along.clamp_min(torch.finfo(z.dtype).tiny), 0).clamp_min(0)
    return direction * pace[:, None]


def _ridge(z: Tensor, gradients: Tensor, counts: Tensor) -> Tensor:
    """Return the step (B, q) to the least squared error in the subspace, with a ridge of q / n times the mean square.

    An anchor with few samples for each of the q directions shrinks its step by n / (n + q); the iterations make up for
    it.
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
    """Return the leading left singular vector (B, q), turned to `towards`, and the root of its singular value (B,).

    This is what power iteration on A A^T tends to; its eigenvalue is the fourth power of the length sought. A
    singular vector has no sign, so the mean of the anchor's own gradients gives it one.
    """
    known = matrix.isfinite().flatten(1).all(dim=1)  # after an overflow there is no decomposition
    left, values, _ = torch.linalg.svd(torch.where(known[:, None, None], matrix, 0))
    direction = left[:, :, 0]
    away = (direction * towards).sum(dim=1, keepdim=True) < 0
    return torch.where(away, -direction, direction), torch.where(known, values[:, 0].sqrt(), torch.nan)
