"""Gradient steps of a perceptron by hand, for many clients at once; faster than autograd, and the same to rounding.

Mini-batches step every layer (`descend_by_hand`). With full-batch steps the first layer need not be touched: a client's
inputs X (n x d) do not change, so its pre-activations Z = X W^T + b obey Z <- Z - lr (X X^T + 1) G, with G the gradient
at Z and the 1 for the bias. X X^T is n x n. The weights move by -lr (sum of G)^T X, and since that is linear in G, the
sum over the members of a cluster is one matrix product: no client's first layer is ever held (`contribute_by_gram`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params
from coterie.learners.contribution import Contribution, weigh
from coterie.learners.descent import LocalWork, batches


def gram_pays(samples: int, inputs: int, hidden: int, steps: int) -> bool:
    """Whether fewer multiplications are needed than by stepping the weights themselves, for one client."""
    direct = 2 * steps * samples * inputs * hidden
    gram = steps * samples**2 * hidden + samples**2 * inputs + samples * inputs * hidden
    return gram <= direct


def descend_by_hand(theta: Params, block: Block, work: LocalWork, lr: float, classes: int | None) -> Params:
    """The change of each client's model {name: (B, ...)} by plain gradient steps."""
    first, bias = theta["layer0.weight"].clone(), theta["layer0.bias"].clone()
    layers = _upper(theta)
    for batch in batches(block, work):
        x = batch.x.flatten(2)
        z = torch.baddbmm(bias[:, None], x, first.transpose(1, 2))
        pull = _step(layers, z, batch.y, batch.share[:, None], lr, classes)
        first.baddbmm_(pull.transpose(1, 2), x, alpha=-lr)
        bias.sub_(pull.sum(dim=1), alpha=lr)
    change = {"layer0.weight": first - theta["layer0.weight"], "layer0.bias": bias - theta["layer0.bias"]}
    return change | _upper_change(layers, theta)


@dataclass
class _Upper:
    """The layers above the first, a copy for each client: weights {(B, out, in)}, biases {(B, out)}."""

    weights: list[Tensor]
    biases: list[Tensor]


def contribute_by_gram(
    models: Params,
    rows: Tensor,
    block: Block,
    steps: int,
    lr: float,
    mass: Tensor,
    memo: Tensor | None,
    classes: int | None,
) -> Contribution:
    """What `steps` full-batch steps change, weighted and added up for each model {name: (S, ...)}.

    rows, mass (B, R): which model each client trains in each lane, and what its change counts. memo (B, n, S, h): the
    first layer's pre-activations of all models, if they are known.
    """
    x = block.x.flatten(2)
    gram = x @ x.transpose(1, 2) + 1
    tracks = []
    for lane in range(rows.shape[1]):
        chosen = rows[:, lane]
        tracks.append(_train(models, chosen, block, gram, steps, lr, _first(models, chosen, x, memo), classes))
    change = {name: torch.stack([track[0][name] for track in tracks], dim=1) for name in tracks[0][0]}
    pulls = torch.stack([track[1] for track in tracks], dim=1)  # (B, R, n, h): sum of G
    finite = pulls.isfinite().flatten(2).all(dim=2)
    given = weigh(change, rows, torch.where(finite, mass, 0), models["layer0.weight"].shape[0])
    finite = finite & given.finite
    weight = torch.where(finite, mass, 0)
    sums = _first_layer_sums(models, rows, x, pulls, -lr * weight) | given.sums
    return Contribution(sums, finite)


