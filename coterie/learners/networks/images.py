"""What every network for images expects of its samples."""

from __future__ import annotations

from torch import Tensor

from coterie.core.dataset import Profile
from coterie.errors import ConfigError


def image_shape(profile: Profile, learner: str, smallest: int = 1) -> tuple[int, int, int]:
    """(channels, H, W) of the samples; refuses what is no image or is too small."""
    shape = profile.features if len(profile.features) == 3 else (1, *profile.features)
    if len(shape) != 3 or min(shape[1:]) < smallest:
        size = f", at least {smallest}x{smallest}" if smallest > 1 else ""
        raise ConfigError(
            f"{learner} needs images of shape (H, W) or (channels, H, W){size}, not {profile.features}: use mlp"
        )
    channels, height, width = shape
    return channels, height, width


def with_channels(x: Tensor) -> Tensor:
    """(n, H, W) or (n, channels, H, W) to (n, channels, H, W), channels last in memory.

    torch's pooling, depthwise convolutions and normalisations are vectorised over channels that lie side by side; its
    other convolutions are no slower.
    """
    return (x[..., None] if x.dim() == 3 else x.movedim(1, -1).contiguous()).movedim(-1, 1)
