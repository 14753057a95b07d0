"""How the changes of a cluster's members become the one change of its model: the mean, or a robust alternative.

n members, changes v_1 .. v_n in R^P, every client counting once.

median     coordinate by coordinate the middle value; of an even number the mean of the two middle ones
trimmed    coordinate by coordinate the mean of what is left without the g largest and the g smallest values,
           g = ceil(share n), or as many as leave one or two
krum       s(i) = sum of |v_i - v_j|^2 over the n - f - 2 others j nearest to i; v_i with the least s(i), or the mean of
           the `keep` of them with the least; for n < 2f + 3 the median

Median and trimmed mean stay between the values of the honest clients, in every coordinate, while less than half (at
most g) of the members are attackers. Ties go to the client whose id comes first.
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
    """The mean of the members' changes, or a robust alternative to it."""

    robust: ClassVar[bool] = True
    """Whether it needs every client's change; the mean is made of sums."""
    below: ClassVar[str] = "the mean"
    """What is used with fewer members than `least`, in words."""

    @property
    def least(self) -> int:
        """Smallest number of members that it works for as intended."""
        return 3

    @abstractmethod
    def server_centre(self, changes: Tensor) -> Tensor:
        """Return the one change (P,) of changes (n, P)."""


@register("mean")
@dataclass(frozen=True)
class Mean(Combine):
    """The weighted mean: clients send sums, and one of them can move it anywhere."""

    robust: ClassVar[bool] = False

    @property
    def least(self) -> int:
        return 1

    def server_centre(self, changes: Tensor) -> Tensor:
        return changes.mean(dim=0)


@register("median")
@dataclass(frozen=True)
class Median(Combine):
    """Coordinate by coordinate the median. (Yin et al. 2018)"""

    def server_centre(self, changes: Tensor) -> Tensor:
        return median(changes)


@register("trimmed")
@dataclass(frozen=True)
class Trimmed(Combine):
    """Coordinate by coordinate the mean without the largest and the smallest values. (Yin et al. 2018)"""

    share: float = 0.1
    """beta: part of the members that is left out at each end, rounded up."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(
                f"trimmed leaves out a share above 0 and below 0.5 at each end, got share={self.share:g}: for nearly "
                "all of them use combine=median"
            )

    def server_centre(self, changes: Tensor) -> Tensor:
        return trimmed_mean(changes, self.share)


@register("krum")
@dataclass(frozen=True)
class Krum(Combine):
    """The change that has the least squared distance to its nearest neighbours, or the mean of some such.

    (Krum and multi-Krum, Blanchard et al. 2017)
    """

    attackers: int
    """f: largest number of attackers among the members of a cluster."""
    keep: int = 1
    """m of multi-Krum: the mean of this many with the least scores is taken, at most n - f - 2."""
    below: ClassVar[str] = "the median"

    def __post_init__(self) -> None:
        if self.attackers < 1 or self.keep < 1:
            raise ConfigError(
                f"krum takes attackers and keep of at least 1, got attackers={self.attackers}, keep={self.keep}: "
                "without attackers use combine=mean"
            )

    @property
    def least(self) -> int:
        return 2 * self.attackers + 3

    def server_centre(self, changes: Tensor) -> Tensor:
        return krum(changes, self.attackers, self.keep)


def read_combine(text: str) -> Combine:
    """Return the member that a text such as `trimmed:share=0.2` names.

    Raises:
        ConfigError: if there is no such member, or a setting does not fit.
    """
    found: Combine = from_text(Combine, text)
    return found


def is_robust(text: object) -> bool:
    """Return whether the text of the option, if one was given, names a robust alternative to the mean."""
    return text is not None and read_combine(str(text)).robust


def median(changes: Tensor) -> Tensor:
    """Return the coordinate-wise result (P,) of changes (n, P)."""
    n = len(changes)
    return _middle(changes, (n - 1) // 2)


def trimmed_mean(changes: Tensor, share: float) -> Tensor:
    """Return the coordinate-wise result (P,) of changes (n, P)."""
    n = len(changes)
    whole = math.ceil(share * n - 1e-9)  # 0.1 * 30 is a little more than 3
    return _middle(changes, min(whole, (n - 1) // 2))


def _middle(changes: Tensor, cut: int) -> Tensor:
    """Return the mean of the sorted values without `cut` of them at each end, (P,)."""
    ordered = changes.sort(dim=0).values
    return ordered[cut : len(changes) - cut].mean(dim=0)


def krum_scores(changes: Tensor, attackers: int) -> Tensor:
    """Return s(i), (n,), of changes (n, P)."""
    # by differences: through products the distances of long vectors near each other would drown in rounding
    apart = torch.cdist(changes.double(), changes.double(), compute_mode="donot_use_mm_for_euclid_dist") ** 2
    nearest = apart.fill_diagonal_(torch.inf).sort(dim=1).values
    return nearest[:, : len(changes) - attackers - 2].sum(dim=1)


def krum(changes: Tensor, attackers: int, keep: int) -> Tensor:
    """Return the change (P,) that Krum selects from (n, P), or the mean of `keep`; the first of equal scores."""
    n = len(changes)
    if n < 2 * attackers + 3:
        return median(changes)
    best = krum_scores(changes, attackers).sort(stable=True).indices[: min(keep, n - attackers - 2)]
    return changes[best.sort().values].mean(dim=0)
