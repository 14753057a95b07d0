"""Learning-rate schedules: the learning rate of each round. The server evaluates them and sends the rate.

Every schedule can begin with a linear warm-up: in the first `warmup` rounds the rate rises in equal steps and reaches
the full rate in the last of them. The schedule itself then counts its rounds from the end of the warm-up.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from coterie.core.registry import Registered, register
from coterie.errors import ConfigError


@dataclass(frozen=True)
class Schedule(Registered, ABC, family="learning-rate schedule"):
    """Base of the schedules.

    Args:
        warmup: Number of rounds in which the learning rate rises linearly to its full value.

    Raises:
        ConfigError: if a value is out of range.
    """

    warmup: int = field(default=0, kw_only=True)

    @property
    def needs_rounds(self) -> bool:
        """Whether the rate of a round depends on the number of rounds of the run."""
        return False

    def __post_init__(self) -> None:
        if self.warmup < 0:
            raise ConfigError(f"{self.name}: warmup must be at least 0 rounds, got {self.warmup}")

    @abstractmethod
    def factor_at(self, round_: int, rounds: int) -> float:
        """Return the factor on the learning rate in round `round_`, counted from 0, of `rounds`; without warm-up."""

    def rate(self, lr: float, round_: int, rounds: int) -> float:
        """Return the learning rate of a round.

        Args:
            lr: Full learning rate.
            round_: Number of the round, from 0.
            rounds: Number of rounds of the run.

        Returns:
            The learning rate that clients use in this round.
        """
        if round_ < self.warmup:
            return lr * (round_ + 1) / self.warmup
        return lr * self.factor_at(round_ - self.warmup, max(1, rounds - self.warmup))


@register("constant")
@dataclass(frozen=True)
class Constant(Schedule):
    """The same learning rate in every round."""

    def factor_at(self, round_: int, rounds: int) -> float:
        return 1.0


@register("exponential-decay")
@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """The learning rate is multiplied by a factor after every round.

    Args:
        factor: Factor, above 0 and at most 1.
        warmup: Number of rounds in which the learning rate rises linearly to its full value.

    Raises:
        ConfigError: if a value is out of range.
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
    """The learning rate is multiplied by a factor every few rounds.

    Args:
        every: Number of rounds between two decays.
        factor: Factor, above 0 and at most 1.
        warmup: Number of rounds in which the learning rate rises linearly to its full value.

    Raises:
        ConfigError: if a value is out of range.
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
    """The learning rate falls along half a cosine from its full value towards a floor over the rounds of the run.

    Args:
        floor: Share of the full learning rate that the cosine ends at, from 0 to 1.
        warmup: Number of rounds in which the learning rate rises linearly to its full value.

    Raises:
        ConfigError: if a value is out of range.
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
        done = min(1.0, round_ / rounds)  # rounds after the planned ones stay at the floor
        return self.floor + (1 - self.floor) * (1 + math.cos(math.pi * done)) / 2


def _check_factor(schedule: str, factor: float) -> None:
    if not 0 < factor <= 1:
        raise ConfigError(f"{schedule}: factor must be above 0 and at most 1, got {factor}")
