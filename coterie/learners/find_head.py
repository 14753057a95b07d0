"""Which layer of a module is its head: the fully connected one that gives the outputs.

Names and the order of layers say nothing for certain, so candidates are tried: with the head taken out a module gives
its features, and the head of the features is the output. Parameters are random while layers are tried: under those that
a module starts with, zeros for example, another layer might give the same by chance.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import Tensor, nn

SAMPLES = 3
NEAR = 1e-3
"""Of the largest output: far above rounding, and a layer that is not the head is wrong by about all of it."""


def without(module: nn.Module, layer: str) -> nn.Module:
    """A copy of the module with nothing in the place of that layer."""
    rest = deepcopy(module)
    parent, _, name = layer.rpartition(".")
    setattr(rest.get_submodule(parent), name, nn.Identity())
    return rest


def find_head(module: nn.Module, features: tuple[int, ...]) -> str | None:
    """The head's name, for samples of shape `features`; None unless exactly one layer, with weight and bias, is it."""
    random = torch.Generator().manual_seed(0)
    tried = _stirred(module, random)
    x = torch.rand((SAMPLES, *features), generator=random).to(next(tried.parameters()))
    outputs = _outputs(tried, x)
    if outputs is None:
        return None
    fitting = [layer for layer in _own_layers(tried) if _is_head(tried, layer, x, outputs.reshape(SAMPLES, -1))]
    return fitting[0] if len(fitting) == 1 else None


def _stirred(module: nn.Module, random: torch.Generator) -> nn.Module:
    """A copy with noise on all parameters, frozen ones too, small enough that signals keep their size."""
    copied = deepcopy(module)
    with torch.no_grad():
        for p in copied.parameters():
            p.add_(torch.randn(p.shape, generator=random).to(p), alpha=max(1, p.shape[1:].numel()) ** -0.5)
    return copied


def _own_layers(module: nn.Module) -> list[str]:
    """The fully connected layers whose weight and bias are trained and belong to no other layer."""
    trained = _trained(module)
    layers = [name for name, part in module.named_modules() if name and isinstance(part, nn.Linear)]
    return [layer for layer in layers if trained ^ _trained(without(module, layer)) == _arrays(layer)]


def _trained(module: nn.Module) -> set[str]:
    return {name for name, p in module.named_parameters() if p.requires_grad}


def _arrays(layer: str) -> set[str]:
    return {f"{layer}.weight", f"{layer}.bias"}


def _is_head(module: nn.Module, layer: str, x: Tensor, outputs: Tensor) -> bool:
    """Whether the layer of what the rest gives is the outputs (n, C)."""
    head, features = module.get_submodule(layer), _outputs(without(module, layer), x)
    if features is None or features.shape != (SAMPLES, head.in_features) or head.out_features != outputs.shape[1]:
        return False
    with torch.no_grad():
        return bool((head(features) - outputs).abs().max() <= NEAR * outputs.abs().max())


def _outputs(module: nn.Module, x: Tensor) -> Tensor | None:
    """None where it fails: without a layer, or with these parameters and samples, a module may do so in any way."""
    try:
        with torch.no_grad():
            result: Tensor = module(x)
    except Exception:
        return None
    return result
