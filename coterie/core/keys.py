"""Counter-based randomness: one key for each (run, round, client, purpose), for a whole shard at once.

A key is a 64-bit word. Keys and random numbers are hashes of counters (the SplitMix64 finaliser), so the
numbers a client draws depend on its id and not on its position, its shard or the engine. Nothing here reads
or sets a global seed.
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
    """What a key is for. Two purposes never share a random number."""

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
    INTRODUCTION = 14
    SAID = 15
    POISON = 16
    NOISE = 17
    DIAGNOSIS = 18
    HALVES = 19
    RATE = 20


def _scramble(words: Words) -> Words:
    """SplitMix64's finaliser, a bijection on 64-bit words; elementwise."""
    with np.errstate(over="ignore"):
        z = words + _GOLDEN
        z = (z ^ (z >> np.uint64(30))) * _FIRST
        z = (z ^ (z >> np.uint64(27))) * _SECOND
        return z ^ (z >> np.uint64(31))


def fold(key: Words | int, *words: Words | int) -> Words:
    """Absorb `words` into `key`, one after the other; arrays broadcast."""
    folded = _scramble(np.asarray(key, dtype=np.uint64))
    for word in words:
        folded = _scramble(folded ^ _scramble(np.asarray(word, dtype=np.uint64)))
    return folded


def hash_ids(ids: Sequence[str]) -> Words:
    """A 64-bit word for each client id, shape (m,)."""
    digests = [hashlib.blake2b(i.encode(), digest_size=8).digest() for i in ids]
    return np.frombuffer(b"".join(digests), dtype="<u8").astype(np.uint64)


def key_for(seed: int, purpose: Purpose, *counters: int) -> int:
    """The key of the run, for what is drawn once: a start, a scenario."""
    return int(fold(seed, int(purpose), *counters))


def keys_for_clients(seed: int, purpose: Purpose, round_: int, hashes: Words) -> Words:
    """One key a client, shape (m,); `hashes` come from `hash_ids`."""
    return fold(seed, int(purpose), round_, hashes)


def generator(key: int) -> np.random.Generator:
    """A NumPy generator on a counter-based stream of its own."""
    return np.random.Generator(np.random.Philox(key=key))


def permutations(keys: Words, sizes: npt.NDArray[np.int64], width: int, epoch: int) -> npt.NDArray[np.int64]:
    """A random order of each client's samples, shape (m, width).

    Row i holds a permutation of 0..sizes[i]-1, then the padding positions sizes[i]..width-1 in order.
    """
    columns = np.arange(width, dtype=np.uint64)
    draws = fold(keys[:, None], epoch, columns[None, :]) >> np.uint64(1)
    padding = columns[None, :].astype(np.int64) >= sizes[:, None]
    draws = np.where(padding, np.uint64(2**63) + columns[None, :], draws)
    return np.argsort(draws, axis=1, kind="stable")


def shuffled(keys: Words, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each client's samples 0..sizes[i]-1 in a random order, client after client, shape (sum of sizes,).

    The orders are those of `permutations`, without padding: ragged sizes cost what their samples cost.
    """
    owner = np.repeat(np.arange(len(sizes)), sizes)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    draws = fold(keys[owner], 0, place.astype(np.uint64)) >> np.uint64(1)
    return np.asarray(place[np.lexsort((draws, owner))])
