"""Counter-based random numbers: one key for each run, round, client and purpose, computed for a whole shard at once.

A key is a 64-bit integer. Keys and random numbers are hashes of counters (the SplitMix64 finaliser), so the random
numbers of a client depend on its id, not on its position, its shard or the engine. No global seed is read or set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from enum import IntEnum, unique

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


@unique
class Purpose(IntEnum):
    """Purpose of a random key. Different purposes have independent random numbers."""

    START = 1
    PARTICIPATION = 2
    BATCHES = 3
    SCENARIO = 4
    VALIDATION = 5
    RESAMPLE = 6
    AUGMENTATION = 7
    ANCHORS = 8
    PERTURBATION = 9
    CLUSTERING = 10
    SOLVE = 11
    TRIAL = 12
    EMBEDDING = 13
    ONBOARDING = 14
    ASSIGNMENT_NOISE = 15
    ATTACK = 16
    NOISE = 17
    DIAGNOSIS = 18
    HALVES = 19
    RATE = 20


def _scramble(words: Words) -> Words:
    """Apply the finaliser of SplitMix64, a bijection of 64-bit integers, to each element."""
    with np.errstate(over="ignore"):
        z = words + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        return z ^ (z >> np.uint64(31))


def fold(key: Words | int, *words: Words | int) -> Words:
    """Return a key derived from a key and further words, which are absorbed in order; arrays broadcast."""
    folded = _scramble(np.asarray(key, dtype=np.uint64))
    for word in words:
        folded = _scramble(folded ^ _scramble(np.asarray(word, dtype=np.uint64)))
    return folded


def hash_ids(ids: Sequence[str]) -> Words:
    """Return a 64-bit hash of each client id, (m,)."""
    digests = [hashlib.blake2b(i.encode(), digest_size=8).digest() for i in ids]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def key_for(seed: int, purpose: Purpose, *counters: int) -> int:
    """Return a key for random numbers that are drawn once for a whole run, such as initial models.

    Args:
        seed: Seed of the run.
        purpose: Purpose of the random numbers.
        counters: Further numbers that distinguish keys of the same purpose.
    """
    return int(fold(seed, int(purpose), *counters))


def keys_for_clients(seed: int, purpose: Purpose, round_: int, hashes: Words) -> Words:
    """Return one key for each client.

    Args:
        seed: Seed of the run.
        purpose: Purpose of the random numbers.
        round_: Number of the round.
        hashes: Hash of each client's id, (m,), as returned by `hash_ids`.

    Returns:
        Keys of the clients, (m,).
    """
    return fold(seed, int(purpose), round_, hashes)


def generator(key: int) -> np.random.Generator:
    """Return a NumPy generator with an independent counter-based stream for each key."""
    return np.random.Generator(np.random.Philox(key=key))


def permutations(keys: Words, sizes: npt.NDArray[np.int64], width: int, epoch: int) -> npt.NDArray[np.int64]:
    """Return a random order of each client's samples.

    Args:
        keys: Random key of each client, (m,).
        sizes: Number of samples of each client, (m,).
        width: Number of columns, at least the largest size.
        epoch: Number of the epoch; every epoch has another order.

    Returns:
        Indices, (m, width): row i is a permutation of 0..sizes[i]-1, followed by the padding positions in order.
    """
    columns = np.arange(width, dtype=np.uint64)
    draws = fold(keys[:, None], epoch, columns[None, :]) >> np.uint64(1)
    padding = columns[None, :].astype(np.int64) >= sizes[:, None]
    draws = np.where(padding, np.uint64(2**63) + columns[None, :], draws)
    return np.argsort(draws, axis=1, kind="stable")


def shuffled(keys: Words, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return a random order of each client's samples 0..sizes[i]-1, concatenated over clients, (sum of sizes,).

    The orders equal those of `permutations` in epoch 0. No padding is computed, so the cost depends on the total number
    of samples only.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    draws = fold(keys[owner], 0, place.astype(np.uint64)) >> np.uint64(1)
    return np.asarray(place[np.lexsort((draws, owner))])
