"""Gradient steps of a perceptron without autograd, for many clients at once; faster, and the same to rounding.

Plain SGD on mini-batches steps every layer (`descend_by_hand`), or every layer below the heads of all clusters
(`descend_body_by_hand`). Other optimizers are given the gradients (`gradients_by_hand`).

With full-batch steps of plain SGD the first layer need not be touched: a client's inputs X (n x d) do not change, so
its pre-activations Z = X W^T + b obey Z <- Z - lr (X X^T + 1) G, with G the gradient at Z and the 1 for the bias.
X X^T is n x n. The weights move by -lr (sum of G)^T X, and since that is linear in G, the sum over the members of a
cluster is one matrix product: no client's first layer is ever held (`contribute_by_gram`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.learners.contribution import Contribution, all_finite, weigh
from coterie.learners.descent import Batch, BatchPlan, Descent, RunningLoss, batches
from coterie.learners.heads import Heads, Top
from coterie.learners.local_training import LocalTraining


def gram_pays(samples: int, inputs: int, hidden: int, steps: int) -> bool:
    """Whether fewer multiplications are needed than by stepping the weights themselves, for one client."""
    direct = 2 * steps * samples * inputs * hidden
    gram = steps * samples**2 * hidden + samples**2 * inputs + samples * inputs * hidden
    return gram <= direct


def descend_by_hand(theta: Params, block: Block, training: LocalTraining, lr: float, classes: int | None) -> Descent:
    """Plain gradient steps of each client's model {name: (B, ...)}."""
    first, bias = theta["layer0.weight"].clone(), theta["layer0.bias"].clone()
    first_turned, bias_row = first.transpose(1, 2), bias[:, None]
    layers = _Upper.copied(theta)
    running = RunningLoss(training)
    for batch in batches(block, training):
        x = batch.x.flatten(2)
        z = torch.baddbmm(bias_row, x, first_turned)
        target = _target(layers.outputs, batch.y, batch.share, classes)
        pull, fit = _step(layers, z, target, batch.share[:, None], lr, classes)
        first.baddbmm_(pull.transpose(1, 2), x, alpha=-lr)
        bias.sub_(pull.sum(dim=1), alpha=lr)
        if running.wanted:
            running.add(_mean_loss(fit, target, batch.share, classes), batch)
    change = {"layer0.weight": first.sub_(theta["layer0.weight"]), "layer0.bias": bias.sub_(theta["layer0.bias"])}
    return Descent(change | layers.change(theta), running.mean())


def gradients_by_hand(theta: Params, batch: Batch, classes: int | None, l2: float) -> tuple[Params, Tensor]:
    """Return each client's gradient on a batch {name: (B, ...)}, L2 penalty included, and its mean loss (B,)."""
    last = len(theta) // 2 - 1
    weights = [theta[f"layer{i}.weight"] for i in range(last + 1)]
    active = [batch.x.flatten(2)]
    for i in range(last):
        active.append(
            torch.relu(torch.baddbmm(theta[f"layer{i}.bias"][:, None], active[-1], weights[i].transpose(1, 2)))
        )
    out = torch.baddbmm(theta[f"layer{last}.bias"][..., None], weights[last], active[last].transpose(1, 2))
    target = _target(out.shape[1], batch.y, batch.share, classes)
    delta, fit = _output_gradient(out, target, batch.share[:, None], classes)  # (B, C, n)
    gradient = {}
    for i in range(last, -1, -1):
        gradient[f"layer{i}.weight"] = torch.bmm(delta, active[i])
        gradient[f"layer{i}.bias"] = delta.sum(dim=2)
        if l2:
            gradient[f"layer{i}.weight"].add_(weights[i], alpha=l2)
        if i:
            back = torch.bmm(delta.transpose(1, 2), weights[i])
            delta = torch.ops.aten.threshold_backward(back, active[i], 0).transpose(1, 2)
    return gradient, _mean_loss(fit, target, batch.share, classes)


