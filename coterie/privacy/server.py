"""Noise of a trusted server on the sums of the clusters (central differential privacy).

Let C be the clipping norm, and let the counts of the clusters be scaled by C. A client adds a change of norm at most C
to one slot of the sums, and C to the same slot of the counts. If its data changes, the vector of all sums and counts
changes by at most 2 C: by 2 C if the client stays in its slot; otherwise by two changes and two counts of norm C, which
are orthogonal, so by sqrt(4 C^2). Therefore noise with the standard deviation z C on both sums and counts protects
both, and the counts need no additional budget.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, flat, unflat
from coterie.core.keys import hash_ids
from coterie.core.messages import Slotted
from coterie.privacy.mechanism import Privacy
from coterie.privacy.noise import Noise

LEAST_DEVIATIONS = 2.0
"""Minimum noisy count in standard deviations: below it, a cluster may be empty and keeps its model."""


def with_noise(sums: Slotted, clusters: Clusters, privacy: Privacy, noise: Noise, round_: int, chosen: bool) -> Slotted:
    """Return the sums of all K slots with noise, including empty ones, which would otherwise be recognisable.

    Args:
        sums: Summed changes and masses of the clusters, for a single restart.
        clusters: Models that the clients received.
        privacy: Privacy mechanism.
        noise: Source of random numbers.
        round_: Number of the round.
        chosen: Whether clients chose their clusters, so that the counts need noise, too.
    """
    K = clusters.K
    width = flat(clusters.params).shape[1]
    drawn = torch.from_numpy(noise.normals(round_, hash_ids(["server"]), K * (width + 1))[0]).reshape(K, width + 1)
    changes = flat({name: sums.arrays[f"change/{name}"].double() for name in clusters.params}).cpu()
    total = torch.zeros(K, width, dtype=torch.float64).index_add_(0, sums.slots, changes)
    total += privacy.clip * privacy.noise * drawn[:, :width]
    counts = torch.zeros(K, dtype=torch.float64).index_add_(0, sums.slots, sums.arrays["mass"])
    counts = denominators(counts + privacy.noise * drawn[:, width], privacy.noise) if chosen else counts
    arrays = {
        f"change/{name}": value.to(clusters.params[name]) for name, value in unflat(total, clusters.params).items()
    }
    return Slotted(torch.arange(K), arrays | {"mass": counts}, torch.ones(K, dtype=torch.int64))


def denominators(counts: Tensor, sd: float) -> Tensor:
    """Return noisy counts (K,) as denominators; 0 for clusters that may be empty.

    Args:
        counts: Noisy counts, (K,).
        sd: Standard deviation of the noise.
    """
    return torch.where(counts >= max(1.0, LEAST_DEVIATIONS * sd), counts, 0.0)
