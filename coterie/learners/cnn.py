"""A small convolutional network for images, as a module of its own."""

from __future__ import annotations

from torch import Tensor, nn

from coterie.core.population import Profile
from coterie.errors import ConfigError
from coterie.learners.module import HeadedLearner, headed
from coterie.learners.networks.images import image_shape, with_channels


class SmallCNN(nn.Module):
    """Two 3x3 convolutions with ReLU and 2x2 max pooling, then two fully connected layers."""

    def __init__(self, inputs: int, height: int, width: int, channels: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.fc1 = nn.Linear(2 * channels * (height // 4) * (width // 4), hidden)
        self.fc2 = nn.Linear(hidden, outputs)
        for layer in (self.conv1, self.conv2, self.fc1):  # from torch's own start signals fade under every ReLU
            weight, bias = layer.parameters()
            nn.init.kaiming_uniform_(weight, nonlinearity="relu")
            nn.init.zeros_(bias)

    def forward(self, x: Tensor) -> Tensor:
        """(n, H, W) or (n, channels, H, W) to (n, outputs)."""
        h = with_channels(x)
        # ReLU after pooling gives the same as before it, on a quarter of the values
        h = nn.functional.relu(nn.functional.max_pool2d(self.conv1(h), 2))
        h = nn.functional.relu(nn.functional.max_pool2d(self.conv2(h), 2))
        out: Tensor = self.fc2(nn.functional.relu(self.fc1(h.flatten(1))))
        return out


def cnn(profile: Profile, *, channels: int = 8, hidden: int = 64) -> HeadedLearner:
    """Two convolutions and two fully connected layers on images (H, W) or (channels, H, W), at least 4x4."""
    inputs, height, width = image_shape(profile, "cnn", smallest=4)
    if channels < 1 or hidden < 1:
        raise ConfigError(f"cnn: channels and hidden must be at least 1, got {channels} and {hidden}")
    outputs = profile.classes or 1
    return headed(
        profile,
        lambda: SmallCNN(inputs, height, width, channels, hidden, outputs),
        spec=f"cnn:channels={channels},hidden={hidden}",
        head="fc2",
    )
