"""Small convolutional networks for images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params, rows_of
from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.contribution import Scored
from coterie.learners.descent import BatchPlan, Descent, descend_by_steps, group_by_group, join_tracks, tracks
from coterie.learners.heads import Heads, Top
from coterie.learners.local_training import LocalTraining
from coterie.learners.module import ModuleWithHead, fields_of, module_with_head
from coterie.learners.network import check_size
from coterie.learners.networks.images import image_shape, with_channels
from coterie.learners.networks.small_cnn import (
    body_gradient,
    gradient_of_all,
    hidden_values,
    outputs_of_all,
    plain_gradient,
)

ACTIVATION_BYTES = 8 << 20
"""Maximum size of the activations of images that are processed together."""


class SmallCNN(nn.Module):
    """Two 3x3 convolutions with ReLU and 2x2 max pooling, then two fully connected layers."""

    def __init__(self, inputs: int, height: int, width: int, channels: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.fc1 = nn.Linear(2 * channels * (height // 4) * (width // 4), hidden)
        self.fc2 = nn.Linear(hidden, outputs)
        _initialize_for_relu(self.conv1, self.conv2, self.fc1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, outputs), for images (n, H, W) or (n, channels, H, W)."""
        h = with_channels(x)
        # ReLU and max pooling commute; pooling first leaves a quarter of the values
        h = nn.functional.relu(nn.functional.max_pool2d(self.conv1(h), 2))
        h = nn.functional.relu(nn.functional.max_pool2d(self.conv2(h), 2))
        out: Tensor = self.fc2(nn.functional.relu(self.fc1(h.flatten(1))))
        return out


