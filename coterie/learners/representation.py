"""A linear representation under a linear head: y = theta^T B^T x, for numbers.

B (d x c) is the body and theta in R^c the head, so with `shared=body` clusters are heads on one common subspace.
Beside gradient steps it pools: what least squares for a head on the current B, and the gradient of B under that head,
need from the samples is one matrix and one vector, which can be added over clients (`PooledHeads` in
`learners/local_training.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.dataset import Profile
from coterie.core.keys import generator
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, weigh
from coterie.learners.descent import full_batch
from coterie.learners.export_modules import layers
from coterie.learners.local_training import FULL_BATCHES, LocalTraining
from coterie.learners.network import PlainNetwork

BASIS, HEAD, BIAS = "body.weight", "head.weight", "head.bias"
"""B^T (c, d), theta^T (1, c), and an intercept (1,) that starts at zero: the paper's heads have none, and only gradient
steps move it."""
GRAM, CROSS = "gram", "cross"
"""What is pooled, by cluster: X^T X B (d, c) and X^T y (d,)."""


@dataclass(frozen=True)
class Representation(PlainNetwork):
    """A model is {"body.weight": (c, d), "head.weight": (1, c), "head.bias": (1,)}."""

    features_in: int
    """d"""
    width: int
    """c"""
    head = "head"

    @property
    def usual_training(self) -> LocalTraining:
        return FULL_BATCHES

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """Orthonormal directions, uniformly, and a head N(0, I/c)."""
        bases, heads = zip(*(self._draw(generator(key)) for key in keys), strict=True)
        basis, head = (torch.from_numpy(np.stack(drawn)).to(dtype) for drawn in (bases, heads))
        return {BASIS: basis, HEAD: head[:, None], BIAS: torch.zeros(len(keys), 1, dtype=dtype)}

    def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        basis = np.linalg.qr(random.standard_normal((self.features_in, self.width)))[0]
        # laid out as a checkpoint gives it back, so that a resumed run rounds alike
        return np.ascontiguousarray(basis.T), random.standard_normal(self.width) / np.sqrt(self.width)

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return x.flatten(2) @ theta[BASIS].transpose(1, 2)

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return (self.features(theta, x) @ theta[HEAD].transpose(1, 2) + theta[BIAS][:, None]).squeeze(-1)

    def network(self, model: Params) -> nn.Module:
        body = nn.Linear(self.features_in, self.width, bias=False)
        head = nn.Linear(self.width, 1)
        return layers([("flatten", nn.Flatten()), ("body", body), ("head", head), ("squeeze", nn.Flatten(0))], model)

    def coefficients(self, models: Params) -> Tensor:
        """B theta of each model {name: (S, ...)}, (S, d); the intercept is left out."""
        return (models[HEAD] @ models[BASIS])[:, 0]

    def contribute(
        self,
        models: Params,
        rows: Tensor,
        block: Block,
        training: LocalTraining,
        lr: float,
        mass: Tensor,
        memo: Tensor | None,
    ) -> Contribution:
        """Return changes by gradient steps, or for `PooledHeads` the moments from which the server solves for heads."""
        if not training.pools_heads:
            return super().contribute(models, rows, block, training, lr, mass, memo)
        x, share = block.x.flatten(2), full_batch(block).share
        basis = take_rows({BASIS: models[BASIS]}, rows)[BASIS]  # (B, R, c, d)
        weighted = (x * share[..., None]).transpose(1, 2)[:, None]  # (B, 1, d, n)
        gram = weighted @ (x[:, None] @ basis.transpose(2, 3))
        cross = (weighted @ block.y[:, None, :, None])[..., 0].expand(*rows.shape, -1)
        given = weigh({GRAM: gram, CROSS: cross}, rows, mass, len(models[BASIS]), "moments")
        return replace(given, pooled=True)


def representation(profile: Profile, *, width: int = 4) -> Representation:
    """Linear regression through `width` common directions: y = theta^T B^T x, (1/2) squared loss."""
    features = int(np.prod(profile.features))
    if profile.classes is not None:
        raise ConfigError("representation predicts numbers but the labels are classes: use mlp, or pass float targets")
    if not 1 <= width <= features:
        raise ConfigError(f"representation: width must be between 1 and the {features} features, got {width}")
    spec = f"representation:width={width}"
    return Representation(None, spec, torch.float64, 0.0, features, width)
