"""A multi-layer perceptron with ReLU, batched over clients: one matrix product for all of a block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Params
from coterie.core.keys import generator
from coterie.core.population import Profile
from coterie.errors import ConfigError
from coterie.learners.network import Network, check_penalty


@dataclass(frozen=True)
class MLP(Network):
    """Layers `layer0`, `layer1`, ...; each has "layerI.weight" (out, in) and "layerI.bias" (out,)."""

    widths: tuple[int, ...]
    """Input, hidden and output widths."""

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        drawn = [self._draw(generator(key)) for key in keys]
        return {name: torch.from_numpy(np.stack([d[name] for d in drawn])).to(dtype) for name in drawn[0]}

    def _draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """U(-1/sqrt(in), 1/sqrt(in)) for weights and biases, as torch.nn.Linear does."""
        params = {}
        for index, (inside, outside) in enumerate(pairwise(self.widths)):
            bound = 1 / np.sqrt(inside)
            params[f"layer{index}.weight"] = random.uniform(-bound, bound, (outside, inside))
            params[f"layer{index}.bias"] = random.uniform(-bound, bound, outside)
        return params

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        h = x.flatten(2)
        last = len(self.widths) - 2
        for index in range(last + 1):
            weight, bias = theta[f"layer{index}.weight"], theta[f"layer{index}.bias"]
            h = torch.baddbmm(bias[:, None, :], h, weight.transpose(1, 2))
            if index < last:
                h = torch.relu(h)
        return h.squeeze(-1) if self.classes is None else h


def mlp(profile: Profile, *, hidden: tuple[int, ...] = (64,), l2: float = 0.0) -> MLP:
    """Fully connected ReLU layers of the given hidden widths; (1/2) squared loss for numeric targets."""
    if not hidden or min(hidden) < 1:
        raise ConfigError(f"mlp: hidden needs widths of at least 1, such as 64 or 200-100; got {hidden}")
    check_penalty("mlp", l2)
    return MLP(
        classes=profile.classes,
        spec=f"mlp:hidden={'-'.join(map(str, hidden))},l2={l2!r}",
        dtype=torch.float32,
        l2=l2,
        widths=(int(np.prod(profile.features)), *hidden, profile.classes or 1),
    )
