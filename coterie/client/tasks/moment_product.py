"""Client side of moment descent: products of moment matrices with a basis.

Let eps_j = (y_j - <phi_j, theta>) phi_j be the negative gradient of a sample at an anchor's estimate theta. The moment
matrix of a client is the mean of eps_j eps_j'^T over pairs of different samples, so that noise does not bias it:

    Y_i = (s s^T - sum_j eps_j eps_j^T) / (n (n - 1)),    s = sum_j eps_j        (`all-pairs`)
    Y_i = eps_1 eps_2^T                                                         (`two-points`, the paper's letter)

The matrix is never computed: a client sends its product with a basis only, summed over clients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from coterie.client.group import ClientGroup
from coterie.client.residuals import residuals
from coterie.core.blocks import Block, cut
from coterie.core.expected import Expected, RunFacts, Spec
from coterie.core.messages import Broadcast, Reply
from coterie.core.registry import register
from coterie.core.shard import Shard
from coterie.core.task import Task
from coterie.learners.linear import Linear, as_linear


@register("moment-product")
@dataclass(frozen=True)
class MomentProduct(Task):
    """Products of the clients' moment matrices with the basis of each of A anchors.

    Sums: `product` (A, p, q), the weighted sum of Y_i times the basis; `mass`, the sum of the weights; `energy`, the
    sum of |phi_j|^2; and `samples`. A client with one sample contributes zeros.

    The broadcast contains the estimates `anchor` (A, p) and the `basis` (A, p, q) of anonymous anchors, or, if each
    client receives perturbed estimates, `copies` (m, 2, A, p).
    """

    moments: Literal["all-pairs", "two-points"]
    """Pairs of samples over which the moment matrix is averaged."""
    turned: bool = False
    """Whether to multiply by Y^T instead of Y."""

    def run(self, clients: ClientGroup, broadcast: Broadcast) -> Reply:
        basis = broadcast.clusters.params["basis"]
        two_points = self.moments == "two-points"
        product = torch.zeros_like(basis)
        mass = energy = samples = torch.zeros((), dtype=torch.float64)
        linear, row = as_linear(clients.learner), broadcast.clusters.slot_bytes
        for places, phi, block in _pairs(linear, clients.train, two_points, row):
            estimates = _estimates(broadcast, places)
            first = residuals(phi, block, estimates[0])
            second = first if estimates[1] is estimates[0] else residuals(phi, block, estimates[1])
            if two_points:
                product += _two_point_product(phi, first, second, basis, self.turned)
                mass = mass + len(places)
            else:
                product += _all_pairs_product(phi, first, second, basis, block.counts)
                mass = mass + block.sizes.sum().double().cpu()
            kept = phi if block.mask is None else phi * block.mask[..., None]
            energy = energy + (kept**2).sum().double().cpu()
            samples = samples + block.sizes.sum().double().cpu()
        sums = {"product": product, "mass": mass, "energy": energy, "samples": samples}
        return Reply(clients=clients.train.ids, sums=sums)

    def expected_reply(self, broadcast: Broadcast, run: RunFacts) -> Expected:
        basis = broadcast.clusters.params["basis"]
        count = Spec((), low=0, whole=True, total="samples")
        product = Spec(tuple(basis.shape), basis.dtype)
        return Expected({"product": product, "mass": count, "samples": count, "energy": Spec((), low=0)})


def _pairs(learner: Linear, shard: Shard, two_points: bool, row: int) -> Iterator[tuple[Tensor, Tensor, Block]]:
    """Yield blocks of clients with at least two samples: positions (B,), features (B, n, p), and the block."""
    places = np.flatnonzero(shard.sizes >= 2)
    part = shard.take(places)
    if two_points:
        part = replace(part, stops=part.starts + 2)
    for block in cut(part, part.hashes, row):
        yield torch.from_numpy(places[block.positions]), learner.features(block.x), block


def _estimates(broadcast: Broadcast, places: Tensor) -> tuple[Tensor, Tensor]:
    """Return the estimates for both factors of Y: (A, p) for all clients, or each client's copies, (B, A, p)."""
    if "copies" not in broadcast.each:
        return (broadcast.clusters.params["anchor"],) * 2
    copies = broadcast.each["copies"][places]
    return copies[:, 0], copies[:, 1]


def _all_pairs_product(phi: Tensor, first: Tensor, second: Tensor, basis: Tensor, counts: Tensor) -> Tensor:
    """Return the sum over clients of n_i times the symmetric part of Y_i basis, (A, p, q)."""
    A, p, q = basis.shape
    weight = 1 / (counts - 1)  # n_i / (n_i (n_i - 1))
    one, other = ((residual @ phi).transpose(0, 1) for residual in (first, second))  # s, (A, B, p)
    crossed = one.transpose(1, 2) @ ((other @ basis) * weight[:, None])
    if first is not second:
        crossed = (crossed + other.transpose(1, 2) @ ((one @ basis) * weight[:, None])) / 2
    flat = phi.flatten(0, 1)
    within = (flat @ basis.permute(1, 0, 2).reshape(p, A * q)).reshape(*phi.shape[:2], A, q)
    within = within * (first * second * weight[:, None, None]).transpose(1, 2)[..., None]
    return crossed - (flat.T @ within.reshape(len(flat), A * q)).reshape(p, A, q).permute(1, 0, 2)


def _two_point_product(phi: Tensor, first: Tensor, second: Tensor, basis: Tensor, turned: bool) -> Tensor:
    """Return the sum over clients of eps_1 (eps_2^T basis), or of its transpose, (A, p, q)."""
    one = (first[:, :, :1] * phi[:, None, 0]).transpose(0, 1)  # (A, B, p)
    two = (second[:, :, 1:] * phi[:, None, 1]).transpose(0, 1)
    one, two = (two, one) if turned else (one, two)
    return one.transpose(1, 2) @ (two @ basis)
