"""What is kept private of a client, and which rounds can be made private. docs/privacy.md has the reasons.

The guarantee is about a client's whole data: whatever else it might have held, what leaves it (`local`), or the models
that come of it (`central`), would look nearly the same.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

from coterie.core.messages import Plain
from coterie.errors import ConfigError
from coterie.tiers.assignment import Assigned, AssignmentRule, LowestLoss, SingleCluster, Way
from coterie.tiers.distance import Distance
from coterie.tiers.objective import Conditional, Objective

SENSITIVITY = 2.0
"""How far apart two clipped changes can be, in clips: they may point opposite ways."""
LEAST_CLIP = 1e-9
"""Far from the smallest and the largest numbers that a type holds, where noise is coarse."""
ONE_CHANGE = (SingleCluster, LowestLoss, Assigned)
"""Members of tier 2 whose clients send the change of one model, and of themselves no more than a cluster."""

MORE: Mapping[Way, str] = {
    "choose": "changes of all models with what each counts",
    "respond": "changes of all models with what each counts",
    "move": "a cluster that follows from the model they trained",
    "personal": "models of their own",
}
"""What the others send, by what their clients do."""


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

    def plain(self) -> dict[str, Plain]:
        """For the wire."""
        return asdict(self)


def truthful(epsilon: float, K: int) -> float:
    """How often a client says its own cluster of K: e^epsilon times as often as any single other one."""
    return 1 / (1 + (K - 1) * math.exp(-epsilon))


def why_not_private(objective: Objective, weights: AssignmentRule, distance: Distance | None) -> str | None:
    """What else the answers of such a round would tell; None: the change of one model and a cluster are all."""
    if not isinstance(weights, ONE_CHANGE):
        return f"with weights {weights.name} clients send {MORE[weights.way]}, for which there is no noise here"
    if not isinstance(objective, Conditional):
        return f"with the objective {objective.name} clients send counts or moments, for which there is no noise here"
    if distance is not None and distance.needs != "updates":
        return f"for the distance {distance.name} clients send facts about their data, for which there is no noise here"
    return None