def _first(models: Params, chosen: Tensor, x: Tensor, memo: Tensor | None) -> Tensor:
    """Pre-activations of the first layer under the chosen models, (B, n, h), free to be overwritten."""
    if memo is not None:
        return memo[torch.arange(len(chosen)), :, chosen].clone()
    weight, bias = models["layer0.weight"][chosen], models["layer0.bias"][chosen]
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def _train(
    models: Params, chosen: Tensor, block: Block, gram: Tensor, steps: int, lr: float, z: Tensor, classes: int | None
) -> tuple[Params, Tensor]:
    """The change of all layers but the first weight, {name: (B, ...)}, and the sum of G, (B, n, h)."""
    theta = {name: p[chosen] for name, p in models.items() if not name.startswith("layer0.")}
    layers = _upper(theta)
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = (real / block.counts[:, None])[:, None].to(z.dtype)  # (B, 1, n)
    pulls = torch.zeros_like(z)
    for step in range(steps):
        pull = _step(layers, z, block.y, share, lr, classes)
        pulls += pull
        if step < steps - 1:
            z.baddbmm_(gram, pull, alpha=-lr)
    return {"layer0.bias": -lr * pulls.sum(dim=1)} | _upper_change(layers, theta), pulls


def _upper(theta: Params) -> _Upper:
    """Copies of the layers above the first, in order."""
    above = sorted({int(name[5 : name.index(".")]) for name in theta} - {0})
    return _Upper([theta[f"layer{i}.weight"].clone() for i in above], [theta[f"layer{i}.bias"].clone() for i in above])


def _upper_change(layers: _Upper, theta: Params) -> Params:
    """By how much the layers above the first have moved away from `theta`."""
    change = {}
    for i, (weight, bias) in enumerate(zip(layers.weights, layers.biases, strict=True), start=1):
        change[f"layer{i}.weight"] = weight - theta[f"layer{i}.weight"]
        change[f"layer{i}.bias"] = bias - theta[f"layer{i}.bias"]
    return change


def _step(layers: _Upper, z: Tensor, y: Tensor, share: Tensor, lr: float, classes: int | None) -> Tensor:
    """One gradient step of the upper layers, in place; returns G = dLoss/dz, (B, n, h)."""
    active = [torch.relu(z)]
    for weight, bias in zip(layers.weights[:-1], layers.biases[:-1], strict=True):
        active.append(torch.relu(torch.baddbmm(bias[:, None], active[-1], weight.transpose(1, 2))))
    # the last layer has its samples last, (B, C, n): so the softmax over classes is vectorised
    out = torch.baddbmm(layers.biases[-1][..., None], layers.weights[-1], active[-1].transpose(1, 2))
    delta = _output_gradient(out, y, share, classes)
    back = delta.transpose(1, 2) @ layers.weights[-1]
    layers.weights[-1].baddbmm_(delta, active[-1], alpha=-lr)
    layers.biases[-1].sub_(delta.sum(dim=2), alpha=lr)
    for i in range(len(layers.weights) - 2, -1, -1):
        delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)
        back = delta @ layers.weights[i]
        layers.weights[i].baddbmm_(delta.transpose(1, 2), active[i], alpha=-lr)
        layers.biases[i].sub_(delta.sum(dim=1), alpha=lr)
    pull: Tensor = torch.ops.aten.threshold_backward(back, active[0], 0)
    return pull


def _output_gradient(out: Tensor, y: Tensor, share: Tensor, classes: int | None) -> Tensor:
    """d loss / d output, (B, C, n): softmax minus the label, or prediction minus target, times the sample's share."""
    if classes is None:
        return (out - y[:, None]) * share
    gradient = torch.softmax(out, dim=1)
    gradient.scatter_add_(1, y[:, None], torch.full_like(y, -1, dtype=out.dtype)[:, None])
    return gradient * share


def _first_layer_sums(models: Params, rows: Tensor, x: Tensor, pulls: Tensor, weight: Tensor) -> Params:
    """sum over members of weight * (sum of G)^T X for each model, (S, h, d): one product a model."""
    total = torch.zeros_like(models["layer0.weight"])
    scaled = torch.where(weight[..., None, None] != 0, pulls * weight[..., None, None], 0)
    for lane in range(rows.shape[1]):
        for row in torch.unique(rows[:, lane]):
            members = rows[:, lane] == row
            everybody = bool(members.all())
            g = scaled[:, lane] if everybody else scaled[members, lane]
            inputs = x if everybody else x[members]
            total[row] += g.flatten(0, 1).T @ inputs.flatten(0, 1)
    return {"layer0.weight": total}
