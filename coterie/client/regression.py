"""Sums over clients from which the diagnostics of generalised linear models are computed.

X is a client's feature matrix phi(x), (n_i, p), with a last column of ones if the models have a bias. A model is a
matrix of coefficients theta (p, q) with outputs X theta: one column for a regression, one for each class but the first,
the reference, for a classification. Wherever coefficients are one vector of q p numbers, those of the first column come
first. Everything is computed in float64, whatever the type of the run: cross-products lose half of the digits.

The sums are made to be added over clients. The sums of a single client reveal much: X^T X of a client with one sample
is that sample but for its sign. Secure aggregation hides it among the other clients of its cluster, if there are any.
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
"""Name of the coefficients (K, p, q) in a broadcast."""


@dataclass(frozen=True)
class Fitted:
    """Samples of some clients under a model: what every sum is made of. Padding counts nothing anywhere."""

    x: Tensor
    """(B, n, p) features."""
    residual: Tensor
    """(B, n, q) targets minus expected values."""
    weight: Tensor | None
    """(B, n, q, q) second derivative of each sample's loss by its outputs; None: 1, as for least squares."""
    loss: Tensor
    """(B, n) half the squared error, or the negative log-likelihood."""

    def hessian(self) -> Tensor:
        """Return the sum over samples of the second derivative of the loss, (q p, q p)."""
        x = self.x.flatten(0, 1)
        if self.weight is None:
            return x.T @ x
        weight = self.weight.flatten(0, 1)
        blocks = [[(x * weight[:, a, b, None]).T @ x for b in range(weight.shape[2])] for a in range(weight.shape[1])]
        return torch.cat([torch.cat(row, dim=1) for row in blocks])

    def scores(self) -> Tensor:
        """Return each sample's derivative of the log-likelihood, (B, n, q p)."""
        return (self.residual[..., None] * self.x[:, :, None]).flatten(2)

    def gradient(self) -> Tensor:
        """Return the sum of the scores, (q p,)."""
        return (self.residual.flatten(0, 1).T @ self.x.flatten(0, 1)).flatten()


Sums = Callable[[Fitted], Params]
"""From the samples of clients of one cluster to named sums."""


def as_generalised_linear(learner: Learner) -> GeneralisedLinear:
    """Return the learner if its models are generalised linear ones.

    Raises:
        ConfigError: if they are not.
    """
    if not isinstance(learner, GeneralisedLinear):
        raise ConfigError(
            f"this is about linear and logistic regression, but the learner is {learner.spec}: use linear or logistic"
        )
    return learner


def fitted(problem: Glm, outputs: Tensor) -> Fitted:
    """Return the samples of a block's clients under models with these outputs, (B, n, q)."""
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
    """Return values (B, n, ...) with zeros where there is padding."""
    return values if problem.mask is None else torch.where(problem.mask[..., None], values, 0)


def expected_by_cluster(broadcast: Broadcast, arrays: dict[str, Spec]) -> Expected:
    """Return the form of the reply of `sums_by_cluster`, with these arrays and the number of samples."""
    samples = Spec((), low=0, whole=True, total="samples")
    return Expected(slotted={"clusters": Slots(broadcast.clusters.K, {**arrays, "samples": samples})})


def sums_by_cluster(learner: Learner, shard: Shard, broadcast: Broadcast, sums: Sums) -> Reply:
    """Return these sums, slotted by the clients' own clusters, with the number of samples."""
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
    """Yield the sums of each cluster in each block: one product over all its clients, never a matrix for each."""
    for block in cut(shard, shard.hashes, 0):
        problem = learner.glm(block)
        mine = own[torch.from_numpy(block.positions)]
        for slot in torch.unique(mine):
            rows = (mine == slot).nonzero().flatten().to(problem.phi.device)
            part = problem if len(rows) == len(mine) else problem.take(rows)
            theta = broadcast.clusters.at(slot[None])[THETA][0].to(part.phi)
            yield int(slot), {name: value.cpu() for name, value in sums(fitted(part, part.phi @ theta)).items()}
