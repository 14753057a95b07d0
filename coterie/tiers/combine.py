"""How the changes of a cluster's members become the one change of its model; all but the mean bear some liars.

Only settings are here; what the server computes is in `server/robust.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from coterie.errors import ConfigError
from coterie.tiers.members import read_named


class Combine(Protocol):
    """A way to combine."""

    name: ClassVar[str]

    @property
    def least(self) -> int:
        """So many members it takes to do what it is for; with fewer something plainer is done (`below`)."""
        ...

    @property
    def below(self) -> str:
        """What is done with fewer, in words."""
        ...


@dataclass(frozen=True)
class Mean:
    """The weighted mean: clients send sums, and one of them can move it anywhere."""

    name: ClassVar[str] = "mean"
    least: ClassVar[int] = 1
    below: ClassVar[str] = "the mean"


@dataclass(frozen=True)
class Median:
    """Coordinate by coordinate the median. (Yin et al. 2018)"""

    name: ClassVar[str] = "median"
    least: ClassVar[int] = 3
    below: ClassVar[str] = "the mean"


@dataclass(frozen=True)
class Trimmed:
    """Coordinate by coordinate the mean without the largest and the smallest values. (Yin et al. 2018)"""

    share: float = 0.1
    """beta: which part of the members is left out at each end, rounded up."""
    name: ClassVar[str] = "trimmed"
    least: ClassVar[int] = 3
    below: ClassVar[str] = "the mean"

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise ConfigError(
                f"trimmed leaves out a share above 0 and below 0.5 at each end, got share={self.share:g}: for nearly "
                "all of them use combine=median"
            )


@dataclass(frozen=True)
class Krum:
    """The change that has the least squared distance to its nearest neighbours, or the mean of some such.

    (Krum and multi-Krum, Blanchard et al. 2017)
    """

    liars: int
    """f: how many of a cluster's members may lie."""
    keep: int = 1
    """m of multi-Krum: the mean of so many with the least scores is taken, at most n - f - 2."""
    name: ClassVar[str] = "krum"
    below: ClassVar[str] = "the median"

    def __post_init__(self) -> None:
        if self.liars < 1 or self.keep < 1:
            raise ConfigError(
                f"krum takes liars and keep of at least 1, got liars={self.liars}, keep={self.keep}: without liars "
                "use combine=mean"
            )

    @property
    def least(self) -> int:
        return 2 * self.liars + 3


COMBINE: dict[str, Callable[..., Combine]] = {m.name: m for m in (Mean, Median, Trimmed, Krum)}


def read_combine(text: str) -> Combine:
    """The way to combine that a text such as `trimmed:share=0.2` names."""
    found: Combine = read_named("combine", COMBINE, text)
    return found


def is_robust(text: object) -> bool:
    """Whether the option's text, if one was given, names another way than the mean."""
    return text is not None and not isinstance(read_combine(str(text)), Mean)
