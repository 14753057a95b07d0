"""Gradient steps of a multi-layer perceptron without autograd for many clients at once.

The results equal those of autograd up to rounding. `descend_by_hand` takes mini-batch steps of plain SGD with all
layers, `descend_body_by_hand` with the layers below cluster heads. `gradients_by_hand` computes gradients for other
optimizers, and `gradient_of_all` those of layers below cluster heads together with the heads.

`contribute_by_gram` takes full-batch steps of plain SGD without updating the first layer. The inputs X (n x d) of a
client do not change, so a step changes its pre-activations Z = X W^T + b to Z - lr (X X^T + 1) G, where G is the
gradient with respect to Z, the matrix X X^T is n x n, and the 1 is for the bias. The change of the weights, -lr (sum of
G)^T X, is linear in G, so its sum over the members of a cluster is one matrix product, and no client needs its own
first layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.learners.contribution import Contribution, all_finite, weigh
from coterie.learners.descent import Batch, BatchPlan, Descent, GradientOf, RunningLoss, batches
from coterie.learners.heads import Heads, Top
from coterie.learners.local_training import LocalTraining
from coterie.learners.products import multiply, multiply_each, subtract_products_


def gram_pays(samples: int, inputs: int, hidden: int, steps: int) -> bool:
    """Return whether the Gram matrix saves multiplications for one client, compared with steps of the weights.

    Args:
        samples: Number of samples (n).
        inputs: Number of inputs (d).
        hidden: Width of the first layer.
        steps: Number of steps.
    """
    direct = 2 * steps * samples * inputs * hidden
    gram = steps * samples**2 * hidden + samples**2 * inputs + samples * inputs * hidden
    return gram <= direct


def descend_by_hand(theta: Params, block: Block, training: LocalTraining, lr: float, classes: int | None) -> Descent:
    """Return the result of steps of plain SGD with each client's model, {name: (B, ...)}."""
    first, bias = theta["layer0.weight"].clone(), theta["layer0.bias"].clone()
    layers = _Upper.copied(theta)
    running = RunningLoss(training)
    for batch in batches(block, training):
        x = batch.x.flatten(2)
        z = multiply_each(x, first, bias)
        target = targets(layers.outputs, batch.y, batch.share, classes)
        gradient, fit = _step(layers, z, target, batch.share[:, None], lr, classes)
        subtract_products_(first, gradient, x, lr)
        bias.sub_(gradient.sum(dim=1), alpha=lr)
        if running.wanted:
            running.add(mean_loss(fit, target, batch.share, classes), batch)
    change = {"layer0.weight": first.sub_(theta["layer0.weight"]), "layer0.bias": bias.sub_(theta["layer0.bias"])}
    return Descent(change | layers.change(theta), running.mean())


def gradients_by_hand(theta: Params, batch: Batch, classes: int | None, l2: float) -> tuple[Params, Tensor]:
    """Return the gradient of each client on a batch, {name: (B, ...)}, with L2 penalty, and the mean loss, (B,)."""
    last = len(theta) // 2 - 1
    weights = [theta[f"layer{i}.weight"] for i in range(last + 1)]
    active = [batch.x.flatten(2)]
    for i in range(last):
        active.append(torch.relu(multiply_each(active[-1], weights[i], theta[f"layer{i}.bias"])))
    out = torch.baddbmm(theta[f"layer{last}.bias"][..., None], weights[last], active[last].transpose(1, 2))
    target = targets(out.shape[1], batch.y, batch.share, classes)
    delta, fit = output_gradient(out, target, batch.share[:, None], classes)  # (B, C, n)
    gradient = {}
    for i in range(last, -1, -1):
        gradient[f"layer{i}.weight"] = multiply_each(delta, active[i].transpose(1, 2))
        gradient[f"layer{i}.bias"] = delta.sum(dim=2)
        if l2:
            gradient[f"layer{i}.weight"].add_(weights[i], alpha=l2)
        if i:
            back = torch.bmm(delta.transpose(1, 2), weights[i])
            delta = torch.ops.aten.threshold_backward(back, active[i], 0).transpose(1, 2)
    return gradient, mean_loss(fit, target, batch.share, classes)


def descend_body_by_hand(
    body: Params,
    heads: Heads,
    block: Block,
    training: LocalTraining,
    lr: float,
    classes: int | None,
    planned: BatchPlan | None,
) -> Params:
    """Return the change of the layers below the heads, {name: (B, ...)}.

    Args:
        body: Parameters of these layers, {name: (B, ...)}.
        heads: Heads of all clusters.
        block: Samples of the clients; `block.shares` is the weight of each sample for each head.
        training: Local training by plain SGD.
        lr: Learning rate of the round.
        classes: Number of classes; None for regression.
        planned: All mini-batches, if they have already been planned.
    """
    depth = len(body) // 2
    moved = {name: p.clone() for name, p in body.items()}
    weights = [moved[f"layer{i}.weight"] for i in range(depth)]
    biases = [moved[f"layer{i}.bias"][:, None] for i in range(depth)]
    top = Top.of(heads, classes)
    for batch in batches(block, training, planned):
        _step_body(weights, biases, top, batch, lr)
    return {name: p.sub_(body[name]) for name, p in moved.items()}


