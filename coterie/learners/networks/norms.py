"""Normalisation of single samples, which suits small batches, averaging over clients and `torch.func`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, unknown_name

CHANNELS = 8
"""Number of channels in a group of `group` normalisation; all numbers of channels are multiples of it."""

EPSILON = 1e-5
"""Number that is added to the variance for numerical stability."""

Norm = Callable[[int], nn.Module]
"""Function that returns a layer for a number of channels; its arrays are named like those of `BatchNorm2d`."""


class GroupNorm(nn.GroupNorm):
    """Group normalisation of torch that also works for channels-last images in vmap."""

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised activations, (n, channels, H, W)."""
        # group_norm queries the memory layout, which vmap does not support; native_group_norm does not need it
        n, channels, height, width = x.shape
        sizes = (n, channels, height * width, self.num_groups)
        return torch.native_group_norm(x, self.weight, self.bias, *sizes, self.eps)[0]


class FrozenBatchNorm(nn.Module):
    """Batch normalisation with stored statistics, scale and shift, which is a fixed affine map of each channel."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, fill in {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.items():
            self.register_buffer(name, torch.full((channels,), fill))

    def forward(self, x: Tensor) -> Tensor:
        """Return normalised activations, (n, channels, H, W)."""
        scale = self.weight * (self.running_var + EPSILON).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


NORMS: dict[str, Norm] = {
    "group": lambda channels: GroupNorm(channels // CHANNELS, channels, EPSILON),
    "layer": lambda channels: GroupNorm(1, channels, EPSILON),
    "frozen-batch": FrozenBatchNorm,
}


def find_norm(name: str) -> Norm:
    """Return the normalisation with this name.

    Raises:
        ConfigError: if the name is unknown.
    """
    if name not in NORMS:
        raise unknown_name("norm", name, NORMS)
    return NORMS[name]


WIDEST = 4
"""Maximum multiplier of channels, with which resnet18 has 180 million parameters."""


def check_width(learner: str, width: float) -> None:
    """Raise ConfigError for a multiplier of channels that is not positive, not a number, or too large for memory."""
    if not 0 < width <= WIDEST:
        raise ConfigError(
            f"{learner}: width must be a positive number that multiplies all channels, got {width}: at most {WIDEST}"
        )


def scaled(channels: int, width: float) -> int:
    """Return the number of channels times `width`, rounded to a multiple of 8 that is at most a tenth smaller."""
    nearest = max(CHANNELS, int(channels * width + CHANNELS / 2) // CHANNELS * CHANNELS)
    return nearest if nearest >= 0.9 * channels * width else nearest + CHANNELS
