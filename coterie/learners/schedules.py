"""Learning-rate schedules: the learning rate of each round, which the server computes and sends to the clients.

Every schedule supports a linear warm-up: in the first `warmup` rounds, the learning rate increases in equal steps to
the full rate. The schedule itself starts after the warm-up.

Example:
    >>> from coterie.learners import StepDecay
    >>> schedule = StepDecay(every=10, factor=0.5)
    >>> schedule.rate(0.1, round_=9, rounds=40), schedule.rate(0.1, round_=10, rounds=40)
    (0.1, 0.05)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from coterie.core.registry import Registered, register
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Schedule(Registered, ABC, family="learning-rate schedule"):
    """Base class of learning-rate schedules.

    Args:
        warmup: Number of warm-up rounds, in which the learning rate increases linearly.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.core.plain import from_text
        >>> from coterie.learners import Schedule
        >>> from_text(Schedule, "cosine:warmup=5").warmup
        5
    """

    warmup: int = field(default=0, kw_only=True)

    @property
    def needs_rounds(self) -> bool:
        """Whether the learning rate of a round depends on the number of rounds of the run."""
        return False

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ConfigError(f"{self.name}: warmup must be at least 0 rounds, got {self.warmup}")

    @abstractmethod
    def factor_at(self, round_: int, rounds: int) -> float:
        """Return the factor of the learning rate in a round after the warm-up.

        Args:
            round_: Number of the round, from 0, counted from the end of the warm-up.
            rounds: Number of rounds after the warm-up.
        """

    def rate(self, lr: float, round_: int, rounds: int) -> float:
        """Return the learning rate of a round.

        Args:
            lr: Full learning rate.
            round_: Number of the round, from 0.
            rounds: Number of rounds of the run.

        Returns:
            The learning rate of the clients in this round.
        """
        if round_ < self.warmup:
            return lr * (round_ + 1) / self.warmup
        return lr * self.factor_at(round_ - self.warmup, max(1, rounds - self.warmup))


@register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """Constant learning rate.

    Example:
        >>> from coterie.learners import Constant
        >>> Constant().rate(0.1, round_=7, rounds=10)
        0.1
    """

    def factor_at(self, round_: int, rounds: int) -> float:
        return 1.0


@register("exponential-decay")
@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """Multiply the learning rate by a factor after every round.

    Args:
        factor: Factor, above 0 and at most 1.
        warmup: Number of warm-up rounds, in which the learning rate increases linearly.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.learners import ExponentialDecay
        >>> [ExponentialDecay(0.5, warmup=1).rate(1.0, round_, rounds=4) for round_ in range(4)]
        [1.0, 1.0, 0.5, 0.25]
    """

    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor(self.name, self.factor)

    def factor_at(self, round_: int, rounds: int) -> float:
        return self.factor**round_


@register("step-decay")
@dataclass(frozen=True)
class StepDecay(Schedule):
    """Multiply the learning rate by a factor every few rounds.

    Args:
        every: Number of rounds between two decays.
        factor: Factor, above 0 and at most 1.
        warmup: Number of warm-up rounds, in which the learning rate increases linearly.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.learners import StepDecay
        >>> [StepDecay(every=2, factor=0.5).rate(0.8, round_=t, rounds=6) for t in range(6)]
        [0.8, 0.8, 0.4, 0.4, 0.2, 0.2]
    """

    every: int
    factor: float

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_factor(self.name, self.factor)
        if self.every < 1:
            raise ConfigError(f"{self.name}: every must be at least 1 round, got {self.every}")

    def factor_at(self, round_: int, rounds: int) -> float:
        return self.factor ** (round_ // self.every)


@register("cosine")
@dataclass(frozen=True)
class Cosine(Schedule):
    """Decrease the learning rate along half a cosine over the rounds of the run (cosine annealing).

    Args:
        floor: Final learning rate as a share of the full one, from 0 to 1.
        warmup: Number of warm-up rounds, in which the learning rate increases linearly.

    Raises:
        ConfigError: if a value is out of range.

    Example:
        >>> from coterie.learners import Cosine
        >>> [round(Cosine().rate(0.1, round_=t, rounds=11), 3) for t in (0, 5, 10)]
        [0.1, 0.057, 0.002]
    """

    floor: float = 0.0

    @property
    def needs_rounds(self) -> bool:
        return True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.floor <= 1:
            raise ConfigError(f"{self.name}: floor must be between 0 and 1, got {self.floor}")

    def factor_at(self, round_: int, rounds: int) -> float:
        done = min(1.0, round_ / rounds)  # the floor also applies to rounds after the planned ones
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


def _check_factor(schedule: str, factor: float) -> None:
    if not 0 < factor <= 1:
        raise ConfigError(f"{schedule}: factor must be above 0 and at most 1, got {factor}")
