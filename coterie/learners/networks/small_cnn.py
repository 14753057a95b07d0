"""Outputs and gradients of the learner `cnn` for several clients at once, without autograd."""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from functools import cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coterie.core.clusters import Params, is_shared, rows_of
from coterie.learners.descent import Batch, GradientOf
from coterie.learners.heads import Heads, Top
from coterie.learners.perceptron import mean_loss, output_gradient, targets
from coterie.learners.products import multiply_each

COMPILED = 200
"""Product of the numbers of input and output channels up to which compiled convolutions are faster than torch."""


class StepsOfCNN:
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
        self._first.images.copy_(images.transpose(1, 2))

    def _allocate(self, channels: int, images: Tensor) -> None:
        clients, samples, inputs, height, width = images.shape
        self._first = _stage(images, inputs, channels, height, width)
        self._second = _stage(images, channels, 2 * channels, height // 2, width // 2)
        self._pooled = images.new_empty(clients, samples, 2 * channels, height // 4, width // 4)

    def hidden(self, theta: Params) -> Tensor:
        """Return the inputs of the last layer, (B, n, d), for model b {name: (B, ...)} on the batch of client b."""
        self._first.convolve(theta, "conv1", self._second.images)
        self._second.convolve(theta, "conv2", self._pooled.transpose(1, 2))
        self._hidden = multiply_each(self._pooled.flatten(2), theta["fc1.weight"], theta["fc1.bias"]).relu_()
        return self._hidden

    def gradient(self, theta: Params, back: Tensor) -> Params:
        """Return the gradient of all layers but the last, {name: (B, ...)}.

        Args:
            theta: Parameters as in the last call of `hidden`.
            back: Gradient with respect to the result of `hidden`, (B, n, d).
        """
        delta = torch.ops.aten.threshold_backward(back, self._hidden, 0)
        to_weight = multiply_each(delta.transpose(1, 2), self._pooled.flatten(2).transpose(1, 2))
        dense = {"fc1.weight": to_weight, "fc1.bias": delta.sum(dim=1)}
        pooled = multiply_each(delta, theta["fc1.weight"].transpose(1, 2))
        pooled = pooled.reshape(self._pooled.shape).transpose(1, 2)
        second, below = self._second.gradient(theta, "conv2", pooled, through=True)
        first, _ = self._first.gradient(theta, "conv1", below, through=False)
        return first | second | dense


def plain_gradient(classes: int | None) -> GradientOf:
    """Return a function that computes the gradients of the mean loss for all parameters.

    Args:
        classes: Number of classes; None for regression.
    """
    network = StepsOfCNN()

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
    network = StepsOfCNN()

    def gradient_of(theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        network.load(theta, batch.x)
        delta = top.output_gradient(network.hidden(theta), batch)
        found = network.gradient(theta, torch.bmm(delta.transpose(1, 2), top.weight))
        return found, torch.zeros_like(batch.counts)

    return gradient_of


def gradient_of_all(classes: int | None) -> GradientOf:
    """Return a function that computes the gradients of the body and of all heads; it reports no losses.

    Args:
        classes: Number of classes; None for regression.
    """
    network = StepsOfCNN()

    def gradient_of(theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        network.load(theta, batch.x)
        z, heads = network.hidden(theta), Heads(theta["fc2.weight"], theta["fc2.bias"])
        top = Top.of(heads, classes)
        delta = top.output_gradient(z, batch)
        found = network.gradient(theta, torch.bmm(delta.transpose(1, 2), top.weight))
        own = Top(torch.bmm(delta, z), delta.sum(dim=2, keepdim=True), top.K, classes).heads()
        return found | {"fc2.weight": own.weight, "fc2.bias": own.bias}, torch.zeros_like(batch.counts)

    return gradient_of


def hidden_values(theta: Params, images: Tensor) -> Tensor:
    """Return the inputs of the last layer, (B, n, d), of model b {name: (B, ...)} on images (B, n, ...)."""
    network = StepsOfCNN()
    network.load(theta, images)
    return network.hidden(theta)


def outputs_of_all(models: Params, images: Tensor) -> Tensor:
    """Return the outputs of all models on the same images, (S, n, outputs).

    Args:
        models: Models, {name: (S, ...)}.
        images: Images, (n, H, W) or (n, C, H, W).
    """
    network, weight, bias = StepsOfCNN(), models["fc2.weight"], models["fc2.bias"][:, None]
    body = {name: p for name, p in models.items() if not name.startswith("fc2.")}
    distinct = 1 if all(is_shared(p) for p in body.values()) else len(weight)
    network.load(body, images[None])
    hidden = [network.hidden(rows_of(body, slice(row, row + 1))) for row in range(distinct)]
    return torch.baddbmm(bias, torch.cat(hidden).expand(len(weight), -1, -1), weight.transpose(1, 2))


def bordered(images: int, height: int, width: int) -> int:
    """Return the number of values of a channel of several images with the borders of `convolve_numba`."""
    return images * (height + 1) * (width + 1) + width + 2


class _Stage(ABC):
    """A 3x3 convolution with 2x2 max pooling and ReLU of n images of each of B clients."""

    images: Tensor
    """Where the images are to be written, (B, C, n, H, W)."""

    @abstractmethod
    def convolve(self, theta: Params, name: str, out: Tensor) -> None:
        """Write the pooled images to `out`, (B, O, n, h, w)."""

    @abstractmethod
    def gradient(self, theta: Params, name: str, back: Tensor, through: bool) -> tuple[Params, Tensor]:
        """Return the gradient of the parameters, {name: (B, ...)}, and with respect to the images, (B, C, n, H, W).

        Args:
            theta: Parameters.
            name: Name of the convolution.
            back: Gradient with respect to the pooled images, (B, O, n, h, w).
            through: Whether the gradient with respect to the images is needed.
        """


class _CompiledStage(_Stage):
    """A stage compiled by Numba, for few channels."""

    def __init__(self, shape: tuple[int, ...], outputs: int, dtype: torch.dtype) -> None:
        clients, inputs, images, height, width = shape
        self._shape, self._size = shape, (height, width)
        self._source = torch.zeros(clients, inputs, bordered(images, height, width), dtype=dtype)
        self._to_source = torch.empty(0)
        self._code: npt.NDArray[np.uint8] = np.empty((clients, outputs, images, height // 2 * (width // 2)), np.uint8)
        self.images = self._without_borders(self._source)

    def _without_borders(self, rows: Tensor) -> Tensor:
        _, _, images, height, width = self._shape
        whole = rows[..., : images * (height + 1) * (width + 1)]
        return whole.view(*rows.shape[:2], images, height + 1, width + 1)[..., 1:, 1:]

    def convolve(self, theta: Params, name: str, out: Tensor) -> None:
        from coterie.learners.networks.convolve_numba import convolve

        weight, bias = theta[f"{name}.weight"].flatten(3).contiguous(), theta[f"{name}.bias"].contiguous()
        convolve(self._source.numpy(), *self._size, weight.numpy(), bias.numpy(), out.numpy(), self._code)

    def gradient(self, theta: Params, name: str, back: Tensor, through: bool) -> tuple[Params, Tensor]:
        from coterie.learners.networks.convolve_numba import gradients

        weight = theta[f"{name}.weight"].flatten(3).contiguous()
        to_weight, to_bias = torch.empty_like(weight), torch.empty(weight.shape[:2], dtype=weight.dtype)
        if through and not self._to_source.numel():
            self._to_source = torch.empty_like(self._source)
        to_source = self._to_source if through else self._source[:, :0]
        found, sent = (to_weight.numpy(), to_bias.numpy()), back.numpy()
        gradients(self._source.numpy(), *self._size, weight.numpy(), self._code, sent, *found, to_source.numpy())
        named = {f"{name}.weight": to_weight.view_as(theta[f"{name}.weight"]), f"{name}.bias": to_bias}
        return named, self._without_borders(to_source)


class _TorchStage(_Stage):
    """A stage by torch, client by client: on a CPU, a convolution with different weights for each client is slower."""

    def __init__(self, shape: tuple[int, ...], like: Tensor) -> None:
        clients, inputs, images, height, width = shape
        self._source = like.new_empty(clients, images, height, width, inputs).movedim(-1, 2)  # channels last
        self._kept: list[tuple[Tensor, Tensor, Tensor]] = []
        self.images = self._source.transpose(1, 2)

    def convolve(self, theta: Params, name: str, out: Tensor) -> None:
        self._kept = []
        for source, weight, bias, to in zip(
            self._source, theta[f"{name}.weight"], theta[f"{name}.bias"], out, strict=True
        ):
            whole = torch.conv2d(source, weight, bias, padding=1)
            pooled, places = torch.ops.aten.max_pool2d_with_indices(whole, [2, 2])
            to.copy_(pooled.relu_().transpose(0, 1))
            self._kept.append((whole, pooled, places))

    def gradient(self, theta: Params, name: str, back: Tensor, through: bool) -> tuple[Params, Tensor]:
        weights, ones, zeros = theta[f"{name}.weight"], [1, 1], [0, 0]
        found = []
        for source, weight, sent, (whole, pooled, places) in zip(self._source, weights, back, self._kept, strict=True):
            alive = torch.ops.aten.threshold_backward(sent.transpose(0, 1), pooled, 0)
            spread = torch.ops.aten.max_pool2d_with_indices_backward(
                alive, whole, [2, 2], [2, 2], zeros, ones, False, places
            )
            needed = [through, True, True]
            found.append(
                torch.ops.aten.convolution_backward(
                    spread, source, weight, [len(weight)], ones, ones, ones, False, zeros, 1, needed
                )
            )
        to_source = torch.stack([each[0] for each in found]).transpose(1, 2) if through else self.images[:, :0]
        to_weight, to_bias = (torch.stack([each[i] for each in found]) for i in (1, 2))
        return {f"{name}.weight": to_weight, f"{name}.bias": to_bias}, to_source


def _stage(images: Tensor, inputs: int, outputs: int, height: int, width: int) -> _Stage:
    """Return the faster stage for images like these, (B, n, ...)."""
    clients, samples = images.shape[:2]
    shape = (clients, inputs, samples, height, width)
    if inputs * outputs <= COMPILED and images.device.type == "cpu" and numba_is_installed():
        return _CompiledStage(shape, outputs, images.dtype)
    return _TorchStage(shape, images)


@cache
def numba_is_installed() -> bool:
    """Return whether compiled convolutions are available."""
    return importlib.util.find_spec("numba") is not None
