"""Outputs and gradients of the learner `cnn` for several clients at once, with convolutions compiled by Numba."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.clusters import Params, is_shared, rows_of
from coterie.learners.descent import Batch, GradientOf
from coterie.learners.heads import Top
from coterie.learners.networks.convolve_numba import bordered, convolve, gradients
from coterie.learners.perceptron import mean_loss, output_gradient, targets


class CompiledCNN:
    """All layers of the small network but the last, for a batch of each of B clients.

    The arrays for activations are allocated for the first batch and used again for batches of the same shape.
    """

    def __init__(self) -> None:
        self._shape: tuple[int, ...] = ()

    def load(self, theta: Params, images: Tensor) -> None:
        """Use these images, (B, n, H, W) or (B, n, C, H, W), with models of these shapes in the following calls."""
        images = images[:, :, None] if images.dim() == 4 else images
        if self._shape != images.shape:
            self._allocate(theta["conv1.weight"].shape[1], images)
            self._shape = images.shape
        self._first.interior.copy_(images.transpose(1, 2))

    def _allocate(self, channels: int, images: Tensor) -> None:
        clients, samples, inputs, height, width = images.shape
        self._first = _Stage(clients, samples, inputs, channels, height, width, images.dtype)
        self._second = _Stage(clients, samples, channels, 2 * channels, height // 2, width // 2, images.dtype)
        self._pooled = torch.empty(clients, samples, 2 * channels, height // 4, width // 4, dtype=images.dtype)

    def hidden(self, theta: Params) -> Tensor:
        """Return the inputs of the last layer, (B, n, d), for model b {name: (B, ...)} on the batch of client b."""
        self._first.convolve(theta, "conv1", self._second.interior)
        self._second.convolve(theta, "conv2", self._pooled.transpose(1, 2))
        weight = theta["fc1.weight"].transpose(1, 2)
        self._hidden = torch.baddbmm(theta["fc1.bias"][:, None], self._pooled.flatten(2), weight).relu_()
        return self._hidden

    def gradient(self, theta: Params, back: Tensor) -> Params:
        """Return the gradient of all layers but the last, {name: (B, ...)}.

        Args:
            theta: Parameters as in the last call of `hidden`.
            back: Gradient with respect to the result of `hidden`, (B, n, d).
        """
        delta = torch.ops.aten.threshold_backward(back, self._hidden, 0)
        dense = {"fc1.weight": torch.bmm(delta.transpose(1, 2), self._pooled.flatten(2)), "fc1.bias": delta.sum(dim=1)}
        pooled = torch.bmm(delta, theta["fc1.weight"]).reshape(self._pooled.shape).transpose(1, 2)
        second, below = self._second.gradient(theta, "conv2", pooled, through=True)
        first, _ = self._first.gradient(theta, "conv1", below, through=False)
        return first | second | dense


def plain_gradient(classes: int | None) -> GradientOf:
    """Return a function that computes the gradients of the mean loss for all parameters.

    Args:
        classes: Number of classes; None for regression.
    """
    network = CompiledCNN()

    def gradient_of(theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        network.load(theta, batch.x)
        z, weight, bias = network.hidden(theta), theta["fc2.weight"], theta["fc2.bias"]
        # samples are the last axis of the outputs, (B, C, n), so that the softmax over classes is vectorised
        out = torch.baddbmm(bias[..., None], weight, z.transpose(1, 2))
        target = targets(out.shape[1], batch.y, batch.share, classes)
        delta, fit = output_gradient(out, target, batch.share[:, None], classes)
        found = network.gradient(theta, torch.bmm(delta.transpose(1, 2), weight))
        last = {"fc2.weight": torch.bmm(delta, z), "fc2.bias": delta.sum(dim=2)}
        return found | last, mean_loss(fit, target, batch.share, classes)

    return gradient_of


def body_gradient(top: Top) -> GradientOf:
    """Return a function that computes the gradients of the body with fixed heads; it reports no losses."""
    network = CompiledCNN()

    def gradient_of(theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        network.load(theta, batch.x)
        delta = top.output_gradient(network.hidden(theta), batch)
        found = network.gradient(theta, torch.bmm(delta.transpose(1, 2), top.weight))
        return found, torch.zeros_like(batch.counts)

    return gradient_of


def outputs_of_all(models: Params, images: Tensor) -> Tensor:
    """Return the outputs of all models on the same images, (S, n, outputs).

    Args:
        models: Models, {name: (S, ...)}.
        images: Images, (n, H, W) or (n, C, H, W).
    """
    network, weight, bias = CompiledCNN(), models["fc2.weight"], models["fc2.bias"][:, None]
    body = {name: p for name, p in models.items() if not name.startswith("fc2.")}
    distinct = 1 if all(is_shared(p) for p in body.values()) else len(weight)
    network.load(body, images[None])
    hidden = [network.hidden(rows_of(body, slice(row, row + 1))) for row in range(distinct)]
    return torch.baddbmm(bias, torch.cat(hidden).expand(len(weight), -1, -1), weight.transpose(1, 2))


class _Stage:
    """A convolution with ReLU and pooling of B clients with n images each."""

    def __init__(
        self, clients: int, images: int, inputs: int, outputs: int, height: int, width: int, dtype: torch.dtype
    ) -> None:
        self.size = (height, width)
        self.source = torch.zeros(clients, inputs, bordered(images, height, width), dtype=dtype)
        self.images = images
        self.code: npt.NDArray[np.uint8] = np.empty((clients, outputs, images, (height // 2) * (width // 2)), np.uint8)
        self.to_source = torch.empty(0)

    @property
    def interior(self) -> Tensor:
        """View of the images without their borders, (B, C, n, H, W)."""
        return self._without_borders(self.source)

    def _without_borders(self, rows: Tensor) -> Tensor:
        height, width = self.size
        whole = rows[..., : self.images * (height + 1) * (width + 1)]
        return whole.view(*rows.shape[:2], self.images, height + 1, width + 1)[..., 1:, 1:]

    def convolve(self, theta: Params, name: str, out: Tensor) -> None:
        """Write the pooled images to `out`, (B, O, n, h, w)."""
        weight, bias = theta[f"{name}.weight"].flatten(3).contiguous(), theta[f"{name}.bias"].contiguous()
        convolve(self.source.numpy(), *self.size, weight.numpy(), bias.numpy(), out.numpy(), self.code)

    def gradient(self, theta: Params, name: str, back: Tensor, through: bool) -> tuple[Params, Tensor]:
        """Return the gradient of the parameters, {name: (B, ...)}, and with respect to the images, (B, C, n, H, W).

        Args:
            theta: Parameters.
            name: Name of the convolution.
            back: Gradient with respect to the pooled images, (B, O, n, h, w).
            through: Whether the gradient with respect to the images is needed.
        """
        weight = theta[f"{name}.weight"].flatten(3).contiguous()
        to_weight, to_bias = torch.empty_like(weight), torch.empty(weight.shape[:2], dtype=weight.dtype)
        if through and not self.to_source.numel():
            self.to_source = torch.empty_like(self.source)
        to_source = self.to_source if through else self.source[:, :0]
        gradients(
            self.source.numpy(),
            *self.size,
            weight.numpy(),
            self.code,
            back.numpy(),
            to_weight.numpy(),
            to_bias.numpy(),
            to_source.numpy(),
        )
        found = {f"{name}.weight": to_weight.view_as(theta[f"{name}.weight"]), f"{name}.bias": to_bias}
        return found, self._without_borders(to_source)