def _step_body(weights: list[Tensor], biases: list[Tensor], top: Top, batch: Batch, lr: float) -> None:
    """Take one gradient step with weights (B, out, in) and biases (B, 1, out), in place."""
    active = [batch.x.flatten(2)]
    for weight, bias in zip(weights, biases, strict=True):
        active.append(torch.relu(multiply_each(active[-1], weight, bias[:, 0])))
    back = torch.bmm(top.output_gradient(active[-1], batch).transpose(1, 2), top.weight)
    for i in range(len(weights) - 1, -1, -1):
        delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)
        if i:
            back = torch.bmm(delta, weights[i])
        subtract_products_(weights[i], delta, active[i], lr)
        biases[i].sub_(delta.sum(dim=1, keepdim=True), alpha=lr)


def gradient_of_all(classes: int | None) -> GradientOf:
    """Return a function that computes the gradients of the body and of all heads; it reports no losses.

    Args:
        classes: Number of classes; None for regression.
    """

    def gradient_of(theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        depth = len(theta) // 2 - 1
        weights = [theta[f"layer{i}.weight"] for i in range(depth)]
        active = [batch.x.flatten(2)]
        for i, weight in enumerate(weights):
            active.append(torch.relu(multiply_each(active[-1], weight, theta[f"layer{i}.bias"])))
        top = Top.of(Heads(theta[f"layer{depth}.weight"], theta[f"layer{depth}.bias"]), classes)
        outer = top.output_gradient(active[-1], batch)  # (B, C K, b)
        own = Top(torch.bmm(outer, active[-1]), outer.sum(dim=2, keepdim=True), top.K, classes).heads()
        gradient = {f"layer{depth}.weight": own.weight, f"layer{depth}.bias": own.bias}
        back = torch.bmm(outer.transpose(1, 2), top.weight)
        for i in range(depth - 1, -1, -1):
            delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)  # (B, b, out)
            gradient[f"layer{i}.weight"] = multiply_each(delta.transpose(1, 2), active[i].transpose(1, 2))
            gradient[f"layer{i}.bias"] = delta.sum(dim=1)
            if i:
                back = torch.bmm(delta, weights[i])
        return gradient, torch.zeros_like(batch.counts)

    return gradient_of


@dataclass(frozen=True)
class _Upper:
    """Copies of the layers above the first for each client, in shapes that need no transposition in a step."""

    weights: list[Tensor]
    """Weights of each layer, (B, out, in)."""
    transposed: list[Tensor]
    """Views of the weights, (B, in, out)."""
    biases: list[Tensor]
    """Biases of each layer, (B, 1, out), or (B, out, 1) for the last layer."""

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
        """Return the change from `theta`; the layers are overwritten."""
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
    """Return the weighted sums of the changes by full-batch steps of plain SGD, for each model.

    Args:
        models: Models of the server, {name: (S, ...)}.
        rows: Index of the model that each client trains in each restart, (B, R).
        block: Samples of the clients.
        steps: Number of steps.
        lr: Learning rate of the round.
        mass: Weight of each change in the sum, (B, R).
        memo: Pre-activations of the first layer of all models, (B, n, S, h), if they are known.
        classes: Number of classes; None for regression.
    """
    x = block.x.flatten(2)
    gram = multiply_each(x, x).add_(1)
    tracks = []
    for restart in range(rows.shape[1]):
        chosen = rows[:, restart]
        tracks.append(_train(models, chosen, block, gram, steps, lr, _first(models, chosen, x, memo), classes))
    change = {name: torch.stack([track[0][name] for track in tracks], dim=1) for name in tracks[0][0]}
    gradients = torch.stack([track[1] for track in tracks], dim=1)  # (B, R, n, h): sum of G
    finite = all_finite(gradients)
    given = weigh(change, rows, torch.where(finite, mass, 0), models["layer0.weight"].shape[0], "gram")
    finite = finite & given.finite
    weight = torch.where(finite, mass, 0)
    sums = _first_layer_sums(models, rows, x, gradients, -lr * weight) | given.sums
    return Contribution(sums, finite, "gram")


def _first(models: Params, chosen: Tensor, x: Tensor, memo: Tensor | None) -> Tensor:
    """Return the pre-activations of the first layer of the chosen models, (B, n, h), which may be overwritten."""
    if memo is not None:
        return memo[torch.arange(len(chosen)), :, chosen].clone()
    weight, bias = models["layer0.weight"][chosen], models["layer0.bias"][chosen]
    return multiply_each(x, weight, bias)


