"""Sums over clients for regression diagnostics of generalised linear models.

X is a client's feature matrix phi(x), (n_i, p), with a last column of ones if the models have a bias. A model is a
matrix of coefficients theta, (p, q), with outputs X theta: one column for regression, and one column for each class
except the first (the reference) for classification. As a vector of q p numbers, the coefficients of the first column
come first. All computations are in float64, since cross-products lose half of the digits.

The sums are meant to be added over clients. The sums of a single client reveal much: X^T X of a client with one sample
determines this sample up to its sign. Secure aggregation hides a client among the other clients of its cluster.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from coterie.core.blocks import cut
from coterie.core.clusters import Params
from coterie.core.expected import Expected, Slots, Spec
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.shard import Shard
from coterie.errors import ConfigError
from coterie.learners.base import Learner
from coterie.learners.minimum import GeneralisedLinear, Glm

THETA = "theta"
"""Name of the coefficients, (K, p, q), in a broadcast."""


@dataclass(frozen=True)
class Fitted:
    """Samples of B clients evaluated under a model; padding contributes zeros."""

    x: Tensor
    """Features, (B, n, p)."""
    residual: Tensor
    """Targets minus expected values, (B, n, q)."""
    weight: Tensor | None
    """Second derivative of each sample's loss with respect to its outputs, (B, n, q, q); None: 1 (least squares)."""
    loss: Tensor
    """Half the squared error or the negative log-likelihood of each sample, (B, n)."""

    def hessian(self) -> Tensor:
        """Return the Hessian of the loss, summed over samples, (q p, q p)."""
        x = self.x.flatten(0, 1)
        if self.weight is None:
            return x.T @ x
        weight = self.weight.flatten(0, 1)
        blocks = [[(x * weight[:, a, b, None]).T @ x for b in range(weight.shape[2])] for a in range(weight.shape[1])]
        return torch.cat([torch.cat(row, dim=1) for row in blocks])

    def scores(self) -> Tensor:
        """Return the gradient of each sample's log-likelihood, (B, n, q p)."""
        return (self.residual[..., None] * self.x[:, :, None]).flatten(2)

    def gradient(self) -> Tensor:
        """Return the sum of the scores, (q p,)."""
        return (self.residual.flatten(0, 1).T @ self.x.flatten(0, 1)).flatten()


Sums = Callable[[Fitted], Params]
"""Function that computes named sums for clients of one cluster."""


def as_generalised_linear(learner: Learner) -> GeneralisedLinear:
    """Return the learner with the type of a generalised linear model.

    Raises:
        ConfigError: if its models are not generalised linear models.
    """
    if not isinstance(learner, GeneralisedLinear):
        raise ConfigError(
            f"regression diagnostics need a linear or logistic model, but the learner is {learner.spec}: use linear "
            "or logistic"
        )
    return learner


def fitted(problem: Glm, outputs: Tensor) -> Fitted:
    """Return the samples of a block's clients evaluated under models with these outputs.

    Args:
        problem: Samples of the clients.
        outputs: Outputs of the models, (B, n, q).
    """
    if problem.classes is None:
        target = problem.y if problem.mask is None else torch.where(problem.mask, problem.y, 0)
        residual = _unpadded(problem, target[..., None] - outputs)
        return Fitted(problem.phi, residual, None, (residual**2).sum(dim=-1) / 2)
    every = torch.cat([torch.zeros_like(outputs[..., :1]), outputs], dim=-1)
    log_p = torch.log_softmax(every, dim=-1)
    loss = -log_p.gather(-1, problem.y[..., None])
    p = log_p[..., 1:].exp()
    hit = torch.nn.functional.one_hot(problem.y, every.shape[-1])[..., 1:].to(p.dtype)
    weight = torch.diag_embed(p) - p[..., :, None] * p[..., None, :]
    return Fitted(problem.phi, _unpadded(problem, hit - p), weight, _unpadded(problem, loss)[..., 0])


def _unpadded(problem: Glm, values: Tensor) -> Tensor:
    """Return values (B, n, ...) with zeros for padding."""
    return values if problem.mask is None else torch.where(problem.mask[..., None], values, 0)


def expected_by_cluster(broadcast: Broadcast, arrays: dict[str, Spec]) -> Expected:
    """Return the expected form of a reply of `sums_by_cluster` with these arrays."""
    samples = Spec((), low=0, whole=True, total="samples")
    return Expected(slotted={"clusters": Slots(broadcast.clusters.K, {**arrays, "samples": samples})})


def sums_by_cluster(learner: Learner, shard: Shard, broadcast: Broadcast, sums: Sums) -> Reply:
    """Return a reply with sums over the clients of each cluster, and with their number of samples.

    Args:
        learner: Model family; linear or logistic.
        shard: Samples of the clients.
        broadcast: Message with the coefficients and each client's cluster (`own`).
        sums: Function that computes the sums.
    """
    own = broadcast.each["own"]
    slots, rows, counts = torch.unique(own, return_inverse=True, return_counts=True)
    totals: dict[int, Params] = {}
    for slot, part in _parts(as_generalised_linear(learner), shard, broadcast, own, sums):
        before = totals.get(slot)
        totals[slot] = part if before is None else {name: before[name] + value for name, value in part.items()}
    stacked = [totals[slot] for slot in slots.tolist()]
    arrays = {name: torch.stack([each[name] for each in stacked]) for name in stacked[0]}
    sizes = torch.from_numpy(shard.sizes).double()
    arrays["samples"] = torch.zeros(len(slots), dtype=torch.float64).index_add_(0, rows, sizes)
    return Reply(clients=shard.ids, slotted={"clusters": Slotted(slots, arrays, counts)})


def _parts(
    learner: GeneralisedLinear, shard: Shard, broadcast: Broadcast, own: Tensor, sums: Sums
) -> Iterator[tuple[int, Params]]:
    """Yield the sums of each cluster in each block, computed for all its clients at once."""
    for block in cut(shard, shard.hashes, 0):
        problem = learner.glm(block)
        mine = own[torch.from_numpy(block.positions)]
        for slot in torch.unique(mine):
            rows = (mine == slot).nonzero().flatten().to(problem.phi.device)
            part = problem if len(rows) == len(mine) else problem.take(rows)
            theta = broadcast.clusters.at(slot[None])[THETA][0].to(part.phi)
            yield int(slot), {name: value.cpu() for name, value in sums(fitted(part, part.phi @ theta)).items()}
