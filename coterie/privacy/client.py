"""Privacy mechanism of clients: clipping, noise, and randomised response for the reported cluster."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.privacy.mechanism import Privacy, response_probability
from coterie.privacy.noise import Floats


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Return each change clipped to a maximum norm, in float64.

    Changes that are not finite become zero. Leaving out such a client would reveal something about its data.

    Args:
        vectors: Changes, (B, P).
        clip: Maximum Euclidean norm.
    """
    wide = vectors.double()
    finite = wide.isfinite().all(dim=1, keepdim=True)
    wide = torch.where(finite, wide, 0)
    # scale by the largest value first, since its square may not be finite
    most = wide.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    length = most * (wide / most).norm(dim=1, keepdim=True)
    cut: Tensor = wide * (clip / length).clamp_max(1.0)
    return cut


def made_private(vectors: Tensor, privacy: Privacy, normals: Floats | None) -> Tensor:
    """Return changes in the form in which they are sent: clipped, and with noise if clients add it.

    Clipping and noise are computed in float64. Only the noisy result is rounded to the dtype of the model.

    Args:
        vectors: Changes, (B, P).
        privacy: Privacy mechanism.
        normals: Standard normal random numbers, (B, P), if clients add noise; else None.
    """
    cut = clipped(vectors, privacy.clip)
    if normals is not None:
        cut = cut + privacy.clip * privacy.noise * torch.from_numpy(normals).to(cut.device)
    return cut.to(vectors.dtype)


def randomised_choice(chosen: Tensor, K: int, epsilon: float, uniforms: Floats) -> Tensor:
    """Return the clusters that clients report by randomised response.

    The chosen cluster is e^epsilon times as likely as each of the K - 1 others.

    Args:
        chosen: Chosen cluster of each client, (B,).
        K: Number of clusters.
        epsilon: Epsilon of the mechanism.
        uniforms: Uniform random numbers between 0 and 1, (B,).

    Returns:
        Reported clusters, (B,).
    """
    if K == 1:
        return chosen
    keep = response_probability(epsilon, K)
    place = ((uniforms - keep) / (1 - keep) * (K - 1)).clip(0, K - 2)  # equal parts of the interval above `keep`
    other = torch.from_numpy(place.astype(np.int64))
    return torch.where(torch.from_numpy(uniforms < keep), chosen, other + (other >= chosen))
