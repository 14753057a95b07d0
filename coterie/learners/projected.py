"""Inexact local solutions: projected stochastic gradient descent with steps 1 / (mu t). (Armacki et al., theorem 2)"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from coterie.core.keys import Words, fold
from coterie.learners.minimum import Glm

AT_ONCE = 1024
"""Steps whose samples are drawn together."""


@dataclass(frozen=True)
class ProjectedSgd:
    """theta_t+1 = projection of theta_t - gradient of one sample / (mu t), from zero."""

    radius: float
    """R, of the ball around zero that is projected on: the first steps are 1/mu long and would leave for good."""
    steps: int = 10_000
    """T."""
    mu: float | None = None
    """mu, the strong convexity; None: each client's own, as far as it can be known (`Glm.convexity`)."""
    output: Literal["last", "average"] = "last"
    """The last iterate, or the mean of all with weights t (remark 16)."""

    def settings(self) -> dict[str, Any]:
        """Plain values, from which `ProjectedSgd(**settings)` comes back."""
        return asdict(self)

    def run(self, problem: Glm, keys: Words) -> Tensor:
        """Each client's solution (B, q, columns); not finite for clients whose mu is zero."""
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

    def _step(self, problem: Glm, theta: Tensor, rows: Tensor, pace: Tensor) -> Tensor:
        """One sample a client, `rows` (B,)."""
        every = torch.arange(len(rows), device=rows.device)
        phi, y = problem.phi[every, rows][:, None], problem.y[every, rows][:, None]
        gradient = phi.transpose(1, 2) @ problem.slope(phi @ theta, y) + problem.penalty[:, None] * theta
        moved = theta - pace * gradient
        length = moved.flatten(1).norm(dim=1)[:, None, None]
        return torch.where(length > self.radius, moved * (self.radius / length), moved)


def _drawn(keys: Words, sizes: np.ndarray, first: int, count: int) -> Tensor:
    """The sample of each client in steps first .. first + count - 1, uniform, (B, count)."""
    steps = np.arange(first, first + count, dtype=np.uint64)
    drawn = fold(keys[:, None], steps[None, :]) % sizes.astype(np.uint64)[:, None]
    return torch.from_numpy(drawn.astype(np.int64))
