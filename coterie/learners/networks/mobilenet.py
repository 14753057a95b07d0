"""MobileNet-V2 for small images. (Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2, 2018)

As usual for 32x32 images, the first convolution and the second stage have stride 1 instead of 2. Otherwise the network,
and thus the shape of every array, is that for ImageNet, with the array names of torchvision. There is no dropout before
the last layer, since its random numbers could not be controlled by keys.
"""

from __future__ import annotations

from torch import Tensor, nn

from coterie.core.dataset import Profile
from coterie.learners.module import ModuleWithHead
from coterie.learners.networks.images import image_shape, with_channels
from coterie.learners.networks.norms import Norm, check_width, find_norm, scaled
from coterie.learners.networks.stored import StoredWeights, check_frozen, with_initial_weights

STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion (t), channels (c), blocks (n) and stride of the first block (s) of each stage; table 2 of the paper."""


def convolved(inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """Return a convolution followed by normalisation and ReLU6."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, norm(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Inverted residual block: expansion, depthwise 3x3 convolution, projection; a shortcut if the shapes are equal."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, norm: Norm) -> None:
        super().__init__()
        expanded = inputs * expansion
        self.shortcut = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([convolved(inputs, expanded, 1, norm)] if expansion > 1 else []),
            convolved(expanded, expanded, 3, norm, stride, groups=expanded),
            nn.Conv2d(expanded, outputs, 1, bias=False),
            norm(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return activations (n, outputs, H / stride, W / stride) for inputs (n, inputs, H, W)."""
        h: Tensor = self.conv(x)
        return x + h if self.shortcut else h


class MobileNetV2(nn.Module):
    """MobileNet-V2: stem, seven stages of inverted residuals, 1x1 convolution, pooling, fully connected layer."""

    def __init__(self, inputs: int, outputs: int, width: float, norm: Norm) -> None:
        super().__init__()
        before = scaled(32, width)
        layers: list[nn.Module] = [convolved(inputs, before, 3, norm)]
        for expansion, channels, blocks, stride in STAGES:
            after = scaled(channels, width)
            for block in range(blocks):
                layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1, norm))
                before = after
        last = scaled(1280, max(1.0, width))  # in the paper, width < 1 does not apply to the last convolution
        self.features = nn.Sequential(*layers, convolved(before, last, 1, norm))
        # the identity replaces the dropout, so that the last layer keeps its name
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(last, outputs))
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, outputs), for images (n, H, W) or (n, channels, H, W)."""
        out: Tensor = self.classifier(self.features(with_channels(x)).mean(dim=(2, 3)))
        return out


def mobilenet_v2(
    profile: Profile, *, width: float = 1.0, norm: str = "group", weights: StoredWeights | None = None
) -> ModuleWithHead:
    """MobileNet-V2 for small images (H, W) or (channels, H, W): first convolution and second stage with stride 1.

    `width` is a multiplier of the numbers of channels. `norm` is the normalisation: group (groups of 8 channels), layer
    (all channels) or frozen-batch (batch normalisation with fixed statistics from `weights`). `weights` is a
    safetensors file with initial weights and the array names of torchvision; weights of ImageNet need
    norm=frozen-batch.
    """
    check_width("mobilenet-v2", width)
    check_frozen("mobilenet-v2", norm, weights)
    inputs, _, _ = image_shape(profile, "mobilenet-v2")
    layer, outputs = find_norm(norm), profile.classes or 1
    return with_initial_weights(
        profile,
        lambda: MobileNetV2(inputs, outputs, width, layer),
        f"mobilenet-v2:width={width!r},norm={norm}",
        "classifier.1",
        weights,
    )
