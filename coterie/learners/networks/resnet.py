"""ResNet-18 for small images. (He, Zhang, Ren, Sun: Deep Residual Learning for Image Recognition, 2016)

As usual for 32x32 images, the first convolution has stride 1 and is not followed by pooling. Otherwise the network is
that for ImageNet, with the array names of torchvision.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import relu

from coterie.core.dataset import Profile
from coterie.errors import ConfigError
from coterie.learners.module import ModuleWithHead
from coterie.learners.network import check_size
from coterie.learners.networks.images import image_shape, with_channels
from coterie.learners.networks.norms import Norm, check_width, find_norm, scaled
from coterie.learners.networks.stored import StoredWeights, check_frozen, with_initial_weights


class BasicBlock(nn.Module):
    """Residual block of two 3x3 convolutions, with a 1x1 convolution in the shortcut if the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return activations (n, outputs, H / stride, W / stride) for inputs (n, inputs, H, W)."""
        h = relu(self.bn1(self.conv1(x)))
        return relu(self.bn2(self.conv2(h)) + self.downsample(x))


class ResNet18(nn.Module):
    """ResNet-18: stem, four stages of two residual blocks, average pooling, fully connected layer."""

    def __init__(self, inputs: int, outputs: int, width: float, norm: Norm, stem: int) -> None:
        super().__init__()
        channels = [scaled(c, width) for c in (64, 64, 128, 256, 512)]
        self.conv1 = nn.Conv2d(inputs, channels[0], stem, padding=stem // 2, bias=False)
        self.bn1 = norm(channels[0])
        for stage, (before, after) in enumerate(pairwise(channels), start=1):
            first = BasicBlock(before, after, 1 if stage == 1 else 2, norm)
            self.add_module(f"layer{stage}", nn.Sequential(first, BasicBlock(after, after, 1, norm)))
        self.fc = nn.Linear(channels[-1], outputs)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs, (n, outputs), for images (n, H, W) or (n, channels, H, W)."""
        h = relu(self.bn1(self.conv1(with_channels(x))))
        for stage in range(1, 5):
            h = self.get_submodule(f"layer{stage}")(h)
        out: Tensor = self.fc(h.mean(dim=(2, 3)))
        return out


def resnet18(
    profile: Profile, *, width: float = 1.0, norm: str = "group", stem: int = 3, weights: StoredWeights | None = None
) -> ModuleWithHead:
    """ResNet-18 for small images (H, W) or (channels, H, W), with a first convolution of size `stem` and stride 1.

    `width` is a multiplier of the numbers of channels. `norm` is the normalisation: group (groups of 8 channels), layer
    (all channels) or frozen-batch (batch normalisation with fixed statistics from `weights`). `weights` is a
    safetensors file with initial weights and the array names of torchvision; weights of ImageNet need norm=frozen-batch
    and stem=7.
    """
    check_width("resnet18", width)
    check_frozen("resnet18", norm, weights)
    if stem < 1 or stem % 2 == 0:
        raise ConfigError(f"resnet18: stem must be an odd number of pixels such as 3 or 7, got {stem}")
    inputs, _, _ = image_shape(profile, "resnet18")
    check_size("resnet18", 64 * width * inputs * stem**2)
    layer, outputs = find_norm(norm), profile.classes or 1
    return with_initial_weights(
        profile,
        lambda: ResNet18(inputs, outputs, width, layer, stem),
        f"resnet18:width={width!r},norm={norm},stem={stem}",
        "fc",
        weights,
    )
