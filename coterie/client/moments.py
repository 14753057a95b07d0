"""The client's part of moment descent: products with a moment matrix, and an anchor's own step.

With eps_j = (y_j - <phi_j, theta>) phi_j a sample's negative gradient at an anchor's estimate theta, the matrix of a
client is the mean of eps_j eps_j'^T over its pairs of different samples, which is free of the noise:

    Y_i = (s s^T - sum_j eps_j eps_j^T) / (n (n - 1)),    s = sum_j eps_j        (`all-pairs`)
    Y_i = eps_1 eps_2^T                                                         (`two-points`, the paper's letter)

Neither is ever formed: only its product with a basis leaves the client, added to that of the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from coterie.core.blocks import Block, cut
from coterie.core.messages import Broadcast, Reply, Task
from coterie.core.shard import Shard
from coterie.learners.base import Learner
from coterie.learners.linear import Linear, as_linear

TWO_POINTS = "two-points"


def moment_product(learner: Learner, shard: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """Sums: `product` (A, p, q) of the clients' weighted Y_i with each anchor's basis, `mass`, `energy` and `samples`.

    The broadcast's rows are anchors, without their names: `anchor` (A, p) and `basis` (A, p, q). Where each client has
    perturbed copies of its own they come as `copies` (m, 2, A, p). The setting `turned` asks for Y^T instead of Y.
    A client with one sample has no pair and adds nothing. `energy` is the sum of |phi_j|^2.
    """
    basis = broadcast.clusters.params["basis"]
    two_points = task.settings["moments"] == TWO_POINTS
    product = torch.zeros_like(basis)
    mass = energy = samples = torch.zeros((), dtype=torch.float64)
    for places, phi, block in _pairs(as_linear(learner), shard, two_points, broadcast.clusters.slot_bytes):
        estimates = _estimates(broadcast, places)
        first = _residuals(phi, block, estimates[0])
        second = first if estimates[1] is estimates[0] else _residuals(phi, block, estimates[1])
        if two_points:
            product += _two_point_product(phi, first, second, basis, bool(task.settings["turned"]))
            mass = mass + len(places)
        else:
            product += _all_pairs_product(phi, first, second, basis, block.counts)
            mass = mass + block.sizes.sum().double().cpu()
        kept = phi if block.mask is None else phi * block.mask[..., None]
        energy = energy + (kept**2).sum().double().cpu()
        samples = samples + block.sizes.sum().double().cpu()
    sums = {"product": product, "mass": mass, "energy": energy, "samples": samples}
    return Reply(clients=shard.ids, sums=sums)


def _pairs(learner: Linear, shard: Shard, two_points: bool, row: int) -> Iterator[tuple[Tensor, Tensor, Block]]:
    """Clients with a pair of samples: places in the shard (B,), features (B, n, p), and the block itself."""
    places = np.flatnonzero(shard.sizes >= 2)
    part = shard.take(places)
    if two_points:
        part = replace(part, stops=part.starts + 2)
    for block in cut(part, part.hashes, row):
        yield torch.from_numpy(places[block.positions]), learner.features(block.x), block


def _estimates(broadcast: Broadcast, places: Tensor) -> tuple[Tensor, Tensor]:
    """The estimates for the two factors of Y: (A, p) the same for all, or (B, A, p) two copies of each client's own."""
    if "copies" not in broadcast.each:
        return (broadcast.clusters.params["anchor"],) * 2
    copies = broadcast.each["copies"][places]
    return copies[:, 0], copies[:, 1]


def _residuals(phi: Tensor, block: Block, theta: Tensor) -> Tensor:
    """y - <phi, theta_a>, (B, A, n), 0 for padding."""
    residual = block.y[:, None] - theta @ phi.transpose(1, 2)
    return residual if block.mask is None else residual * block.mask[:, None]


