"""Multi-layer perceptron with ReLU activations, evaluated for all clients of a block by batched matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from coterie.core.blocks import Block
from coterie.core.clusters import Params, take_rows
from coterie.core.dataset import Profile
from coterie.core.keys import generator
from coterie.errors import ConfigError
from coterie.learners.contribution import Contribution, Scored, weigh
from coterie.learners.descent import (
    Batch,
    BatchPlan,
    Descent,
    descend_by_steps,
    descend_each_track,
    join_tracks,
    tracks,
)
from coterie.learners.export_modules import layers
from coterie.learners.heads import Heads
from coterie.learners.local_training import LocalTraining
from coterie.learners.network import Network, check_penalty, check_size
from coterie.learners.perceptron import (
    contribute_by_gram,
    descend_body_by_hand,
    descend_by_hand,
    gradients_by_hand,
    gram_pays,
)
from coterie.learners.products import multiply


@dataclass(frozen=True)
class MLP(Network):
    """Multi-layer perceptron; layer i has the parameters `layerI.weight` (out, in) and `layerI.bias` (out,)."""

    widths: tuple[int, ...]
    """Number of inputs, widths of the hidden layers, number of outputs."""

    def start(self, keys: Sequence[int], dtype: torch.dtype) -> Params:
        drawn = [self._draw(generator(key)) for key in keys]
        return {name: torch.from_numpy(np.stack([d[name] for d in drawn])).to(dtype) for name in drawn[0]}

    def _draw(self, random: np.random.Generator) -> dict[str, np.ndarray]:
        """Draw weights and biases from U(-1/sqrt(in), 1/sqrt(in)), as `torch.nn.Linear` does."""
        params = {}
        for index, (inside, outside) in enumerate(pairwise(self.widths)):
            bound = 1 / np.sqrt(inside)
            params[f"layer{index}.weight"] = random.uniform(-bound, bound, (outside, inside))
            params[f"layer{index}.bias"] = random.uniform(-bound, bound, outside)
        return params

    @property
    def products(self) -> int:
        """Number of multiplications of a forward pass for one sample."""
        return sum(inside * outside for inside, outside in pairwise(self.widths))

    @property
    def head(self) -> str:
        return f"layer{len(self.widths) - 2}"

    def outputs(self, theta: Params, x: Tensor) -> Tensor:
        return self._above(theta, _layer(theta, 0, x.flatten(2)))

    def network(self, model: Params) -> nn.Module:
        parts: list[tuple[str, nn.Module]] = [("flatten", nn.Flatten())]
        for index, (inside, outside) in enumerate(pairwise(self.widths)):
            parts += [(f"relu{index}", nn.ReLU())] if index else []
            parts.append((f"layer{index}", nn.Linear(inside, outside)))
        return layers(parts + ([("squeeze", nn.Flatten(0))] if self.classes is None else []), model)

    def _above(self, theta: Params, z: Tensor) -> Tensor:
        """Return the outputs, given the pre-activations of the first layer, z (B, n, h)."""
        z = _layer(theta, len(self.widths) - 2, self._features(theta, z))
        return z.squeeze(-1) if self.classes is None else z

    def features(self, theta: Params, x: Tensor) -> Tensor:
        return self._features(theta, _layer(theta, 0, x.flatten(2)))

    def _features(self, theta: Params, z: Tensor) -> Tensor:
        for index in range(1, len(self.widths) - 2):
            z = _layer(theta, index, torch.relu(z))
        return torch.relu(z)

    def score(self, models: Params, block: Block) -> Scored:
        """Return the losses of all models; the memo contains the pre-activations of the first layer, (B, n, S, h).

        The first layers of all models are computed in one product. If all models have the same body, its features are
        computed once, and there is no memo.
        """
        if len(models[f"{self.head}.bias"]) > 1 and all(
            p.stride(0) == 0 for name, p in models.items() if not name.startswith(f"{self.head}.")
        ):
            return self._score_heads(models, block)
        weight, bias = models["layer0.weight"], models["layer0.bias"]
        flat = multiply(block.x.flatten(2).flatten(0, 1), weight.flatten(0, 1), bias.flatten())
        first = flat.reshape(len(flat), *bias.shape)  # (B n, S, h)
        labels = block.y.flatten()[None]
        columns = []
        for row in range(len(bias)):
            theta = {name: p[row : row + 1] for name, p in models.items()}
            columns.append(self.loss(self._above(theta, first[None, :, row]), labels)[0])
        losses = torch.stack(columns, dim=-1).reshape(*block.y.shape, -1)
        return Scored(losses, first.reshape(*block.y.shape, *bias.shape))

    def _score_heads(self, models: Params, block: Block) -> Scored:
        """Return the losses of models with the same body."""
        z = self.features({name: p[:1] for name, p in models.items()}, block.x.flatten(0, 1)[None])
        weight, bias = models[f"{self.head}.weight"], models[f"{self.head}.bias"]
        flat = torch.addmm(bias.flatten(), z[0], weight.flatten(0, 1).T).reshape(-1, *bias.shape).transpose(0, 1)
        outputs = flat.squeeze(-1) if self.classes is None else flat
        losses = self.loss(outputs, block.y.flatten().expand(outputs.shape[:2]))
        return Scored(losses.T.reshape(*block.y.shape, -1))

    def descend(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Params:
        """Return the changes by local training, without autograd if possible."""
        return self._descent(theta, block, training, lr, towards).change

    def _descent(
        self, theta: Params, block: Block, training: LocalTraining, lr: float, towards: Params | None = None
    ) -> Descent:
        if self._plain(training):
            return join_tracks([descend_by_hand(one, block, training, lr, self.classes) for one, _ in tracks(theta)])
        if training.optimizer.plain:
            return descend_each_track(self._objective, theta, block, training, lr, towards)

        def gradient_of(now: Params, batch: Batch) -> tuple[Params, Tensor]:
            return gradients_by_hand(now, batch, self.classes, self.l2)

        return join_tracks(
            [descend_by_steps(gradient_of, one, block, training, lr, to) for one, to in tracks(theta, towards)]
        )

    def _plain(self, training: LocalTraining) -> bool:
        """Return whether the training consists of several steps of plain SGD on the mean loss without penalties.

        A single step uses autograd, which returns exactly -lr times the gradient.
        """
        alone = training.prox == 0 and self.l2 == 0
        return alone and training.takes_gradient_steps and training.optimizer.plain and not training.single_step

    def descend_body(
        self,
        body: Params,
        heads: Heads,
        block: Block,
        training: LocalTraining,
        lr: float,
        planned: BatchPlan | None = None,
    ) -> Params | None:
        """Return the change of the body, computed without autograd, or None if that is not possible."""
        if not self._plain(training):
            return None
        return descend_body_by_hand(body, heads, block, training, lr, self.classes, planned)

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
        """Return the sums; full-batch steps of plain SGD use the Gram matrix if it needs fewer multiplications."""
        steps = training.full_batch_steps
        sizes = (block.y.shape[1], self.widths[0], self.widths[1])
        if steps is not None and self._plain(training) and gram_pays(*sizes, steps):
            return contribute_by_gram(models, rows, block, steps, lr, mass, memo, self.classes)
        done = self._descent(take_rows(models, rows), block, training, lr)
        by_hand = self._plain(training) or not training.optimizer.plain
        path = training.path("by-hand" if by_hand else "autograd")
        return weigh(done.change, rows, mass, next(iter(models.values())).shape[0], path, done.loss)


def _layer(theta: Params, index: int, x: Tensor) -> Tensor:
    """Return the result of a layer of model b for batch b, (B, n, out), given inputs x (B, n, in)."""
    weight, bias = theta[f"layer{index}.weight"], theta[f"layer{index}.bias"]
    return torch.baddbmm(bias[:, None], x, weight.transpose(1, 2))


def mlp(profile: Profile, *, hidden: tuple[int, ...] = (64,), l2: float = 0.0) -> MLP:
    """Multi-layer perceptron with ReLU activations and the given hidden widths; (1/2) squared loss for regression."""
    if not hidden or min(hidden) < 1:
        raise ConfigError(f"mlp: hidden needs widths of at least 1, such as 64 or 200-100; got {hidden}")
    check_penalty("mlp", l2)
    widths = (int(np.prod(profile.features)), *hidden, profile.classes or 1)
    check_size("mlp", sum((inside + 1) * outside for inside, outside in pairwise(widths)))
    return MLP(
        classes=profile.classes,
        spec=f"mlp:hidden={'-'.join(map(str, hidden))},l2={l2!r}",
        dtype=torch.float32,
        l2=l2,
        widths=widths,
    )
