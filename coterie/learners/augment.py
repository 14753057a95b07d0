"""Random changes of training images, a new one for every step that a sample takes part in. Scores never see them."""

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
"""Pixels of zeros that `crop` puts around an image."""


def augment(x: Tensor, text: str, keys: Words) -> Tensor:
    """Images (B, b, H, W) or (B, b, channels, H, W), changed as `text` says by what their keys (B, b) draw."""
    for name in changes(text):
        x = CHANGES[name](x, keys)
    return x


def flip(x: Tensor, keys: Words) -> Tensor:
    """Left and right are swapped with probability 1/2."""
    swapped = torch.from_numpy(fold(keys, 1) % np.uint64(2) == 1).to(x.device)
    return torch.where(swapped.reshape(*keys.shape, *(1,) * (x.dim() - 2)), x.flip(-1), x)


def crop(x: Tensor, keys: Words) -> Tensor:
    """A border of zeros is put around, and a piece of the old size cut out anywhere."""
    height, width = x.shape[-2:]
    down, right = (_whole_numbers(fold(keys, draw), 2 * BORDER + 1).to(x.device) for draw in (2, 3))
    framed = functional.pad(x, (BORDER,) * 4).flatten(0, 1)
    windows = framed.unfold(-2, height, 1).unfold(-2, width, 1)  # (B b, ..., 9, 9, H, W), a view
    each = torch.arange(len(framed), device=x.device)
    return windows[each, ..., down.flatten(), right.flatten(), :, :].reshape(x.shape)


def _whole_numbers(words: Words, count: int) -> Tensor:
    """0 to count - 1, uniform up to count / 2^64."""
    return torch.from_numpy((words % np.uint64(count)).astype(np.int64))


CHANGES: dict[str, Callable[[Tensor, Words], Tensor]] = {"flip": flip, "crop": crop}


def changes(text: str) -> tuple[str, ...]:
    """`flip,crop` as names, in the order in which they are applied; `none` is no change at all."""
    if text == "none":
        return ()
    names = tuple(text.split(","))
    for name in names:
        if name not in CHANGES:
            raise unknown_name("augmentation", name, [*CHANGES, "none"])
    return names


def check_augmentation(text: str, profile: Profile) -> None:
    """Refuse unknown names, and samples that are no images."""
    if changes(text) and len(profile.features) not in (2, 3):
        raise ConfigError(
            f"augment={text} needs images of shape (H, W) or (channels, H, W), not {profile.features}: leave it out"
        )
