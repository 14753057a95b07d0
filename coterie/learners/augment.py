"""Augmentation of training images by random changes, drawn anew in every step; evaluation uses the original images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from coterie.core.dataset import Profile
from coterie.core.keys import Words, fold
from coterie.errors import ConfigError, unknown_name

BORDER = 4
"""Width in pixels of the border of zeros for `crop`."""


def augment(x: Tensor, text: str, keys: Words) -> Tensor:
    """Return randomly changed images.

    Args:
        x: Images, (B, b, H, W) or (B, b, channels, H, W).
        text: Names of the changes, separated by commas.
        keys: Random key of each image, (B, b).
    """
    for name in changes(text):
        x = CHANGES[name](x, keys)
    return x


def flip(x: Tensor, keys: Words) -> Tensor:
    """Swap left and right with probability 1/2."""
    swapped = torch.from_numpy(fold(keys, 1) % np.uint64(2) == 1).to(x.device)
    return torch.where(swapped.reshape(*keys.shape, *(1,) * (x.dim() - 2)), x.flip(-1), x)


def crop(x: Tensor, keys: Words) -> Tensor:
    """Add a border of zeros and cut out a window of the original size at a random position."""
    height, width = x.shape[-2:]
    down, right = (_whole_numbers(fold(keys, draw), 2 * BORDER + 1).to(x.device) for draw in (2, 3))
    framed = functional.pad(x, (BORDER,) * 4).flatten(0, 1)
    windows = framed.unfold(-2, height, 1).unfold(-2, width, 1)  # (B b, ..., 9, 9, H, W), a view
    each = torch.arange(len(framed), device=x.device)
    return windows[each, ..., down.flatten(), right.flatten(), :, :].reshape(x.shape)


def _whole_numbers(words: Words, count: int) -> Tensor:
    """Return integers from 0 to count - 1, which are uniform up to a relative error of count / 2^64."""
    return torch.from_numpy((words % np.uint64(count)).astype(np.int64))


CHANGES: dict[str, Callable[[Tensor, Words], Tensor]] = {"flip": flip, "crop": crop}


def changes(text: str) -> tuple[str, ...]:
    """Return the names in a text such as `flip,crop`, in the order of application; none for `none`.

    Raises:
        ConfigError: if a name is unknown.
    """
    if text == "none":
        return ()
    names = tuple(text.split(","))
    for name in names:
        if name not in CHANGES:
            raise unknown_name("augmentation", name, [*CHANGES, "none"])
    return names


def check_augmentation(text: str, profile: Profile) -> None:
    """Raise ConfigError for unknown names of changes, and for samples that are not images."""
    if changes(text) and len(profile.features) not in (2, 3):
        raise ConfigError(
            f"augment={text} needs images of shape (H, W) or (channels, H, W), not {profile.features}: leave it out"
        )
