"""Models near the pooled model of a diagnosis: their losses, derivatives and posterior modes for each client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.client.aspects import Samples, on_cpu, part_of, residuals, samples_of
from coterie.core.blocks import cut
from coterie.core.keys import Purpose, generator, keys_for_clients
from coterie.core.messages import Broadcast
from coterie.core.shard import Shard

FOLDS = 10
"""Number of parts into which the samples of every client are split for cross-validation."""
NEWTON_STEPS = 12
"""Largest number of Newton steps to a posterior mode."""
HALVINGS = 6
"""Largest number of times that a Newton step is divided by 4 while it increases the objective."""
SETTLED = 1e-3
"""Length of a Newton step below which the search ends; the error is about its square."""
NUMBERS_AT_ONCE = 4_000_000
"""Number of entries of the Jacobian that are held in memory at once."""


@dataclass(frozen=True)
class NearbyModels:
    """The pooled model plus a change along a few directions, on the samples of a block.

    The outputs are the logits of C classes, or the residual of a regression with C = 1.
    """

    samples: Samples
    base: Tensor
    """Outputs of the pooled model, (B, n, C)."""
    jacobian: Tensor
    """Derivative of the outputs by the change, (B, n, C, r)."""
    classes: bool

    @classmethod
    def of(cls, samples: Samples, broadcast: Broadcast) -> NearbyModels:
        """Return the models along `directions` (p, r) of a broadcast."""
        common = broadcast.common
        design, model = samples.ones_and_z, common["model"]
        k, c = model.shape
        along = common["directions"].reshape(k, c, -1)
        if "contrast" not in common:
            residual, _ = residuals(samples, broadcast, design @ model)
            return cls(samples, residual, -(design @ along[:, 0])[:, :, None], False)
        contrast = common["contrast"]
        along = torch.einsum("kcr,cl->klr", along, contrast)
        jacobian = (design @ along.flatten(1)).reshape(*design.shape[:2], *along.shape[1:])
        return cls(samples, design @ model @ contrast + common["absent"], jacobian, True)

    def _outputs(self, change: Tensor) -> Tensor:
        return self.base + (self.jacobian @ change[:, None, :, None])[..., 0]

    def losses(self, change: Tensor) -> Tensor:
        """Return the loss of every sample with changes (B, r), (B, n): log loss, or half the squared residual."""
        outputs = self._outputs(change)
        if not self.classes:
            return outputs[..., 0].pow(2) / 2
        right = outputs.gather(2, self.samples.block.y[..., None])[..., 0]
        return (torch.logsumexp(outputs, dim=2) - right) * self.samples.valid

    def derivatives(self, change: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return minus the gradient of the loss of every sample (B, n, r), and the sum of the Hessians (B, r, r).

        Args:
            change: Changes, (B, r).
            kept: 1 for samples that count, else 0, (B, n).
        """
        outputs = self._outputs(change)
        if not self.classes:
            row = self.jacobian[:, :, 0] * kept[..., None]
            return -outputs * row, row.transpose(1, 2) @ row
        p = torch.softmax(outputs, dim=2) * kept[..., None]
        mean = (p[..., None, :] @ self.jacobian)[..., 0, :]
        weighted = (self.jacobian * p[..., None]).flatten(1, 2)
        hessian = self.jacobian.flatten(1, 2).transpose(1, 2) @ weighted - mean.transpose(1, 2) @ mean
        index = self.samples.block.y[..., None, None].expand(-1, -1, 1, self.jacobian.shape[3])
        return self.jacobian.gather(2, index)[:, :, 0] * kept[..., None] - mean, hessian

    def posterior_modes(self, precision: Tensor, kept: Tensor, start: Tensor | None = None) -> Tensor:
        """Return the change (B, r) with the largest product of likelihood and normal prior, for each client.

        Newton steps whose length is reduced until the objective does not increase.

        Args:
            precision: Precision of the prior along each direction, (r,).
            kept: 1 for samples that count, else 0, (B, n).
            start: Changes (B, r) from which the search starts; None: 0.
        """

        def objective(change: Tensor) -> Tensor:
            return (self.losses(change) * kept).sum(dim=1) + (precision * change.pow(2)).sum(dim=1) / 2

        change = self.base.new_zeros(len(self.base), len(precision)) if start is None else start
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
            step = torch.where(worse[:, None], 0, step)
            change, value = change + step, torch.where(worse, value, tried)
            if float(step.norm(dim=1).max()) < SETTLED:
                break
        return change


def newton_step(score: Tensor, hessian: Tensor, change: Tensor, precision: Tensor) -> Tensor:
    """Return the Newton step (..., r) for a likelihood with this score and Hessian and a normal prior."""
    step: Tensor = torch.linalg.solve(hessian + torch.diag(precision), (score - precision * change)[..., None])
    return step[..., 0]


def nearby_models(shard: Shard, broadcast: Broadcast, seed: int = 0) -> Iterator[tuple[NearbyModels, Tensor]]:
    """Yield the clients of a shard in blocks, with the fold of every sample, (B, n); -1 where padded.

    The samples of each client are dealt to the folds in an order that depends on the seed and the client's id.
    """
    keys = keys_for_clients(seed, Purpose.DIAGNOSIS, 1, shard.hashes)
    outputs = broadcast.common["contrast"].shape[1] if "contrast" in broadcast.common else 1
    size = outputs * broadcast.common["directions"].shape[1]
    for block in cut(on_cpu(shard), keys, 0):
        width = block.y.shape[1]
        count = max(1, NUMBERS_AT_ONCE // (width * size))
        for first in range(0, len(block.positions), count):
            part = part_of(block, slice(first, first + count))
            fold = torch.full(part.y.shape, -1)
            for b, (key, samples) in enumerate(zip(part.keys, part.sizes.tolist(), strict=True)):
                fold[b, :samples] = torch.from_numpy(generator(int(key)).permutation(samples) % FOLDS)
            yield NearbyModels.of(samples_of(part, broadcast), broadcast), fold
