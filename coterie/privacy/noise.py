"""Random numbers for differential privacy.

Simulations derive them from the seed, so that runs are reproducible. In a deployment, the server and all nodes know the
seed, so noise that depends on it would protect nothing; there the operating system provides the random numbers.
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
    """Source of random numbers for m clients in a round; `hashes` (m,) are the hashes of their ids."""

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        """Return one uniform random number between 0 and 1 for each client, (m,)."""
        ...

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        """Return `width` standard normal random numbers for each client, (m, width)."""
        ...


@dataclass(frozen=True)
class SeededNoise:
    """Reproducible random numbers that depend on the seed, the round and the client; for simulations only."""

    seed: int
    """Seed of the run."""

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        return _between(keys_for_clients(self.seed, Purpose.ASSIGNMENT_NOISE, round_, hashes))

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        keys = keys_for_clients(self.seed, Purpose.NOISE, round_, hashes)
        return _normal(_between(fold(keys[:, None], np.arange(width, dtype=np.uint64)[None])))


@dataclass(frozen=True)
class SystemNoise:
    """Unpredictable random numbers from the operating system's cryptographic generator."""

    def uniforms(self, round_: int, hashes: Words) -> Floats:
        return _between(_secret_words(len(hashes)))

    def normals(self, round_: int, hashes: Words, width: int) -> Floats:
        return _normal(_between(_secret_words(len(hashes) * width))).reshape(len(hashes), width)


def _normal(uniforms: Floats) -> Floats:
    """Convert uniform random numbers between 0 and 1 to standard normal ones."""
    from scipy.special import ndtri  # slow to import, and most nodes do not need it

    return np.asarray(ndtri(uniforms))


SYSTEM_NOISE = SystemNoise()
"""Default source of random numbers."""


def _secret_words(count: int) -> Words:
    return np.frombuffer(secrets.token_bytes(8 * count), dtype=np.uint64)


def _between(words: Words) -> Floats:
    """Convert 64-bit integers to numbers strictly between 0 and 1 with a resolution of 2^-52, elementwise."""
    return np.asarray(((words >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52)
