"""Parts of the clients' samples: fresh ones for every round, and two halves for a test."""

from __future__ import annotations

import numpy as np

from coterie.core.keys import Purpose, keys_for_clients, shuffled
from coterie.core.shard import Shard, spans


def fresh_parts(shard: Shard, seed: int, round_: int, rounds: int) -> tuple[Shard, Shard]:
    """Return the samples that each client chooses its cluster by in this round, and those that it trains on.

    As the analysis of IFCA assumes (Ghosh et al. 2020, section 5).

    A client's samples, in an order that is drawn once, are cut into 2T subsets of n' = n_i // 2T samples; what is left
    over is not used. Round t takes the subsets 2t (the paper's Z-hat) and 2t + 1 (Z), so no sample is met twice.
    """
    order = shuffled(keys_for_clients(seed, Purpose.RESAMPLE, 0, shard.hashes), shard.sizes)
    rows = order + np.repeat(shard.starts, shard.sizes)
    size = shard.sizes // (2 * rounds)
    first = np.cumsum(shard.sizes) - shard.sizes + 2 * round_ * size
    choosing, training = (shard.gather(rows[spans(start, size)], size) for start in (first, first + size))
    return choosing, training


def halves(shard: Shard, seed: int, round_: int) -> tuple[Shard, Shard]:
    """Return two random halves of each client's samples, drawn anew in every round; an odd sample is in neither."""
    order = shuffled(keys_for_clients(seed, Purpose.HALVES, round_, shard.hashes), shard.sizes)
    rows = order + np.repeat(shard.starts, shard.sizes)
    size = shard.sizes // 2
    first = np.cumsum(shard.sizes) - shard.sizes
    one, other = (shard.gather(rows[spans(start, size)], size) for start in (first, first + size))
    return one, other