def descend_body_by_hand(
    body: Params,
    heads: Heads,
    block: Block,
    training: LocalTraining,
    lr: float,
    classes: int | None,
    planned: BatchPlan | None,
) -> Params:
    """The change of the layers below the heads {name: (B, ...)}; what samples count for each head is in the block."""
    depth = len(body) // 2
    moved = {name: p.clone() for name, p in body.items()}
    weights = [moved[f"layer{i}.weight"] for i in range(depth)]
    biases = [moved[f"layer{i}.bias"][:, None] for i in range(depth)]
    top = Top.of(heads, classes)
    for batch in batches(block, training, planned):
        _step_body(weights, biases, top, batch, lr)
    return {name: p.sub_(body[name]) for name, p in moved.items()}


def _step_body(weights: list[Tensor], biases: list[Tensor], top: Top, batch: Batch, lr: float) -> None:
    """One gradient step of the layers (B, out, in), (B, 1, out), in place."""
    active = [batch.x.flatten(2)]
    for weight, bias in zip(weights, biases, strict=True):
        active.append(torch.relu(torch.baddbmm(bias, active[-1], weight.transpose(1, 2))))
    back = torch.bmm(top.slope(active[-1], batch).transpose(1, 2), top.weight)
    for i in range(len(weights) - 1, -1, -1):
        delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)
        if i:
            back = torch.bmm(delta, weights[i])
        weights[i].baddbmm_(delta.transpose(1, 2), active[i], alpha=-lr)
        biases[i].sub_(delta.sum(dim=1, keepdim=True), alpha=lr)


@dataclass(frozen=True)
class _Upper:
    """The layers above the first, a copy for each client, as they are used: no step has to turn or reshape them."""

    weights: list[Tensor]
    """(B, out, in) each."""
    turned: list[Tensor]
    """(B, in, out), views of the weights."""
    biases: list[Tensor]
    """(B, 1, out), in the last layer (B, out, 1)."""

    @property
    def outputs(self) -> int:
        """Number of outputs of the last layer."""
        return self.weights[-1].shape[1]

    @classmethod
    def copied(cls, theta: Params) -> _Upper:
        above = sorted({int(name[5 : name.index(".")]) for name in theta} - {0})
        weights = [theta[f"layer{i}.weight"].clone() for i in above]
        biases = [theta[f"layer{i}.bias"].clone()[:, None] for i in above]
        biases[-1] = biases[-1].transpose(1, 2)
        return cls(weights, [w.transpose(1, 2) for w in weights], biases)

    def change(self, theta: Params) -> Params:
        """By how much they have moved away from `theta`; they are used up by this."""
        change = {}
        for i, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True), start=1):
            change[f"layer{i}.weight"] = weight.sub_(theta[f"layer{i}.weight"])
            change[f"layer{i}.bias"] = bias.flatten(1).sub_(theta[f"layer{i}.bias"])
        return change


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

    rows, mass (B, R): which model each client trains in each restart, and what its change counts. memo (B, n, S, h):
    the first layer's pre-activations of all models, if they are known.
    """
    x = block.x.flatten(2)
    gram = x @ x.transpose(1, 2) + 1
    tracks = []
    for restart in range(rows.shape[1]):
        chosen = rows[:, restart]
        tracks.append(_train(models, chosen, block, gram, steps, lr, _first(models, chosen, x, memo), classes))
    change = {name: torch.stack([track[0][name] for track in tracks], dim=1) for name in tracks[0][0]}
    pulls = torch.stack([track[1] for track in tracks], dim=1)  # (B, R, n, h): sum of G
    finite = all_finite(pulls)
    given = weigh(change, rows, torch.where(finite, mass, 0), models["layer0.weight"].shape[0], "gram")
    finite = finite & given.finite
    weight = torch.where(finite, mass, 0)
    sums = _first_layer_sums(models, rows, x, pulls, -lr * weight) | given.sums
    return Contribution(sums, finite, "gram")


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
    theta = take_rows({name: p for name, p in models.items() if not name.startswith("layer0.")}, chosen)
    layers = _Upper.copied(theta)
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = (real / block.counts[:, None]).to(z.dtype)
    if block.focus is not None:
        share = share * block.focus
    target = _target(layers.outputs, block.y, share, classes)
    pulls = torch.zeros_like(z)
    for step in range(steps):
        pull, _ = _step(layers, z, target, share[:, None], lr, classes)
        pulls += pull
        if step < steps - 1:
            z.baddbmm_(gram, pull, alpha=-lr)
    return {"layer0.bias": -lr * pulls.sum(dim=1)} | layers.change(theta), pulls


def _step(
    layers: _Upper, z: Tensor, target: Tensor, share: Tensor, lr: float, classes: int | None
) -> tuple[Tensor, Tensor]:
    """One gradient step of the upper layers, in place; returns G = dLoss/dz, (B, n, h), and what fits the target."""
    active = [torch.relu(z)]
    for turned, bias in zip(layers.turned[:-1], layers.biases[:-1], strict=True):
        active.append(torch.relu(torch.baddbmm(bias, active[-1], turned)))
    # the last layer has its samples last, (B, C, n): so the softmax over classes is vectorised
    out = torch.baddbmm(layers.biases[-1], layers.weights[-1], active[-1].transpose(1, 2))
    delta, fit = _output_gradient(out, target, share, classes)
    back = torch.bmm(delta.transpose(1, 2), layers.weights[-1])
    layers.weights[-1].baddbmm_(delta, active[-1], alpha=-lr)
    layers.biases[-1].sub_(delta.sum(dim=2, keepdim=True), alpha=lr)
    for i in range(len(layers.weights) - 2, -1, -1):
        delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)
        back = torch.bmm(delta, layers.weights[i])
        layers.weights[i].baddbmm_(delta.transpose(1, 2), active[i], alpha=-lr)
        layers.biases[i].sub_(delta.sum(dim=1, keepdim=True), alpha=lr)
    pull: Tensor = torch.ops.aten.threshold_backward(back, active[0], 0)
    return pull, fit


def _target(outputs: int, y: Tensor, share: Tensor, classes: int | None) -> Tensor:
    """What the outputs should be, (B, C, n): minus the sample's share at its label, or the numbers themselves."""
    if classes is None:
        return y[:, None]
    empty = torch.zeros(len(y), outputs, y.shape[1], dtype=share.dtype, device=share.device)
    return empty.scatter_(1, y[:, None], -share[:, None])


