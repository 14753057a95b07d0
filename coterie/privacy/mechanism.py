"""Settings of differential privacy; see docs/privacy.md for explanations.

The guarantee is for all data of a client: with any other data, the distribution of its replies (`local`) or of the
trained models (`central`) would be almost the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from coterie.errors import ConfigError

SENSITIVITY = 2.0
"""Maximum distance between two clipped changes, which may have opposite directions, in units of the clipping norm."""
LEAST_CLIP = 1e-9
"""Smallest allowed clipping norm, and the inverse of the largest one: beyond them, rounding would affect the noise."""


@dataclass(frozen=True)
class Privacy:
    """Privacy mechanism for the replies or the models of a round.

    Raises:
        ConfigError: if a setting is out of range.
    """

    where: Literal["local", "central"]
    """Place of the noise: clients add it to their replies (`local`), or the server to the sums (`central`)."""
    clip: float
    """Clipping norm (C): maximum norm of a client's change of all parameters together."""
    noise: float
    """Noise scale (z): the standard deviation of the noise of every parameter is z C."""
    choice: float | None = None
    """Epsilon of the randomised response for the chosen cluster, for `local`; None if clients do not choose."""

    def __post_init__(self) -> None:
        positive = all(math.isfinite(value) and value > 0 for value in (self.clip, self.noise, self.choice or 1.0))
        if not positive or self.where not in ("local", "central"):
            raise ConfigError(f"privacy needs clip, noise and choice above 0, got {asdict(self)}")
        if not LEAST_CLIP <= self.clip <= 1 / LEAST_CLIP:
            raise ConfigError(
                f"privacy_clip must be between {LEAST_CLIP:g} and {1 / LEAST_CLIP:g}, got {self.clip:g}: with other "
                "values, rounding would affect the noise"
            )

    @property
    def local(self) -> bool:
        """Whether clients add the noise."""
        return self.where == "local"

    @property
    def ratio(self) -> float:
        """Noise multiplier for the accountant: standard deviation of the noise divided by the sensitivity."""
        return self.noise / SENSITIVITY


def response_probability(epsilon: float, K: int) -> float:
    """Return the probability with which randomised response reports the chosen cluster among K clusters."""
    return 1 / (1 + (K - 1) * math.exp(-epsilon))
