"""Sums over clients from which the diagnostics of linear models are computed.

X is a client's feature matrix phi(x), (n_i, p), with a last column of ones if the models have a bias, and
r = y - X theta its residuals under the model of its own cluster (`own` in the broadcast). Everything is computed in
float64, whatever the type of the run: cross-products lose half of the digits.

The sums are made to be added over clients. The sums of a single client reveal much: X^T X of a client with one sample
is that sample but for its sign. Secure aggregation hides it among the other clients of its cluster, if there are any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.clusters import Params
from coterie.core.expected import Expected, Slots, Spec
from coterie.core.messages import Broadcast, Reply, Slotted
from coterie.core.shard import Shard
from coterie.learners.linear import Linear

Sums = Callable[[Tensor, Tensor], Params]
"""From features (B, n, p) and residuals (B, n) of clients of one cluster, zero where padded, to named sums."""


def features_of(linear: Linear, block: Block) -> Tensor:
    """Return phi(x), (B, n, p), with zeros in the rows of padding: they add nothing to any product."""
    phi = linear.features(block.x.double())
    return phi if block.mask is None else torch.where(block.mask[..., None], phi, 0)


def expected_by_cluster(broadcast: Broadcast, arrays: dict[str, Spec]) -> Expected:
    """Return the form of the reply of `sums_by_cluster`, with these arrays and the number of samples."""
    samples = Spec((), low=0, whole=True, total="samples")
    return Expected(slotted={"clusters": Slots(broadcast.clusters.K, {**arrays, "samples": samples})})


def sums_by_cluster(linear: Linear, shard: Shard, broadcast: Broadcast, sums: Sums) -> Reply:
    """Return these sums, slotted by the clients' own clusters, with the number of samples."""
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
    """Yield the sums of each cluster in each block: one product over all its clients, never a p x p matrix for each."""
    for block in cut(shard, shard.hashes, 0):
        phi = features_of(linear, block)
        y = block.y.double() if block.mask is None else torch.where(block.mask, block.y.double(), 0)
        mine = own[torch.from_numpy(block.positions)]
        for slot in torch.unique(mine):
            rows = (mine == slot).nonzero().flatten().to(phi.device)
            whole = len(rows) == len(mine)
            x, target = (phi, y) if whole else (phi.index_select(0, rows), y.index_select(0, rows))
            residual = target - x @ _vector(broadcast.clusters.at(slot[None]))
            yield int(slot), {name: value.cpu() for name, value in sums(x, residual).items()}


def _vector(one: Params) -> Tensor:
    """Return weight (1, q) and bias (1,) of one model as one vector, (p,)."""
    parts = [one["weight"][0], *([one["bias"]] if "bias" in one else [])]
    return torch.cat(parts).double()
