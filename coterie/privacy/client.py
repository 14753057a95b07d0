"""What a client does to its answer before it is sent: cut it, add noise, say a cluster that may be wrong."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from coterie.core.clusters import Clusters
from coterie.errors import ConfigError
from coterie.privacy.mechanism import Privacy, truthful, why_not_private
from coterie.privacy.noise import Floats
from coterie.tiers.method import RoundSettings


def check_askable(settings: RoundSettings, clusters: Clusters) -> None:
    """Refuse a round whose answer would tell more than is made private, whoever asks for it."""
    privacy = settings.privacy
    if privacy is None:
        return
    why = why_not_private(settings.objective, settings.weights, settings.distance)
    if why is None and (clusters.restarts > 1 or clusters.shared or clusters.overall):
        why = "several starts, a shared body or an overall model would be trained as well, for which there is no noise"
    if why is None and privacy.local and privacy.choice is None and not settings.tells_no_choice(clusters.K):
        why = "clients would say which cluster they chose as it is"
    if why is not None:
        raise ConfigError(f"this round cannot be made private: {why}")


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


def said(chosen: Tensor, K: int, epsilon: float, uniforms: Floats) -> Tensor:
    """What clients say (B,) who have chosen `chosen` (B,): that, or now and then any other of the K clusters.

    Their own one is e^epsilon times as likely as each other one. uniforms (B,), between 0 and 1.
    """
    if K == 1:
        return chosen
    keep = truthful(epsilon, K)
    place = ((uniforms - keep) / (1 - keep) * (K - 1)).clip(0, K - 2)  # beyond `keep` all others have equal parts
    other = torch.from_numpy(place.astype(np.int64))
    return torch.where(torch.from_numpy(uniforms < keep), chosen, other + (other >= chosen))
