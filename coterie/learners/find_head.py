"""Search for the head of a module: the fully connected layer that computes the outputs.

The names and the order of layers are not reliable, so each candidate is tested: a module without its head returns the
features, and the head applied to the features returns the outputs. The parameters are random during the tests, since
with special initial values such as zeros, another layer could pass the test by chance.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

SAMPLES = 3
"""Number of random samples in a test."""
NEAR = 1e-3
"""Tolerance relative to the largest output: much larger than rounding errors, much smaller than errors of others."""


def without(module: nn.Module, layer: str) -> nn.Module:
    """Return a copy of the module in which a layer is replaced by the identity."""
    rest = deepcopy(module)
    parent, _, name = layer.rpartition(".")
    setattr(rest.get_submodule(parent), name, nn.Identity())
    return rest


def find_head(module: nn.Module, features: tuple[int, ...]) -> str | None:
    """Return the name of the head of a module.

    Args:
        module: The module.
        features: Shape of one sample.

    Returns:
        The name, or None unless exactly one layer with weight and bias passes the test.
    """
    random = torch.Generator().manual_seed(0)
    tried = _stirred(module, random)
    x = torch.rand((SAMPLES, *features), generator=random).to(next(tried.parameters()))
    outputs = _outputs(tried, x)
    if outputs is None:
        return None
    fitting = [layer for layer in _own_layers(tried) if _is_head(tried, layer, x, outputs.reshape(SAMPLES, -1))]
    return fitting[0] if len(fitting) == 1 else None


def _stirred(module: nn.Module, random: torch.Generator) -> nn.Module:
    """Return a copy with noise added to all parameters, scaled so that activations keep their size."""
    copied = deepcopy(module)
    with torch.no_grad():
        for p in copied.parameters():
            p.add_(torch.randn(p.shape, generator=random).to(p), alpha=max(1, p.shape[1:].numel()) ** -0.5)
    return copied


def _own_layers(module: nn.Module) -> list[str]:
    """Return the fully connected layers whose weight and bias are trained and not shared with other layers."""
    trained = _trained(module)
    layers = [name for name, part in module.named_modules() if name and isinstance(part, nn.Linear)]
    return [layer for layer in layers if trained ^ _trained(without(module, layer)) == _arrays(layer)]


def _trained(module: nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def _arrays(layer: str) -> set[str]:
    return {f"{layer}.weight", f"{layer}.bias"}


def _is_head(module: nn.Module, layer: str, x: Tensor, outputs: Tensor) -> bool:
    """Return whether the layer, applied to the result of the rest of the module, returns the outputs (n, C)."""
    head, features = module.get_submodule(layer), _outputs(without(module, layer), x)
    if features is None or features.shape != (SAMPLES, head.in_features) or head.out_features != outputs.shape[1]:
        return False
    with torch.no_grad():
        return bool((head(features) - outputs).abs().max() <= NEAR * outputs.abs().max())


def _outputs(module: nn.Module, x: Tensor) -> Tensor | None:
    """Return the outputs of a module, or None if it raises any exception, as it may without one of its layers."""
    try:
        with torch.no_grad():
            result: Tensor = module(x)
    except Exception:
        return None
    return result
