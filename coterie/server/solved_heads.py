"""Server step for pooled moments: heads by least squares, a gradient step with the body, and orthonormalisation by QR.

Guo, Tang, Lin 2025, appendix B, eq. (48)-(50). The step depends on the samples of cluster k only by the moments
S_k = X_k^T X_k B and s_k = X_k^T y_k: the heads are theta_k = (B^T S_k)^-1 B^T s_k, and the gradient of B is the sum of
(S_k theta_k - s_k) theta_k^T / N. So a round needs one exchange, and the heads are those of the pooled samples.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.core.messages import Slotted
from coterie.learners.representation import BASIS, BIAS, CROSS, GRAM, HEAD


def solve_heads(clusters: Clusters, pooled: Slotted, rate: float) -> Clusters:
    """Return the models after the step.

    Args:
        clusters: Models that the clients received.
        pooled: Moments for each cluster to which a client contributed.
        rate: Learning rate of the body.
    """
    body, heads, bias = (p.clone() for p in (clusters.shared[BASIS], clusters.params[HEAD], clusters.params[BIAS]))
    bias[pooled.slots] = 0  # the solved heads have no bias
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
        # B theta = B-hat (R theta): the head with the same predictions in the new basis
        heads[pooled.slots[own]] = (theta @ turn.T)[:, None]
    return replace(clusters, params={HEAD: heads, BIAS: bias}, body={BASIS: body})


def least_squares_heads(basis: Tensor, gram: Tensor, cross: Tensor) -> Tensor:
    """Return the least-squares heads theta_k, (K, c), eq. (48); those of minimum norm if they are not unique.

    Args:
        basis: Basis B, (d, c).
        gram: Moments S_k, (K, d, c).
        cross: Moments s_k, (K, d).
    """
    inner = basis.T @ gram
    inverse: Tensor = torch.linalg.pinv((inner + inner.transpose(1, 2)) / 2, hermitian=True)
    return (inverse @ (cross @ basis)[..., None])[..., 0]


def basis_gradient(theta: Tensor, gram: Tensor, cross: Tensor, mass: float) -> Tensor:
    """Return the gradient of the mean (1/2) squared error with respect to B for fixed heads, (d, c), eq. (49).

    Args:
        theta: Heads, (K, c).
        gram: Moments S_k, (K, d, c).
        cross: Moments s_k, (K, d).
        mass: Total weight of the samples.
    """
    residual = (gram @ theta[..., None])[..., 0] - cross  # (K, d), X_k^T (X_k B theta_k - y_k)
    return residual.T @ theta / mass


def orthonormal(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Return the QR decomposition of a matrix (d, c), eq. (50), with a positive diagonal of R, so that it is unique."""
    q, r = torch.linalg.qr(matrix)
    sign = torch.where(r.diagonal() < 0, -1.0, 1.0).to(matrix)
    return q * sign, r * sign[:, None]
