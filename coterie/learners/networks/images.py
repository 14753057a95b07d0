"""Shape and memory layout of images."""

from __future__ import annotations

from torch import Tensor

from coterie.core.dataset import Profile
from coterie.errors import ConfigError


def image_shape(profile: Profile, learner: str, smallest: int = 1) -> tuple[int, int, int]:
    """Return the shape (channels, H, W) of the samples.

    Args:
        profile: Shape of the samples and number of classes.
        learner: Name of the learner in error messages.
        smallest: Minimum height and width.

    Raises:
        ConfigError: if the samples are not images or too small.
    """
    shape = profile.features if len(profile.features) == 3 else (1, *profile.features)
    if len(shape) != 3 or min(shape[1:]) < smallest:
        size = f", at least {smallest}x{smallest}" if smallest > 1 else ""
        raise ConfigError(
            f"{learner} needs images of shape (H, W) or (channels, H, W){size}, not {profile.features}: use mlp"
        )
    channels, height, width = shape
    return channels, height, width


def with_channels(x: Tensor) -> Tensor:
    """Return images (n, H, W) or (n, channels, H, W) as (n, channels, H, W) in channels-last memory layout.

    With this layout, pooling, depthwise convolutions and normalisation of torch are vectorised over channels; other
    convolutions are not slower.
    """
    return (x[..., None] if x.dim() == 3 else x.movedim(1, -1).contiguous()).movedim(-1, 1)
