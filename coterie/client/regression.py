"""What the diagnostics of linear models are made of: sums of cross-products by cluster, and a number for each client.

X is a client's feature matrix phi(x), (n_i, p), with a last column of ones if the models have a bias, and
r = y - X theta its residuals under the model of its own cluster (`own` in the broadcast). Everything is computed in
float64, whatever the type of the run: cross-products lose half of the digits.

The sums are made to be added over clients. Seen alone they tell much: X^T X of a client with one sample is that sample
but for its sign. Secure aggregation hides it among the other clients of its cluster, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.shard import Shard
from coterie.learners.base import Learner
from coterie.learners.linear import Linear, as_linear

Sums = Callable[[Tensor, Tensor], Params]
"""From features (B, n, p) and residuals (B, n) of clients of one cluster, zero where padded, to named sums."""


def moments(learner: Learner, shard: Shard, broadcast: Broadcast) -> Reply:
    """Slotted by own cluster: gram, sum of X^T X (p, p), score, sum of X^T r (p,), and samples."""
    return _by_cluster(as_linear(learner), shard, broadcast, _moments)


def meats(learner: Learner, shard: Shard, broadcast: Broadcast) -> Reply:
    """Slotted by own cluster, the middles of two sandwiches and the residual sum of squares.

    by_client: sum over clients of (X^T r)(X^T r)^T, (p, p), where clients are the independent units. by_sample: sum
    over samples of r^2 x x^T, (p, p), where samples are. rss: sum of r^2. And samples.
    """
    return _by_cluster(as_linear(learner), shard, broadcast, _meats)


def curvature(learner: Learner, shard: Shard) -> Reply:
    """Rows: the largest eigenvalue of X^T X / n_i of each client, (m,), through the smaller of X^T X and X X^T."""
    linear = as_linear(learner)
    largest = torch.zeros(len(shard), dtype=torch.float64)
    for block in cut(shard, shard.hashes, 0):
        phi = _features(linear, block)
        wide = phi.shape[1] < phi.shape[2]
        small = phi @ phi.transpose(1, 2) if wide else phi.transpose(1, 2) @ phi
        largest[torch.from_numpy(block.positions)] = (torch.linalg.eigvalsh(small)[:, -1] / block.sizes.double()).cpu()
    return Reply(clients=shard.ids, rows={"curvature": largest})


def _features(linear: Linear, block: Block) -> Tensor:
    """phi(x), (B, n, p), with zeros in the rows of padding: they add nothing to any product."""
    phi = linear.features(block.x.double())
    return phi if block.mask is None else torch.where(block.mask[..., None], phi, 0)


def _moments(phi: Tensor, residual: Tensor) -> Params:
    x = phi.flatten(0, 1)
    return {"gram": x.T @ x, "score": residual.flatten() @ x}


def _meats(phi: Tensor, residual: Tensor) -> Params:
    weighted = phi * residual[..., None]
    each, every = weighted.sum(dim=1), weighted.flatten(0, 1)
    return {"by_client": each.T @ each, "by_sample": every.T @ every, "rss": (residual**2).sum()}


def _by_cluster(linear: Linear, shard: Shard, broadcast: Broadcast, sums: Sums) -> Reply:
    own = broadcast.each["own"]
    slots, rows, counts = torch.unique(own, return_inverse=True, return_counts=True)
    totals: dict[int, Params] = {}
    for slot, part in _parts(linear, shard, broadcast, own, sums):
        before = totals.get(slot)
        totals[slot] = part if before is None else {name: before[name] + value for name, value in part.items()}
    stacked = [totals[slot] for slot in slots.tolist()]
    arrays = {name: torch.stack([each[name] for each in stacked]) for name in stacked[0]}
    sizes = torch.from_numpy(shard.sizes).double()
    arrays["samples"] = torch.zeros(len(slots), dtype=torch.float64).index_add_(0, rows, sizes)
    return Reply(clients=shard.ids, slotted={"clusters": Slotted(slots, arrays, counts)})


def _parts(linear: Linear, shard: Shard, broadcast: Broadcast, own: Tensor, sums: Sums) -> Iterator[tuple[int, Params]]:
    """Block by block and cluster by cluster: one product over all its clients, never a p x p matrix for each."""
    for block in cut(shard, shard.hashes, 0):
        phi = _features(linear, block)
        y = block.y.double() if block.mask is None else torch.where(block.mask, block.y.double(), 0)
        mine = own[torch.from_numpy(block.positions)]
        for slot in torch.unique(mine):
            rows = (mine == slot).nonzero().flatten().to(phi.device)
            whole = len(rows) == len(mine)
            x, target = (phi, y) if whole else (phi.index_select(0, rows), y.index_select(0, rows))
            residual = target - x @ _vector(broadcast.clusters.at(slot[None]))
            yield int(slot), {name: value.cpu() for name, value in sums(x, residual).items()}


def _vector(one: Params) -> Tensor:
    """Weight (1, q) and bias (1,) of one model as one vector, (p,)."""
    parts = [one["weight"][0], *([one["bias"]] if "bias" in one else [])]
    return torch.cat(parts).double()
