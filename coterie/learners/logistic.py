"""Binary and multinomial logistic regression with an L2 penalty."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.dataset import Profile
from coterie.core.keys import generator
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import Batch, Descent, descend_by_steps, join_tracks, tracks
from coterie.learners.export_modules import LogisticModule
from coterie.learners.local_training import FULL_BATCHES, LocalTraining
from coterie.learners.minimum import Glm
from coterie.learners.network import PlainNetwork, check_penalty
from coterie.learners.one_pass import MOST_MODELS, RoundResult, RoundWork, run_round

FEW_FEATURES = 48
"""With fewer features, several steps in float32 are faster by matrix products than in one pass."""


@dataclass(frozen=True)
class Logistic(PlainNetwork):
    """Logistic regression; parameters: `weight` (d,) and `bias` () for two classes, else (C, d) and (C,)."""

    width: int
    """Number of features (d)."""
    bias: bool
    """Whether the model has a bias."""

    @property
    def binary(self) -> bool:
        """Whether there are two classes and therefore a single logit."""
        return self.classes == 2

    @property
    def usual_training(self) -> LocalTraining:
        return FULL_BATCHES

    @property
    def curvature(self) -> float:
        """Upper bound 1/4 of p (1 - p), or 1/2 of the largest eigenvalue of diag(p) - p p^T."""
        return 0.25 if self.binary else 0.5

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        shape = (self.width,) if self.binary else (int(self.classes or 0), self.width)
        rows = [generator(key).standard_normal(shape) / np.sqrt(self.width) for key in keys]
        params = {"weight": torch.from_numpy(np.stack(rows)).to(dtype)}
        if self.bias:
            params["bias"] = torch.zeros((len(keys), *shape[:-1]), dtype=dtype)
        return params

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        weight = theta["weight"][:, None, :] if self.binary else theta["weight"]
        logits = x.flatten(2) @ weight.transpose(1, 2)
        if self.bias:
            bias = theta["bias"][:, None] if self.binary else theta["bias"]
            logits = logits + bias[:, None, :]
        return torch.cat([torch.zeros_like(logits), logits], dim=-1) if self.binary else logits

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of all models; for two classes, by one product for all models."""
        if not self.binary:
            return super().score(models, block)
        logits = block.x.flatten(2).flatten(0, 1) @ models["weight"].T
        if self.bias:
            logits = logits + models["bias"]
        signs = (2 * block.y.flatten() - 1).to(logits)[:, None]
        return Scored(-functional.logsigmoid(signs * logits).reshape(*block.y.shape, -1))

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        """Return the result of gradient steps; in full-batch training, all models of a client take a step together."""
        if training.full_batch_steps is not None:
            return descend_by_steps(self._gradients, theta, block, training, lr, towards)
        return join_tracks(
            [descend_by_steps(self._gradient, one, block, training, lr, to) for one, to in tracks(theta, towards)]
        )

    def _gradient(self, theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Return the gradient and the mean loss of one model of each client, {name: (B, ...)} and (B,)."""
        gradients, _ = self._gradients({name: p[:, None] for name, p in theta.items()}, batch)
        loss = (self.losses(theta, batch.x, batch.y) * batch.share).sum(dim=1)
        return {name: g[:, 0] for name, g in gradients.items()}, loss

    def _gradients(self, theta: Params, batch: Batch) -> tuple[Params, Tensor]:
        """Return the gradients of L models of each client, {name: (B, L, ...)}, and 0, as full batches need no loss.

        The gradient of a sample's loss with respect to the weights is (probabilities - one-hot label) x^T.
        """
        x, weight = batch.x.flatten(2), theta["weight"]
        shape = weight.shape[:-1]  # (B, L) for a single logit, (B, L, C) for several
        logits = weight.flatten(1, -2) @ x.transpose(1, 2)
        if self.bias:
            logits = logits + theta["bias"].flatten(1)[..., None]
        logits = logits.reshape(*shape, x.shape[1])
        if self.binary:
            errors = logits.sigmoid_().sub_(batch.y[:, None])
        else:
            labels = torch.arange(shape[-1], device=x.device)[:, None] == batch.y[:, None, None, :]
            errors = logits.softmax(dim=2).sub_(labels.to(logits.dtype))
        errors.mul_(batch.share.reshape(len(x), *(1,) * (len(shape) - 1), -1))
        gradients = {"weight": (errors.flatten(1, -2) @ x).reshape(weight.shape)}
        if self.l2:
            gradients["weight"].add_(weight, alpha=self.l2)
        if self.bias:
            gradients["bias"] = errors.sum(dim=-1)
        return gradients, batch.share.new_zeros(())

    def contribute(
        self,
        models: Params,
        rows: Tensor,
        block: Block,
        training: LocalTraining,
        lr: float,
        mass: Tensor,
        memo: Tensor | None,
    ) -> Contribution:
        """Return the weighted sums of the clients' changes for each model."""
        done = self._descent(take_rows(models, rows), block, training, lr)
        return weigh(done.change, rows, mass, len(models["weight"]), training.path("by-hand"), done.loss)

    def one_pass_pays(self, training: LocalTraining, models: Params) -> bool:
        """Return whether a round that reads the samples once is possible, and faster than matrix products."""
        weight, steps = models["weight"], training.full_batch_steps
        if steps is None or not (training.takes_gradient_steps and training.optimizer.plain):
            return False
        if type(self) is not Logistic:  # a subclass may have another loss
            return False
        pays = steps == 1 or self.width >= FEW_FEATURES or weight.dtype == torch.float64
        return pays and weight.flatten(0, -2).shape[0] <= MOST_MODELS

    def one_pass(self, work: RoundWork) -> RoundResult:
        """Return the result of a round that reads the samples once."""
        from coterie.learners import one_pass_kernels as kernels

        training, lr = work.training, work.lr
        settings = (int(self.bias), lr, lr * self.l2, lr * training.prox, training.full_batch_steps or 1)
        kernel = kernels.logistic_steps if self.binary else kernels.softmax_steps
        return run_round(kernel, work, work.shard.y.numpy(), *settings)

    def network(self, model: Params) -> nn.Module:
        return LogisticModule(model).eval()

    def glm(self, block: Block) -> Glm:
        """Return the local problem in float64."""
        phi = block.x.double().flatten(2)
        penalty = phi.new_full((self.width,), self.l2)
        if self.bias:
            phi = torch.cat([phi, torch.ones_like(phi[..., :1])], dim=2)
            penalty = torch.cat([penalty, penalty.new_zeros(1)])
        phi = phi if block.mask is None else torch.where(block.mask[..., None], phi, 0)
        return Glm(phi, block.y, block.sizes.double(), penalty, self.classes, 1.0, block.mask)

    def from_coefficients(self, theta: Tensor) -> Params:
        """Return weight and bias given coefficients of the local problem, (B, q, logits), with the bias last."""
        rows = theta[..., 0] if self.binary else theta.transpose(1, 2)
        return {"weight": rows[..., :-1], "bias": rows[..., -1]} if self.bias else {"weight": rows}

    def to_coefficients(self, models: Params) -> Tensor:
        """Return weight and bias as coefficients, (S, q, 1), or (S, q, C - 1) with class 0 as the reference."""
        rows = models["weight"].double()
        if self.bias:
            rows = torch.cat([rows, models["bias"].double()[..., None]], dim=-1)
        return rows[..., None] if self.binary else (rows[:, 1:] - rows[:, :1]).transpose(1, 2)


def logistic(profile: Profile, *, l2: float = 0.0, bias: bool = True) -> Logistic:
    """Logistic regression on the flattened features: softmax of one logit for each class; one logit for two classes."""
    if profile.classes is None:
        raise ConfigError("logistic predicts classes but the targets are numbers: use linear, or pass integer labels")
    check_penalty("logistic", l2)
    return Logistic(
        classes=max(2, profile.classes),
        spec=f"logistic:l2={l2!r},bias={bias}".lower(),
        dtype=torch.float64,
        l2=l2,
        width=int(np.prod(profile.features)),
        bias=bias,
    )
