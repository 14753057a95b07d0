"""Linear representation with a linear head for regression: y = theta^T B^T x.

B (d x c) is the body and theta (c) the head. With `shared=body`, clusters are heads on a common subspace. In addition
to gradient steps, the learner supports `PooledHeads` (`learners/local_training.py`): least squares for a head with the
current B, and the gradient of B with that head, depend on the samples only by one matrix and one vector, which can be
summed over clients.
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
"""Names of B^T (c, d), theta^T (1, c) and the intercept (1,), which the heads of the paper do not have; it is initially
zero and changed by gradient steps only."""
GRAM, CROSS = "gram", "cross"
"""Names of the pooled moments of each cluster: X^T X B (d, c) and X^T y (d,)."""


@dataclass(frozen=True)
class Representation(PlainNetwork):
    """Linear representation; parameters: `body.weight` (c, d), `head.weight` (1, c), `head.bias` (1,)."""

    features_in: int
    """Number of features (d)."""
    width: int
    """Dimension of the subspace (c)."""
    head = "head"

    @property
    def usual_training(self) -> LocalTraining:
        return FULL_BATCHES

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        """Return random models with uniformly distributed orthonormal directions and heads from N(0, I/c)."""
        bases, heads = zip(*(self._draw(generator(key)) for key in keys), strict=True)
        basis, head = (torch.from_numpy(np.stack(drawn)).to(dtype) for drawn in (bases, heads))
        return {BASIS: basis, HEAD: head[:, None], BIAS: torch.zeros(len(keys), 1, dtype=dtype)}

    def _draw(self, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        basis = np.linalg.qr(random.standard_normal((self.features_in, self.width)))[0]
        # in the memory layout of a checkpoint, so that rounding is the same in a resumed run
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
        """Return B theta of each model {name: (S, ...)}, (S, d), without the intercept."""
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
        """Return the sums of changes by gradient steps, or the moments for `PooledHeads`."""
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
    """Linear regression on a subspace with `width` dimensions: y = theta^T B^T x, (1/2) squared loss."""
    features = int(np.prod(profile.features))
    if profile.classes is not None:
        raise ConfigError("representation predicts numbers but the labels are classes: use mlp, or pass float targets")
    if not 1 <= width <= features:
        raise ConfigError(f"representation: width must be between 1 and the {features} features, got {width}")
    spec = f"representation:width={width}"
    return Representation(None, spec, torch.float64, 0.0, features, width)