def _train(
    models: Params, chosen: Tensor, block: Block, gram: Tensor, steps: int, lr: float, z: Tensor, classes: int | None
) -> tuple[Params, Tensor]:
    """Return the change of all parameters but the first weight, {name: (B, ...)}, and the sum of G, (B, n, h)."""
    theta = take_rows({name: p for name, p in models.items() if not name.startswith("layer0.")}, chosen)
    layers = _Upper.copied(theta)
    real = torch.ones_like(block.y, dtype=torch.bool) if block.mask is None else block.mask
    share = (real / block.counts[:, None]).to(z.dtype)
    if block.focus is not None:
        share = share * block.focus
    target = targets(layers.outputs, block.y, share, classes)
    gradients = torch.zeros_like(z)
    for step in range(steps):
        gradient, _ = _step(layers, z, target, share[:, None], lr, classes)
        gradients += gradient
        if step < steps - 1:
            subtract_products_(z, gram, gradient, lr)  # the Gram matrix is symmetric
    return {"layer0.bias": -lr * gradients.sum(dim=1)} | layers.change(theta), gradients


def _step(
    layers: _Upper, z: Tensor, target: Tensor, share: Tensor, lr: float, classes: int | None
) -> tuple[Tensor, Tensor]:
    """Take one gradient step with the upper layers, in place.

    Returns:
        The gradient of the loss with respect to z (G), (B, n, h), and the second result of `output_gradient`.
    """
    active = [torch.relu(z)]
    for weight, bias in zip(layers.transposed[:-1], layers.biases[:-1], strict=True):
        active.append(torch.relu(torch.baddbmm(bias, active[-1], weight)))
    # samples are the last axis of the outputs, (B, C, n), so that the softmax over classes is vectorised
    out = torch.baddbmm(layers.biases[-1], layers.weights[-1], active[-1].transpose(1, 2))
    delta, fit = output_gradient(out, target, share, classes)
    back = torch.bmm(delta.transpose(1, 2), layers.weights[-1])
    layers.weights[-1].baddbmm_(delta, active[-1], alpha=-lr)
    layers.biases[-1].sub_(delta.sum(dim=2, keepdim=True), alpha=lr)
    for i in range(len(layers.weights) - 2, -1, -1):
        delta = torch.ops.aten.threshold_backward(back, active[i + 1], 0)
        back = torch.bmm(delta, layers.weights[i])
        layers.weights[i].baddbmm_(delta.transpose(1, 2), active[i], alpha=-lr)
        layers.biases[i].sub_(delta.sum(dim=1, keepdim=True), alpha=lr)
    gradient: Tensor = torch.ops.aten.threshold_backward(back, active[0], 0)
    return gradient, fit


def targets(outputs: int, y: Tensor, share: Tensor, classes: int | None) -> Tensor:
    """Return the targets, (B, C, n): minus the weight of the sample at its label, or the values for regression."""
    if classes is None:
        return y[:, None]
    empty = torch.zeros(len(y), outputs, y.shape[1], dtype=share.dtype, device=share.device)
    return empty.scatter_(1, y[:, None], -share[:, None])


def output_gradient(out: Tensor, target: Tensor, share: Tensor, classes: int | None) -> tuple[Tensor, Tensor]:
    """Return the gradient with respect to the outputs and the log-likelihoods (or residuals), both (B, C, n)."""
    if classes is None:
        residual = out - target
        return residual * share, residual
    likelihood = torch.log_softmax(out, dim=1)
    # share times (softmax minus one-hot label), in a single pass
    gradient: Tensor = torch.ops.aten._log_softmax_backward_data(target, likelihood, 1, out.dtype)
    return gradient, likelihood


def mean_loss(fit: Tensor, target: Tensor, share: Tensor, classes: int | None) -> Tensor:
    """Return the mean loss of each client on a batch, (B,), given the second result of `output_gradient`."""
    if classes is None:
        return (fit.squeeze(1) ** 2 * share).sum(dim=1) / 2
    return (fit * target).sum(dim=(1, 2))


def _first_layer_sums(models: Params, rows: Tensor, x: Tensor, gradients: Tensor, weight: Tensor) -> Params:
    """Return the sums of weight * (sum of G)^T X over the members of each model, (S, h, d)."""
    total = torch.zeros_like(models["layer0.weight"])
    scaled = gradients * weight[..., None, None]
    if not bool(weight.all()):  # 0 times infinity would be NaN
        scaled = torch.where(weight[..., None, None] != 0, scaled, 0)
    for restart in range(rows.shape[1]):
        for row in torch.unique(rows[:, restart]):
            members = rows[:, restart] == row
            everyone = bool(members.all())
            g = scaled[:, restart] if everyone else scaled[members, restart]
            inputs = x if everyone else x[members]
            total[row] += multiply(g.flatten(0, 1).T, inputs.flatten(0, 1).T)
    return {"layer0.weight": total}