class PatchCNN(nn.Module):
    """Two convolutions of non-overlapping 2x2 patches with ReLU, then two fully connected layers.

    Such a convolution is a single matrix product, so all clients of a block take a step at once.
    """

    def __init__(self, inputs: int, height: int, width: int, channels: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Linear(4 * inputs, channels)
        self.conv2 = nn.Linear(4 * channels, 2 * channels)
        self.fc1 = nn.Linear(2 * channels * (height // 4) * (width // 4), hidden)
        self.fc2 = nn.Linear(hidden, outputs)
        _initialize_for_relu(self.conv1, self.conv2, self.fc1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, outputs), for images (n, H, W) or (n, channels, H, W)."""
        h = x[..., None] if x.dim() == 3 else x.movedim(1, -1)
        h = _on_patches(self.conv1, h)
        h = _on_patches(self.conv2, h)
        out: Tensor = self.fc2(nn.functional.relu(self.fc1(h.flatten(1))))
        return out


def _on_patches(layer: nn.Module, h: Tensor) -> Tensor:
    """Apply a layer to each 2x2 patch: (n, H, W, c) becomes (n, H/2, W/2, outputs).

    As in pooling, an odd last row or column is ignored.
    """
    n, height, width, c = h.shape
    squares = h[:, : height // 2 * 2, : width // 2 * 2].reshape(n, height // 2, 2, width // 2, 2, c)
    rows = squares.transpose(2, 3).reshape(-1, 4 * c)  # one large product instead of one for each image
    return nn.functional.relu(layer(rows)).reshape(n, height // 2, width // 2, -1)


def _initialize_for_relu(*layers: nn.Module) -> None:
    """Initialise layers for ReLU activations; with the default of torch, activations become smaller in each layer."""
    for layer in layers:
        weight, bias = layer.parameters()
        nn.init.kaiming_uniform_(weight, nonlinearity="relu")
        nn.init.zeros_(bias)


KERNELS = {3: SmallCNN, 2: PatchCNN}


@dataclass(frozen=True)
class CNN(ModuleWithHead):
    """Learner for `SmallCNN`, without autograd and for several clients at once."""

    channels: int
    """Channels of the first convolution."""

    def _route(self, block: Block, training: LocalTraining) -> tuple[str, int]:
        return "by-hand", self._together(block, training)

    def _together(self, block: Block, training: LocalTraining) -> int:
        """Return the number of clients that are trained together."""
        width = block.y.shape[1]
        samples = width if training.full_batch_steps is not None else training.batch_size_for(width)
        return max(1, self._images_at_once(block.x) // samples)

    def _images_at_once(self, x: Tensor) -> int:
        """Return the number of images whose activations stay in the cache."""
        return max(1, ACTIVATION_BYTES // (2 * self.channels * x.shape[-1] * x.shape[-2] * x.element_size()))

    def features(self, theta: Params, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and any(p.requires_grad for p in theta.values()):
            return super().features(theta, x)
        at_once = self._images_at_once(x)
        clients, samples = max(1, at_once // x.shape[1]), min(at_once, x.shape[1])
        return torch.cat(
            [
                torch.cat(
                    [hidden_values(rows_of(theta, rows), some) for some in torch.split(x[rows], samples, dim=1)], dim=1
                )
                for rows in (slice(first, first + clients) for first in range(0, len(x), clients))
            ]
        )

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and any(p.requires_grad for p in theta.values()):
            return super().outputs(theta, x)
        weight, bias = theta["fc2.weight"].transpose(1, 2), theta["fc2.bias"][:, None]
        return self._shaped(torch.baddbmm(bias, self.features(theta, x), weight))

    def score(self, models: Params, block: Block) -> Scored:
        parts = torch.split(block.x.flatten(0, 1), self._images_at_once(block.x))
        pieces = [outputs_of_all(models, images) for images in parts]
        outputs = self._shaped(torch.cat(pieces, dim=1))
        losses = self.loss(outputs, block.y.flatten().expand(outputs.shape[:2]))
        return Scored(losses.T.reshape(*block.y.shape, -1))

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        def descend(rows: slice, part: Block) -> Descent:
            gradient_of = plain_gradient(self.classes)
            centre = None if towards is None else rows_of(towards, rows)
            each = tracks(rows_of(theta, rows), centre)
            return join_tracks([descend_by_steps(gradient_of, one, part, training, lr, to) for one, to in each])

        return group_by_group(descend, block, self._together(block, training))

    def descend_body(
        self,
        body: Params,
        heads: Heads,
        block: Block,
        training: LocalTraining,
        lr: float,
        planned: BatchPlan | None = None,
    ) -> Params:
        """Return the change of the body, computed without autograd."""

        def descend(rows: slice, part: Block) -> Descent:
            gradient_of = body_gradient(Top.of(heads.rows(rows), self.classes))
            return descend_by_steps(gradient_of, rows_of(body, rows), part, training, lr)

        return group_by_group(descend, block, self._together(block, training)).change

    def descend_all(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None
    ) -> Params:
        """Return the change of body and heads by steps on both together, computed without autograd."""

        def descend(rows: slice, part: Block) -> Descent:
            centre = None if towards is None else rows_of(towards, rows)
            return descend_by_steps(gradient_of_all(self.classes), rows_of(theta, rows), part, training, lr, centre)

        return group_by_group(descend, block, self._together(block, training)).change


def cnn(profile: Profile, *, channels: int = 8, hidden: int = 64, kernel: int = 3) -> ModuleWithHead:
    """Two convolutions and two fully connected layers, for images (H, W) or (channels, H, W) of at least 4x4 pixels.

    With `kernel=3`, convolutions are followed by max pooling. With `kernel=2`, they use non-overlapping patches of 2x2
    pixels without pooling, which is faster for many clients.
    """
    inputs, height, width = image_shape(profile, "cnn", smallest=4)
    if channels < 1 or hidden < 1:
        raise ConfigError(f"cnn: channels and hidden must be at least 1, got {channels} and {hidden}")
    if kernel not in KERNELS:
        raise ConfigError(f"cnn: kernel must be 3 (with pooling) or 2 (non-overlapping patches), got {kernel}")
    outputs = profile.classes or 1
    pooled = 2 * channels * (height // 4) * (width // 4)
    check_size("cnn", kernel**2 * channels * (inputs + 2 * channels) + hidden * (pooled + outputs))
    built = module_with_head(
        profile,
        lambda: KERNELS[kernel](inputs, height, width, channels, hidden, outputs),
        spec=f"cnn:channels={channels},hidden={hidden}" + ("" if kernel == 3 else f",kernel={kernel}"),
        head="fc2",
    )
    return CNN(**fields_of(built), head=built.head, channels=channels) if kernel == 3 else built
