"""Average of the model changes of a cluster's members: the mean, or a robust alternative.

Let v_1, ..., v_n in R^P be the changes of n members. All members have the same weight in robust alternatives.

median     coordinate-wise median; for even n the mean of the two middle values
trimmed    coordinate-wise mean without the g largest and the g smallest values, where g = ceil(share n), but at least
           one or two values remain
krum       v_i with the smallest score s(i), the sum of |v_i - v_j|^2 over the n - f - 2 nearest other members j, or the
           mean of the `keep` changes with the smallest scores; the median if n < 2f + 3

In every coordinate, the median (trimmed mean) stays within the range of the honest clients if fewer than half (at most
g) of the members are attackers. Ties are resolved in the order of the clients' ids.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from coterie.core.plain import from_text
from coterie.core.registry import Registered, register
from coterie.errors import ConfigError


class Combine(Registered, ABC, family="combine"):
    """Base class of averages of the members' changes."""

    robust: ClassVar[bool] = True
    """Whether the change of every client is needed; the mean is computed from sums."""
    below: ClassVar[str] = "the mean"
    """Description of the average that is used with fewer members than `least`."""

    @property
    def least(self) -> int:
        """Smallest number of members for which the average works as intended."""
        return 3

    @abstractmethod
    def server_centre(self, changes: Tensor) -> Tensor:
        """Return the average, (P,), of changes (n, P)."""


@register("mean")
@dataclass(frozen=True)
class Mean(Combine):
    """Weighted mean, computed from sums; a single attacker can change it arbitrarily."""

    robust: ClassVar[bool] = False

    @property
    def least(self) -> int:
        return 1

    def server_centre(self, changes: Tensor) -> Tensor:
        return changes.mean(dim=0)


@register("median")
@dataclass(frozen=True)
class Median(Combine):
    """Coordinate-wise median. (Yin et al. 2018)"""

    def server_centre(self, changes: Tensor) -> Tensor:
        return median(changes)


@register("trimmed")
@dataclass(frozen=True)
class Trimmed(Combine):
    """Coordinate-wise trimmed mean. (Yin et al. 2018)"""

    share: float = 0.1
    """Share of the values that is removed at each end (beta); the number is rounded up."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(
                f"the share of the trimmed mean must be above 0 and below 0.5, got share={self.share:g}: for a larger "
                "share use combine=median"
            )

    def server_centre(self, changes: Tensor) -> Tensor:
        return trimmed_mean(changes, self.share)


@register("krum")
@dataclass(frozen=True)
class Krum(Combine):
    """Change with the smallest sum of squared distances to its nearest neighbours, or the mean of several such changes.

    Krum and multi-Krum (Blanchard et al. 2017).
    """

    attackers: int
    """Maximum number of attackers among the members of a cluster (f)."""
    keep: int = 1
    """Number of changes with the smallest scores whose mean is taken (m of multi-Krum), at most n - f - 2."""
    below: ClassVar[str] = "the median"

    def __post_init__(self) -> None:
        if self.attackers < 1 or self.keep < 1:
            raise ConfigError(
                f"krum needs attackers and keep of at least 1, got attackers={self.attackers}, keep={self.keep}: "
                "without attackers use combine=mean"
            )

    @property
    def least(self) -> int:
        return 2 * self.attackers + 3

    def server_centre(self, changes: Tensor) -> Tensor:
        return krum(changes, self.attackers, self.keep)


def read_combine(text: str) -> Combine:
    """Return the average that a text such as `trimmed:share=0.2` describes.

    Raises:
        ConfigError: if the name is unknown or a setting is not allowed.
    """
    found: Combine = from_text(Combine, text)
    return found


def is_robust(text: object) -> bool:
    """Return whether the value of the option `combine` describes a robust alternative to the mean; False for None."""
    return text is not None and read_combine(str(text)).robust


def median(changes: Tensor) -> Tensor:
    """Return the coordinate-wise median, (P,), of changes (n, P)."""
    n = len(changes)
    return _middle(changes, (n - 1) // 2)


def trimmed_mean(changes: Tensor, share: float) -> Tensor:
    """Return the coordinate-wise trimmed mean, (P,), of changes (n, P)."""
    n = len(changes)
    cut = math.ceil(share * n - 1e-9)  # 0.1 * 30 is a little more than 3
    return _middle(changes, min(cut, (n - 1) // 2))


def _middle(changes: Tensor, cut: int) -> Tensor:
    """Return the coordinate-wise mean without the `cut` largest and smallest values, (P,)."""
    ordered = changes.sort(dim=0).values
    return ordered[cut : len(changes) - cut].mean(dim=0)


def krum_scores(changes: Tensor, attackers: int) -> Tensor:
    """Return the scores s(i), (n,), of changes (n, P)."""
    # by differences, since matrix products would lose small distances between long vectors by rounding
    squares = torch.cdist(changes.double(), changes.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    nearest = squares.fill_diagonal_(torch.inf).sort(dim=1).values
    return nearest[:, : len(changes) - attackers - 2].sum(dim=1)


def krum(changes: Tensor, attackers: int, keep: int) -> Tensor:
    """Return the change that Krum selects, (P,), or the mean of `keep` selected changes; ties go to the first.

    Args:
        changes: Changes of the members, (n, P).
        attackers: Maximum number of attackers (f).
        keep: Number of selected changes.
    """
    n = len(changes)
    if n < 2 * attackers + 3:
        return median(changes)
    best = krum_scores(changes, attackers).sort(stable=True).indices[: min(keep, n - attackers - 2)]
    return changes[best.sort().values].mean(dim=0)
