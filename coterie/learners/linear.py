"""Linear regression, with or without a bias and a polynomial feature map; local steps in closed form.

loss = (1/2) (y - <phi(x), theta>)^2 by default; `half=false` drops the 1/2, so the gradient doubles (the
convention of the IFCA paper).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.keys import generator
from coterie.core.population import Profile
from coterie.errors import ConfigError, unknown_name
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Batch, LocalWork, descend_each_track
from coterie.learners.losses import squared


@dataclass(frozen=True)
class Linear:
    """A model is {"weight": (p,)} plus "bias" () if asked for; p monomials of the d features."""

    width: int
    """d, the number of raw features."""
    bias: bool = False
    degree: int = 1
    half: bool = True
    scale: float = 1.0
    draw: str = "normal"
    """A random start is scale * N(0, I/p), or scale times independent zeros and ones (`zero-one`)."""

    classes: int | None = None
    dtype: torch.dtype = torch.float64

    @property
    def spec(self) -> str:
        form = f"bias={self.bias},degree={self.degree},half={self.half}".lower()
        return f"linear:{form},scale={self.scale!r},start={self.draw}"

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        terms = self.features(torch.zeros(1, 1, self.width)).shape[-1] - self.bias
        rows = [self._drawn(generator(key), terms) * self.scale for key in keys]
        params = {"weight": torch.from_numpy(np.stack(rows)).to(dtype)}
        return params | {"bias": torch.zeros(len(keys), dtype=dtype)} if self.bias else params

    def _drawn(self, random: np.random.Generator, terms: int) -> np.ndarray:
        if self.draw == "zero-one":
            return random.integers(0, 2, terms).astype(np.float64)
        return np.asarray(random.standard_normal(terms) / np.sqrt(terms))

    def features(self, x: Tensor) -> Tensor:
        """phi(x), (B, n, ...) to (B, n, p), with a last column of ones if there is a bias."""
        flat = x.flatten(2)
        columns = [flat]
        for degree in range(2, self.degree + 1):
            chosen = torch.tensor(list(combinations_with_replacement(range(flat.shape[2]), degree)))
            columns.append(flat[..., chosen].prod(dim=-1))
        if self.bias:
            columns.append(torch.ones_like(flat[..., :1]))
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)

    def _vector(self, theta: Params) -> Tensor:
        """Weight and bias as one vector, (..., p)."""
        return torch.cat([theta["weight"], theta["bias"][..., None]], dim=-1) if self.bias else theta["weight"]

    def _named(self, vector: Tensor) -> Params:
        return {"weight": vector[..., :-1], "bias": vector[..., -1]} if self.bias else {"weight": vector}

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return torch.matmul(self.features(x), self._vector(theta)[..., None]).squeeze(-1)

    def losses(self, theta: Params, x: Tensor, y: Tensor) -> Tensor:
        return squared(self.outputs(theta, x), y, self.half)

    def score(self, models: Params, block: Block) -> Scored:
        """The memo holds the predictions, (B, n, S)."""
        phi = self.features(block.x)
        by_model = self._vector(models) @ phi.flatten(0, 1).T  # few models, many samples: rows are the faster way round
        predictions = by_model.reshape(-1, *block.y.shape).permute(1, 2, 0)
        return Scored(squared(predictions, block.y[..., None], self.half), predictions)

    def descend(self, theta: Params, block: Block, work: LocalWork, lr: float) -> Params:
        steps = work.full_batch_steps
        if steps is None:
            return descend_each_track(self._objective, theta, block, work, lr)
        phi = self.features(block.x)
        return self._closed_form(phi, self._vector(theta) @ phi.transpose(1, 2), block, work, steps, lr)

    def contribute(
        self, models: Params, rows: Tensor, block: Block, work: LocalWork, lr: float, mass: Tensor, memo: Tensor | None
    ) -> Contribution:
        steps = work.full_batch_steps
        if memo is None or steps is None:
            change = self.descend({name: p[rows] for name, p in models.items()}, block, work, lr)
        else:
            chosen = memo.gather(2, rows[:, None].expand(-1, memo.shape[1], -1)).transpose(1, 2)
            change = self._closed_form(self.features(block.x), chosen, block, work, steps, lr)
        return weigh(change, rows, mass, models["weight"].shape[0])

    def _closed_form(
        self, phi: Tensor, predictions: Tensor, block: Block, work: LocalWork, steps: int, lr: float
    ) -> Params:
        """Full-batch steps from predictions (B, L, n) on features phi (B, n, p)."""
        residual = predictions - block.y[:, None]
        if block.mask is not None:
            phi = phi * block.mask[..., None]
            residual = residual * block.mask[:, None]
        rate = (lr * (1 if self.half else 2) / block.counts)[:, None, None]
        steps_in_closed_form = _steps_in_sample_space if phi.shape[1] <= phi.shape[2] else _steps_in_feature_space
        return self._named(steps_in_closed_form(phi, residual, rate, lr * work.prox, steps))

    def _objective(self, theta: Params, batch: Batch) -> Tensor:
        return (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)


# Models are rows below: a row times a small matrix is two to three times faster here than the matrix times a column.


def _steps_in_sample_space(phi: Tensor, residual: Tensor, rate: Tensor, pull: float, steps: int) -> Tensor:
    """The change is u phi; the residual moves by the Gram matrix phi phi^T (n x n) and theta is never touched."""
    u = -rate * residual
    if steps > 1:
        gram = phi @ phi.transpose(1, 2)
        for _ in range(steps - 1):
            u = (1 - pull) * u - rate * (residual + u @ gram)
    return u @ phi


def _steps_in_feature_space(phi: Tensor, residual: Tensor, rate: Tensor, pull: float, steps: int) -> Tensor:
    """More samples than features: the gradient moves by the moment matrix phi^T phi (p x p)."""
    gradient = residual @ phi
    change = -rate * gradient
    if steps > 1:
        moment = phi.transpose(1, 2) @ phi
        for _ in range(steps - 1):
            change = (1 - pull) * change - rate * (gradient + change @ moment)
    return change


def linear(
    profile: Profile,
    *,
    bias: bool = False,
    degree: int = 1,
    half: bool = True,
    scale: float = 1.0,
    start: str = "normal",
) -> Linear:
    """Least squares on the raw features, or on all their monomials up to `degree`.

    A random start is normal or zero-one, times `scale`.
    """
    if degree < 1:
        raise ConfigError(f"linear: degree must be at least 1, got {degree}")
    if not 0 <= scale < np.inf:
        raise ConfigError(f"linear: scale must be a finite number of at least 0, got {scale}")
    if start not in ("normal", "zero-one"):
        raise unknown_name("start of learner linear", start, ("normal", "zero-one"))
    if profile.classes is not None:
        raise ConfigError("linear predicts numbers but the labels are classes: use logistic, or pass float targets")
    width = int(np.prod(profile.features))
    return Linear(width, bias=bias, degree=degree, half=half, scale=scale, draw=start)
