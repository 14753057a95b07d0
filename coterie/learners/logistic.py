"""Logistic regression, binary and multinomial, with an L2 penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.core.dataset import Profile
from coterie.core.keys import generator
from coterie.errors import ConfigError
from coterie.learners.minimum import Glm
from coterie.learners.network import PlainNetwork, check_penalty


@dataclass(frozen=True)
class Logistic(PlainNetwork):
    """Two classes: {"weight": (d,), "bias": ()}, one logit. C classes: {"weight": (C, d), "bias": (C,)}."""

    width: int
    bias: bool

    @property
    def binary(self) -> bool:
        return self.classes == 2

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        shape = (self.width,) if self.binary else (int(self.classes or 0), self.width)
        rows = [generator(key).standard_normal(shape) / np.sqrt(self.width) for key in keys]
        params = {"weight": torch.from_numpy(np.stack(rows)).to(dtype)}
        if self.bias:
            params["bias"] = torch.zeros((len(keys), *shape[:-1]), dtype=dtype)
        return params

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        weight = theta["weight"][:, None, :] if self.binary else theta["weight"]
        logits = x.flatten(2) @ weight.transpose(1, 2)
        if self.bias:
            bias = theta["bias"][:, None] if self.binary else theta["bias"]
            logits = logits + bias[:, None, :]
        return torch.cat([torch.zeros_like(logits), logits], dim=-1) if self.binary else logits

    def glm(self, block: Block) -> Glm:
        """The local problem, in float64."""
        phi = block.x.double().flatten(2)
        penalty = phi.new_full((self.width,), self.l2)
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], dim=2)
            penalty = torch.cat([penalty, penalty.new_zeros(1)])
        phi = phi if block.mask is None else torch.where(block.mask[..., None], phi, 0)
        return Glm(phi, block.y, block.sizes.double(), penalty, self.classes, 1.0, block.mask)

    def from_coefficients(self, theta: Tensor) -> Params:
        """(B, q, logits), the bias last, as weight and bias."""
        rows = theta[..., 0] if self.binary else theta.transpose(1, 2)
        return {"weight": rows[..., :-1], "bias": rows[..., -1]} if self.bias else {"weight": rows}


def logistic(profile: Profile, *, l2: float = 0.0, bias: bool = True) -> Logistic:
    """Softmax regression on the flattened features; one logit when there are two classes."""
    if profile.classes is None:
        raise ConfigError("logistic predicts classes but the targets are numbers: use linear, or pass integer labels")
    check_penalty("logistic", l2)
    return Logistic(
        classes=max(2, profile.classes),
        spec=f"logistic:l2={l2!r},bias={bias}".lower(),
        dtype=torch.float64,
        l2=l2,
        width=int(np.prod(profile.features)),
        bias=bias,
    )
