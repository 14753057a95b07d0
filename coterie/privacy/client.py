"""What a client does to its reply before it is sent: clip it, add noise, and randomise the reported cluster."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.privacy.mechanism import Privacy, truthful
from coterie.privacy.noise import Floats


def clipped(vectors: Tensor, clip: float) -> Tensor:
    """Each row of (B, P) cut to this length, in float64; one that is not finite counts as no change at all.

    Leaving such a client out instead would tell that its data did this.
    """
    wide = vectors.double()
    sound = wide.isfinite().all(dim=1, keepdim=True)
    wide = torch.where(sound, wide, 0)
    # the largest value is taken out first, since its square may not be finite
    most = wide.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
    length = most * (wide / most).norm(dim=1, keepdim=True)
    cut: Tensor = wide * (clip / length).clamp_max(1.0)
    return cut


def made_private(vectors: Tensor, privacy: Privacy, normals: Floats | None) -> Tensor:
    """Changes (B, P) as they are sent; `normals` (B, P) where clients add the noise themselves.

    Clip and noise are in float64 and only their sum is rounded to the type of the model: what is rounded is hidden.
    """
    cut = clipped(vectors, privacy.clip)
    if normals is not None:
        cut = cut + privacy.clip * privacy.noise * torch.from_numpy(normals).to(cut.device)
    return cut.to(vectors.dtype)


def randomised_choice(chosen: Tensor, K: int, epsilon: float, uniforms: Floats) -> Tensor:
    """Return the clusters (B,) that clients report by randomised response: the chosen one (B,), or another one.

    The chosen cluster is e^epsilon times as likely as each of the K - 1 others. uniforms (B,), between 0 and 1.
    """
    if K == 1:
        return chosen
    keep = truthful(epsilon, K)
    place = ((uniforms - keep) / (1 - keep) * (K - 1)).clip(0, K - 2)  # beyond `keep` all others have equal parts
    other = torch.from_numpy(place.astype(np.int64))
    return torch.where(torch.from_numpy(uniforms < keep), chosen, other + (other >= chosen))
