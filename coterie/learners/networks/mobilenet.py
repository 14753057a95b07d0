"""MobileNet-V2 for small images. (Sandler, Howard, Zhu, Zhmoginov, Chen: MobileNetV2, 2018)

The first convolution and the second stage have stride 1 instead of 2, as is usual for 32x32 images; all else, and so
the shape of every array, is as for ImageNet. Arrays have torchvision's names. The dropout before the last layer is left
out: no key controls it.
"""

from __future__ import annotations

from torch import Tensor, nn

from coterie.core.dataset import Profile
from coterie.learners.module import HeadedLearner
from coterie.learners.networks.images import image_shape, with_channels
from coterie.learners.networks.norms import Norm, check_width, find_norm, scaled
from coterie.learners.networks.stored import StoredWeights, check_frozen, with_start

STAGES = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""t, c, n, s of the paper's table 2: expansion, channels, blocks, stride of the first block."""


def convolved(inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1) -> nn.Sequential:
    """A convolution, its normalisation and ReLU6."""
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, norm(outputs), nn.ReLU6())


class InvertedResidual(nn.Module):
    """Few channels to many, a 3x3 convolution of each by itself, back to few; a short cut where shapes allow it."""

    def __init__(self, inputs: int, outputs: int, expansion: int, stride: int, norm: Norm) -> None:
        super().__init__()
        many = inputs * expansion
        self.short_cut = stride == 1 and inputs == outputs
        self.conv = nn.Sequential(
            *([convolved(inputs, many, 1, norm)] if expansion > 1 else []),
            convolved(many, many, 3, norm, stride, groups=many),
            nn.Conv2d(many, outputs, 1, bias=False),
            norm(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(n, inputs, H, W) to (n, outputs, H / stride, W / stride)."""
        h: Tensor = self.conv(x)
        return x + h if self.short_cut else h


class MobileNetV2(nn.Module):
    """A stem, seven stages of inverted residuals, a 1x1 convolution, the mean over the image, a linear layer."""

    def __init__(self, inputs: int, outputs: int, width: float, norm: Norm) -> None:
        super().__init__()
        before = scaled(32, width)
        layers: list[nn.Module] = [convolved(inputs, before, 3, norm)]
        for expansion, channels, blocks, stride in STAGES:
            after = scaled(channels, width)
            for block in range(blocks):
                layers.append(InvertedResidual(before, after, expansion, stride if block == 0 else 1, norm))
                before = after
        last = scaled(1280, max(1.0, width))  # the paper does not make the last one narrower
        self.features = nn.Sequential(*layers, convolved(before, last, 1, norm))
        # the last layer keeps the name it has behind a dropout
        self.classifier = nn.Sequential(nn.Identity(), nn.Linear(last, outputs))
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out")

    def forward(self, x: Tensor) -> Tensor:
        """(n, H, W) or (n, channels, H, W) to (n, outputs)."""
        out: Tensor = self.classifier(self.features(with_channels(x)).mean(dim=(2, 3)))
        return out


def mobilenet_v2(
    profile: Profile, *, width: float = 1.0, norm: str = "group", weights: StoredWeights | None = None
) -> HeadedLearner:
    """MobileNet-V2 on small images (H, W) or (channels, H, W): first convolution and second stage with stride 1.

    `width` multiplies the channels. `norm` is group (8 channels together), layer (all of them) or frozen-batch (the
    fixed statistics in `weights`). `weights` is a safetensors file to start from, with torchvision's names; those of
    ImageNet need norm=frozen-batch.
    """
    check_width("mobilenet-v2", width)
    check_frozen("mobilenet-v2", norm, weights)
    inputs, _, _ = image_shape(profile, "mobilenet-v2")
    layer, outputs = find_norm(norm), profile.classes or 1
    return with_start(
        profile,
        lambda: MobileNetV2(inputs, outputs, width, layer),
        f"mobilenet-v2:width={width!r},norm={norm}",
        "classifier.1",
        weights,
    )
