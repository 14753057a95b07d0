"""Where the randomness of private answers comes from.

A simulation draws it from keys, so that runs repeat. What somebody could compute who knows the seed hides nothing from
him, and the seed of a federation is known to its server and to every node: there it comes from the operating system.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from coterie.core.keys import Purpose, Words, fold, keys_for_clients

Floats = npt.NDArray[np.float64]


class Noise(Protocol):
    """Random numbers for some clients in a round; `hashes` (m,) are their words."""

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        """One number between 0 and 1 for each, (m,)."""
        ...

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        """Standard normal numbers, (m, width)."""
        ...


@dataclass(frozen=True)
class Keyed:
    """From the seed, the round and the client: the same again in every repetition. For simulations only."""

    seed: int

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        return _between(keys_for_clients(self.seed, Purpose.ASSIGNMENT_NOISE, round_, hashes))

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        keys = keys_for_clients(self.seed, Purpose.NOISE, round_, hashes)
        return _normal(_between(fold(keys[:, None], np.arange(width, dtype=np.uint64)[None])))


@dataclass(frozen=True)
class FromSystem:
    """From the operating system's generator for secrets: nobody can draw it again."""

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        return _between(_secret_words(len(hashes)))

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        return _normal(_between(_secret_words(len(hashes) * width))).reshape(len(hashes), width)


def _normal(uniforms: Floats) -> Floats:
    """Standard normal numbers from numbers between 0 and 1."""
    from scipy.special import ndtri  # slow to import, and most nodes never draw any

    return np.asarray(ndtri(uniforms))


SECRET = FromSystem()
"""What is drawn from where nobody says otherwise."""


def _secret_words(count: int) -> Words:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)


def _between(words: Words) -> Floats:
    """Numbers between 0 and 1, neither of which they reach, in steps of 2^-52; elementwise."""
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
