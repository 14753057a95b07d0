"""Normalisations that know no other sample: sound for small batches, for averaging and for torch.func."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from coterie.errors import ConfigError, unknown_name

CHANNELS = 8
"""All numbers of channels are multiples of this, and `group` normalises so many of them together."""

EPSILON = 1e-5

Norm = Callable[[int], nn.Module]
"""A layer for a number of channels; its arrays are called as those of torch's BatchNorm2d."""


class GroupNorm(nn.GroupNorm):
    """torch's own, also for images with channels last in memory under vmap."""

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, H, W) to the same shape."""
        # group_norm asks how the image lies in memory, which vmap cannot answer; what it calls then needs no answer
        n, channels, height, width = x.shape
        sizes = (n, channels, height * width, self.num_groups)
        return torch.native_group_norm(x, self.weight, self.bias, *sizes, self.eps)[0]


class FrozenBatchNorm(nn.Module):
    """Batch normalisation by stored statistics, scale and shift: a fixed affine map of each channel."""

    weight: Tensor
    bias: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        for name, fill in {"weight": 1.0, "bias": 0.0, "running_mean": 0.0, "running_var": 1.0}.items():
            self.register_buffer(name, torch.full((channels,), fill))

    def forward(self, x: Tensor) -> Tensor:
        """(n, channels, H, W) to the same shape."""
        scale = self.weight * (self.running_var + EPSILON).rsqrt()
        shift = self.bias - self.running_mean * scale
        return x * scale[:, None, None] + shift[:, None, None]


NORMS: dict[str, Norm] = {
    "group": lambda channels: GroupNorm(channels // CHANNELS, channels, EPSILON),
    "layer": lambda channels: GroupNorm(1, channels, EPSILON),
    "frozen-batch": FrozenBatchNorm,
}


def find_norm(name: str) -> Norm:
    """The normalisation of that name."""
    if name not in NORMS:
        raise unknown_name("norm", name, NORMS)
    return NORMS[name]


WIDEST = 4
"""Of resnet18, which then has 180 million parameters."""


def check_width(learner: str, width: float) -> None:
    """Refuse a multiplier of the channels that is not positive, no number, or makes models that no memory holds."""
    if not 0 < width <= WIDEST:
        raise ConfigError(
            f"{learner}: width must be a positive number that multiplies all channels, got {width}: at most {WIDEST}"
        )


def scaled(channels: int, width: float) -> int:
    """width times the channels, as the nearest multiple of 8 that does not take away more than a tenth."""
    nearest = max(CHANNELS, int(channels * width + CHANNELS / 2) // CHANNELS * CHANNELS)
    return nearest if nearest >= 0.9 * channels * width else nearest + CHANNELS
