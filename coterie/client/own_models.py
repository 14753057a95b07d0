"""Models near the pooled model of a diagnosis: their losses, derivatives and posterior modes for each client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.client.aspects import Samples, log_loss, on_cpu, residuals, samples_of
from coterie.core.blocks import cut
from coterie.core.keys import Purpose, generator, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.shard import Shard

FOLDS = 5
"""Number of parts into which the samples of every client are split for cross-validation."""
NEWTON_STEPS = 12
"""Most Newton steps to a posterior mode."""
HALVINGS = 6
"""Most times that the length of a Newton step is divided by 4 until the objective grows."""
SETTLED = 1e-3
"""Length of a Newton step that is the last; the error is about its square."""


@dataclass(frozen=True)
class NearbyModels:
    """The pooled model plus a change along a few directions, on the samples of a block."""

    samples: Samples
    broadcast: Broadcast
    base: Tensor
    """Linear predictor of the pooled model, (B, n, c)."""
    jacobian: Tensor
    """Derivative of the linear predictor by the change, (B, n, c, r)."""

    @classmethod
    def of(cls, samples: Samples, broadcast: Broadcast) -> NearbyModels:
        """Return the models along `directions` (p, r) of a broadcast."""
        design, model = samples.ones_and_z, broadcast.common["model"]
        k, c = model.shape
        along = broadcast.common["directions"].reshape(k, -1)  # row-major in (c, r)
        return cls(samples, broadcast, design @ model, (design @ along).unflatten(2, (c, -1)))

    def _predictor(self, change: Tensor) -> Tensor:
        return self.base + torch.einsum("bncr,br->bnc", self.jacobian, change)

    def losses(self, change: Tensor) -> Tensor:
        """Return the loss of every sample with changes (B, r), (B, n): log loss, or half the squared residual."""
        predictor = self._predictor(change)
        if "contrast" in self.broadcast.common:
            return log_loss(self.samples, self.broadcast, predictor)
        residual, _ = residuals(self.samples, self.broadcast, predictor)
        return residual[..., 0].pow(2) / 2

    def derivatives(self, change: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return minus the gradient of the loss of every sample (B, n, r), and the sum of the Hessians (B, r, r).

        Args:
            change: Changes, (B, r).
            kept: 1 for samples that count, else 0, (B, n).
        """
        residual, spread = residuals(self.samples, self.broadcast, self._predictor(change))
        jacobian = self.jacobian * kept[..., None, None]
        bent = self.jacobian if spread is None else spread @ self.jacobian
        score = (residual[..., None] * jacobian).sum(dim=2)
        return score, jacobian.flatten(1, 2).transpose(1, 2) @ bent.flatten(1, 2)

    def posterior_modes(self, precision: Tensor, kept: Tensor) -> Tensor:
        """Return the change (B, r) with the greatest likelihood times normal prior, for each client.

        Newton steps whose length is reduced until the objective does not decrease.

        Args:
            precision: Precision of the prior along each direction, (r,).
            kept: 1 for samples that count, else 0, (B, n).
        """

        def objective(change: Tensor) -> Tensor:
            return (self.losses(change) * kept).sum(dim=1) + (precision * change.pow(2)).sum(dim=1) / 2

        change = self.base.new_zeros(len(self.base), len(precision))
        value = objective(change)
        for _ in range(NEWTON_STEPS):
            score, hessian = self.derivatives(change, kept)
            step = newton_step(score.sum(dim=1), hessian, change, precision)
            for _ in range(HALVINGS):
                tried = objective(change + step)
                worse = tried > value + 1e-9 * value.abs()
                if not bool(worse.any()):
                    break
                step = torch.where(worse[:, None], step / 4, step)
            better = tried <= value + 1e-9 * value.abs()
            change = torch.where(better[:, None], change + step, change)
            value = torch.where(better, tried, value)
            if float((step.norm(dim=1) * better).max()) < SETTLED:
                break
        return change


def newton_step(score: Tensor, hessian: Tensor, change: Tensor, precision: Tensor) -> Tensor:
    """Return the Newton step (..., r) for a likelihood with this score and Hessian and a normal prior."""
    step: Tensor = torch.linalg.solve(hessian + torch.diag(precision), (score - precision * change)[..., None])
    return step[..., 0]


def folded(shard: Shard, broadcast: Broadcast, seed: int) -> Iterator[tuple[Samples, Tensor]]:
    """Yield the clients of a shard in blocks, with the fold of every sample, (B, n); -1 where padded.

    The samples of each client are dealt to the folds in an order that depends on the seed and the client's id.
    """
    keys = keys_for_clients(seed, Purpose.DIAGNOSIS, 1, shard.hashes)
    for block in cut(on_cpu(shard), keys, 0):
        samples = samples_of(block, broadcast)
        fold = torch.full(samples.valid.shape, -1)
        for b, (key, size) in enumerate(zip(block.keys, block.sizes.tolist(), strict=True)):
            fold[b, :size] = torch.from_numpy(generator(int(key)).permutation(size) % FOLDS)
        yield samples, fold