def _all_pairs_product(phi: Tensor, first: Tensor, second: Tensor, basis: Tensor, counts: Tensor) -> Tensor:
    """Sum over clients of n_i times the symmetric part of Y_i basis, (A, p, q)."""
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
    """Sum over clients of eps_1 (eps_2^T basis), or of its transpose, (A, p, q)."""
    one = (first[:, :, :1] * phi[:, None, 0]).transpose(0, 1)  # (A, B, p)
    two = (second[:, :, 1:] * phi[:, None, 1]).transpose(0, 1)
    one, two = (two, one) if turned else (one, two)
    return one.transpose(1, 2) @ (two @ basis)


def anchor_step(learner: Learner, shard: Shard, task: Task, broadcast: Broadcast) -> Reply:
    """Rows: each anchor's next estimate `anchor` (m, p), and `sigma` (m,), the length of its Sigma (theta* - theta).

    Each is sent its own `anchor` (m, p), `basis` (m, p, q) and `floor` (m,): with a smaller sigma it stays where it is.
    Settings: `fresh` = l takes 2 l samples of the anchor's own for each iteration, paired as in the paper; None: all.
    """
    linear, fresh = as_linear(learner), task.settings["fresh"]
    part = shard if fresh is None else _fresh(shard, int(str(fresh)), int(str(task.settings["iteration"])))
    moved = broadcast.each["anchor"].clone()
    sigma = torch.zeros(len(shard), dtype=torch.float64)
    for block in cut(part, part.hashes, 0):
        places = torch.from_numpy(block.positions)
        theta, basis = broadcast.each["anchor"][places], broadcast.each["basis"][places]
        phi = linear.features(block.x)
        gradients = (phi @ basis) * _residuals(phi, block, theta[:, None])[:, 0, :, None]  # U^T eps_j, (B, n, q)
        matrix = _projected_pairs(gradients, block.counts) if fresh is None else _projected_halves(gradients)
        direction, length = _leading(matrix, gradients.sum(dim=1))
        step = torch.where(length > broadcast.each["floor"][places].to(length), broadcast.scalars["step"] * length, 0)
        moved[places] += (basis @ direction[..., None]).squeeze(2) * step[:, None]
        sigma[places] = length.double().cpu()
    return Reply(clients=shard.ids, rows={"anchor": moved, "sigma": sigma})


def _fresh(shard: Shard, pairs: int, iteration: int) -> Shard:
    """The 2 l samples of each client that this iteration may use."""
    starts = shard.starts + 2 * pairs * iteration
    return replace(shard, starts=starts, stops=starts + 2 * pairs)


def _projected_pairs(gradients: Tensor, counts: Tensor) -> Tensor:
    """(s s^T - sum_j z_j z_j^T) / (n (n - 1)), (B, q, q)."""
    total = gradients.sum(dim=1)
    within = gradients.transpose(1, 2) @ gradients
    return (total[:, :, None] * total[:, None] - within) / (counts * (counts - 1))[:, None, None]


def _projected_halves(gradients: Tensor) -> Tensor:
    """(1/l) sum_j z_j z~_j^T over the two halves of the samples, (B, q, q)."""
    half = gradients.shape[1] // 2
    return gradients[:, :half].transpose(1, 2) @ gradients[:, half:] / half


def _leading(matrix: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
    """The leading left singular vector (B, q), turned towards `towards`, and the root of its singular value (B,).

    This is what power iteration on A A^T tends to; its eigenvalue is the fourth power of the length sought. A
    singular vector has no sign, so the mean of the anchor's own gradients gives it one.
    """
    known = matrix.isfinite().flatten(1).all(dim=1)  # of numbers that overflowed nothing is known, and no factor exists
    left, values, _ = torch.linalg.svd(torch.where(known[:, None, None], matrix, 0))
    direction = left[:, :, 0]
    away = (direction * towards).sum(dim=1, keepdim=True) < 0
    return torch.where(away, -direction, direction), torch.where(known, values[:, 0].sqrt(), torch.nan)
