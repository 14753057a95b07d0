"""Linear and logistic models as `torch.nn.Module`, for use outside Coterie."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from itertools import combinations_with_replacement

import torch
from torch import Tensor, nn

from coterie.core.clusters import Params


class LinearModule(nn.Module):
    """Linear regression on all monomials of the features up to a degree, from samples (n, ...) to predictions (n,).

    Args:
        model: Parameters of the model.
        features: Number of features.
        degree: Maximum degree of the monomials.
    """

    def __init__(self, model: Params, features: int, degree: int) -> None:
        super().__init__()
        self.weight = parameter(model["weight"])
        self.bias = parameter(model["bias"]) if "bias" in model else None
        for power in range(2, degree + 1):
            chosen = torch.tensor(list(combinations_with_replacement(range(features), power)))
            self.register_buffer(f"monomials{power}", chosen, persistent=False)
        self.degree = degree

    def forward(self, x: Tensor) -> Tensor:
        """Return the predictions, (n,)."""
        flat = x.flatten(1)
        columns = [flat]
        columns += [flat[:, self.get_buffer(f"monomials{power}")].prod(dim=-1) for power in range(2, self.degree + 1)]
        out = torch.cat(columns, dim=1) @ self.weight
        return out if self.bias is None else out + self.bias


class LogisticModule(nn.Module):
    """Softmax regression, from samples (n, ...) to logits (n, C); of two classes, the first has the logit zero.

    Args:
        model: Parameters of the model.
    """

    def __init__(self, model: Params) -> None:
        super().__init__()
        self.weight = parameter(model["weight"])
        self.bias = parameter(model["bias"]) if "bias" in model else None

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits, (n, C)."""
        flat = x.flatten(1)
        out = flat @ self.weight.T if self.weight.dim() == 2 else flat @ self.weight[:, None]
        out = out if self.bias is None else out + self.bias
        return out if self.weight.dim() == 2 else torch.cat([torch.zeros_like(out), out], dim=1)


def parameter(value: Tensor) -> nn.Parameter:
    """Return a copy of a tensor as a parameter."""
    return nn.Parameter(value.detach().clone())


def layers(parts: Iterable[tuple[str, nn.Module]], model: Params) -> nn.Sequential:
    """Return a sequence of named layers with these parameters, in evaluation mode."""
    network = nn.Sequential(OrderedDict(parts)).to(next(iter(model.values())).dtype)
    network.load_state_dict({name: value.detach() for name, value in model.items()})
    return network.eval()