def _output_gradient(out: Tensor, target: Tensor, share: Tensor, classes: int | None) -> tuple[Tensor, Tensor]:
    """d loss / d output, (B, C, n), and the log-likelihoods, or predictions minus targets, of the same shape."""
    if classes is None:
        gap = out - target
        return gap * share, gap
    likelihood = torch.log_softmax(out, dim=1)
    # share times (softmax minus the label), in one pass
    gradient: Tensor = torch.ops.aten._log_softmax_backward_data(target, likelihood, 1, out.dtype)
    return gradient, likelihood


def _mean_loss(fit: Tensor, target: Tensor, share: Tensor, classes: int | None) -> Tensor:
    """Each client's mean loss on a batch, (B,), from what `_output_gradient` gave."""
    if classes is None:
        return (fit.squeeze(1) ** 2 * share).sum(dim=1) / 2
    return (fit * target).sum(dim=(1, 2))


def _first_layer_sums(models: Params, rows: Tensor, x: Tensor, pulls: Tensor, weight: Tensor) -> Params:
    """sum over members of weight * (sum of G)^T X for each model, (S, h, d): one product a model."""
    total = torch.zeros_like(models["layer0.weight"])
    scaled = pulls * weight[..., None, None]
    if not bool(weight.all()):  # 0 times what is not finite would be NaN
        scaled = torch.where(weight[..., None, None] != 0, scaled, 0)
    for restart in range(rows.shape[1]):
        for row in torch.unique(rows[:, restart]):
            members = rows[:, restart] == row
            everybody = bool(members.all())
            g = scaled[:, restart] if everybody else scaled[members, restart]
            inputs = x if everybody else x[members]
            total[row] += g.flatten(0, 1).T @ inputs.flatten(0, 1)
    return {"layer0.weight": total}
