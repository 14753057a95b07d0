"""Noise on the clusters' sums, where the server is trusted and its models are to hide single clients.

With C the clip, what a client adds to all K sums is a change of length C at most in one slot, and C times 1 in the same
slot of the counts. Whatever its data, another answer of its is at most 2 C away from that: 2 C where it stays in its
slot; where it moves, two changes and two counts of length C at right angles, sqrt(4 C^2). So one noise of standard
deviation z C on sums and counts alike hides both, and the counts cost nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coterie.core.clusters import Clusters, flat, unflat
from coterie.core.keys import hash_ids
from coterie.core.messages import Slotted
from coterie.privacy.mechanism import Privacy
from coterie.privacy.noise import Noise

SURELY = 2.0
"""A noised count below so many standard deviations may as well be none, and the cluster keeps its model."""


def with_noise(sums: Slotted, clusters: Clusters, privacy: Privacy, noise: Noise, round_: int, chosen: bool) -> Slotted:
    """The sums of all K slots with noise, filled or not: an empty one without would show that it is empty.

    chosen: whether clients chose their cluster, so that counts have to be hidden, too. One restart.
    """
    K = clusters.K
    width = flat(clusters.params).shape[1]
    drawn = torch.from_numpy(noise.normals(round_, hash_ids(["server"]), K * (width + 1))[0]).reshape(K, width + 1)
    changes = flat({name: sums.arrays[f"change/{name}"].double() for name in clusters.params}).cpu()
    total = torch.zeros(K, width, dtype=torch.float64).index_add_(0, sums.slots, changes)
    total += privacy.clip * privacy.noise * drawn[:, :width]
    counts = torch.zeros(K, dtype=torch.float64).index_add_(0, sums.slots, sums.arrays["mass"])
    counts = believed(counts + privacy.noise * drawn[:, width], privacy.noise) if chosen else counts
    arrays = {
        f"change/{name}": value.to(clusters.params[name]) for name, value in unflat(total, clusters.params).items()
    }
    return Slotted(torch.arange(K), arrays | {"mass": counts}, torch.ones(K, dtype=torch.int64))


def believed(counts: Tensor, sd: float) -> Tensor:
    """Noised counts (K,) to divide by; 0 where there may be nobody."""
    return torch.where(counts >= max(1.0, SURELY * sd), counts, 0.0)
