"""The settings of differential privacy. docs/privacy.md has the reasons.

The guarantee is about a client's whole data: whatever else it might have held, what leaves it (`local`), or the models
that come of it (`central`), would look nearly the same.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Literal

from coterie.errors import ConfigError

SENSITIVITY = 2.0
"""How far apart two clipped changes can be, in clips: they may point opposite ways."""
LEAST_CLIP = 1e-9
"""Far from the smallest and the largest numbers that a type holds, where noise is coarse."""


@dataclass(frozen=True)
class Privacy:
    """How the answers of a round, or the models made of them, are made private."""

    where: Literal["local", "central"]
    """Who adds the noise: every client to what it sends, or the server to the clusters' sums."""
    clip: float
    """C: a client's change is cut to this length, all parameters together."""
    noise: float
    """z: the standard deviation of the noise on every parameter is z C."""
    choice: float | None = None
    """The epsilon of saying which cluster was chosen, for `local`; None where clients choose none."""

    def __post_init__(self) -> None:
        sound = all(math.isfinite(value) and value > 0 for value in (self.clip, self.noise, self.choice or 1.0))
        if not sound or self.where not in ("local", "central"):
            raise ConfigError(f"privacy needs clip, noise and choice above 0, got {asdict(self)}")
        if not LEAST_CLIP <= self.clip <= 1 / LEAST_CLIP:
            raise ConfigError(
                f"privacy_clip must be between {LEAST_CLIP:g} and {1 / LEAST_CLIP:g}, got {self.clip:g}: beyond, "
                "rounding would eat the noise"
            )

    @property
    def local(self) -> bool:
        return self.where == "local"

    @property
    def ratio(self) -> float:
        """Standard deviation of the noise over what a client's data can change: what an accountant goes by."""
        return self.noise / SENSITIVITY


def truthful(epsilon: float, K: int) -> float:
    """How often a client says its own cluster of K: e^epsilon times as often as any single other one."""
    return 1 / (1 + (K - 1) * math.exp(-epsilon))
