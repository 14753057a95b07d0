"""Inexact local solver: projected stochastic gradient descent with steps 1 / (mu t). (Armacki et al., theorem 2)"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.keys import Words, fold
from coterie.learners.minimum import Glm

AT_ONCE = 1024
"""Number of steps for which samples are drawn together."""


@dataclass(frozen=True)
class ProjectedSgd:
    """Projected stochastic gradient descent from zero: theta_t+1 = projection of theta_t - gradient / (mu t)."""

    radius: float
    """Radius of the ball around zero for the projection (R); without it, the first steps of length 1/mu diverge."""
    steps: int = 10_000
    """Number of steps (T)."""
    mu: float | None = None
    """Strong convexity (mu); None: derived from each client's problem (`Glm.convexity`)."""
    output: Literal["last", "average"] = "last"
    """Solution: the last iterate, or the mean of all iterates with weights t (remark 16)."""

    def settings(self) -> dict[str, Any]:
        """Return the settings as plain values, the keyword arguments of `ProjectedSgd`."""
        return asdict(self)

    def run(self, problem: Glm, keys: Words) -> Tensor:
        """Return the solution of each client, (B, q, columns), which is not finite if its mu is zero.

        Args:
            problem: Local problems of the clients.
            keys: Random key of each client, (B,).
        """
        mu = problem.convexity if self.mu is None else problem.counts.new_full(problem.counts.shape, self.mu)
        theta = problem.phi.new_zeros(len(mu), problem.phi.shape[2], problem.columns)
        average, sizes = torch.zeros_like(theta), problem.counts.long().cpu().numpy()
        for first in range(0, self.steps, AT_ONCE):
            count = min(AT_ONCE, self.steps - first)
            for t, rows in enumerate(_drawn(keys, sizes, first, count).unbind(dim=1), first + 1):
                theta = self._step(problem, theta, rows.to(theta.device), (1 / (mu * t))[:, None, None])
                if self.output == "average":
                    average = average + (theta - average) * (2 / (t + 1))
        return average if self.output == "average" else theta

    def _step(self, problem: Glm, theta: Tensor, rows: Tensor, rate: Tensor) -> Tensor:
        """Return the coefficients after a step with one sample of each client, at `rows` (B,)."""
        every = torch.arange(len(rows), device=rows.device)
        phi, y = problem.phi[every, rows][:, None], problem.y[every, rows][:, None]
        gradient = phi.transpose(1, 2) @ problem.output_gradient(phi @ theta, y) + problem.penalty[:, None] * theta
        moved = theta - rate * gradient
        length = moved.flatten(1).norm(dim=1)[:, None, None]
        return torch.where(length > self.radius, moved * (self.radius / length), moved)


def _drawn(keys: Words, sizes: np.ndarray, first: int, count: int) -> Tensor:
    """Draw the sample of each client in the steps first, ..., first + count - 1, uniformly, (B, count)."""
    steps = np.arange(first, first + count, dtype=np.uint64)
    drawn = fold(keys[:, None], steps[None, :]) % sizes.astype(np.uint64)[:, None]
    return torch.from_numpy(drawn.astype(np.int64))
