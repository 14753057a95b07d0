"""The server's step where clients pooled moments: heads by least squares, a gradient step on the body, and QR.

Guo, Tang, Lin 2025, appendix B, eq. (48)-(50). With the gram sums S_k = X_k^T X_k B and s_k = X_k^T y_k of the samples
of cluster k both need nothing else: theta_k = (B^T S_k)^-1 B^T s_k, and the gradient of B is the sum of
(S_k theta_k - s_k) theta_k^T over N. So a round is one exchange, and the heads are those of the pooled samples.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.messages import Slotted
from coterie.learners.representation import BASIS, BIAS, CROSS, GRAM, HEAD


def solve_heads(clusters: Clusters, pooled: Slotted, rate: float) -> Clusters:
    """The next basis of every restart and the next head of every cluster that somebody contributed to."""
    body, heads, bias = (p.clone() for p in (clusters.shared[BASIS], clusters.params[HEAD], clusters.params[BIAS]))
    bias[pooled.slots] = 0  # solved heads have none, whatever the start brought
    for restart in range(clusters.restarts):
        own = torch.nonzero(torch.div(pooled.slots, clusters.K, rounding_mode="floor") == restart).flatten()
        if not len(own):  # every client failed in this restart
            continue
        gram, cross = pooled.arrays[GRAM][own], pooled.arrays[CROSS][own]
        basis = body[restart].T
        theta = least_squares_heads(basis, gram, cross)
        stepped = basis - rate * basis_gradient(theta, gram, cross, float(pooled.arrays["mass"][own].sum()))
        basis, turn = orthonormal(stepped)
        body[restart] = basis.T
        # B theta = B-hat (R theta): in the new basis, the head of the same predictions
        heads[pooled.slots[own]] = (theta @ turn.T)[:, None]
    return replace(clusters, params={HEAD: heads, BIAS: bias}, body={BASIS: body})


def least_squares_heads(basis: Tensor, gram: Tensor, cross: Tensor) -> Tensor:
    """theta_k (K, c) on basis B (d, c) from S_k (K, d, c) and s_k (K, d), eq. (48).

    With fewer samples than directions the shortest of many solutions.
    """
    inner = basis.T @ gram
    inverse: Tensor = torch.linalg.pinv((inner + inner.transpose(1, 2)) / 2, hermitian=True)
    return (inverse @ (cross @ basis)[..., None])[..., 0]


def basis_gradient(theta: Tensor, gram: Tensor, cross: Tensor, mass: float) -> Tensor:
    """d/dB of the mean (1/2) squared error, (d, c), while the heads theta (K, c) stay, eq. (49)."""
    residual = (gram @ theta[..., None])[..., 0] - cross  # (K, d), X_k^T (X_k B theta_k - y_k)
    return residual.T @ theta / mass


def orthonormal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The QR factors of a matrix (d, c), eq. (50); R has a positive diagonal, which makes them unique."""
    q, r = torch.linalg.qr(matrix)
    sign = torch.where(r.diagonal() < 0, -1.0, 1.0).to(matrix)
    return q * sign, r * sign[:, None]
