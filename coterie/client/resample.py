"""Random parts of the clients' samples: disjoint parts for each round, and two halves for a test."""

from __future__ import annotations

import numpy as np

from coterie.core.keys import Purpose, Words, fold, keys_for_clients, shuffled
from coterie.core.shard import Positions, Shard, spans

HALF = 0.5
SLIGHT = 1e-9
"""Keeps products such as 12 x 1/3 from being rounded down."""


def fresh_parts(shard: Shard, seed: int, round_: int, rounds: int) -> tuple[Shard, Shard]:
    """Return the samples by which each client chooses its cluster in a round, and those on which it trains.

    No sample is used twice, as in the analysis of IFCA (Ghosh et al. 2020, section 5). A client's samples are divided
    at random into 2T subsets of n' = n_i // 2T samples, and the remainder is not used. Round t uses the subsets 2t
    (Z-hat in the paper) and 2t + 1 (Z).

    Args:
        shard: Training samples of the clients.
        seed: Seed of the run.
        round_: Number of the round (t), from 0.
        rounds: Number of rounds (T).
    """
    order = shuffled(keys_for_clients(seed, Purpose.RESAMPLE, 0, shard.hashes), shard.sizes)
    rows = order + np.repeat(shard.starts, shard.sizes)
    size = shard.sizes // (2 * rounds)
    first = np.cumsum(shard.sizes) - shard.sizes + 2 * round_ * size
    choosing, training = (shard.gather(rows[spans(start, size)], size) for start in (first, first + size))
    return choosing, training


def halves(shard: Shard, seed: int, round_: int, draw: int = 0, held_out: float = HALF) -> tuple[Shard, Shard]:
    """Return two random halves of each client's samples, different in every round; an odd sample is in neither.

    Args:
        shard: Training samples of the clients, at least two of each.
        seed: Seed of the run.
        round_: Number of the round.
        draw: Number of the halving in this round, from 0.
        held_out: Share of the second part, at most a half; the parts are rounded down, the second to at least 1 sample.
    """
    order = shuffled(keys_of_halves(shard, seed, round_, draw), shard.sizes)
    rows = order + np.repeat(shard.starts, shard.sizes)
    last = held_out_sizes(shard.sizes, held_out)
    size = np.minimum(np.floor(shard.sizes * (1 - held_out) + SLIGHT).astype(np.int64), shard.sizes - last)
    first = np.cumsum(shard.sizes) - shard.sizes
    return shard.gather(rows[spans(first, size)], size), shard.gather(rows[spans(first + size, last)], last)


def held_out_sizes(sizes: Positions, held_out: float) -> Positions:
    """Return the number of samples of clients' second parts, given their numbers of samples and this share."""
    found: Positions = np.maximum(np.floor(sizes * held_out + SLIGHT).astype(np.int64), np.minimum(sizes // 2, 1))
    return found


def keys_of_halves(shard: Shard, seed: int, round_: int, draw: int) -> Words:
    """Return the key of each client for a halving of its samples, (m,)."""
    keys = keys_for_clients(seed, Purpose.HALVES, round_, shard.hashes)
    return fold(keys, draw) if draw else keys
