"""Privacy accountant: the total privacy loss (epsilon at a delta) of a client's replies, and the noise for a budget.

The library `dp-accounting` (extra `privacy`) computes privacy loss distributions, whose composition is valid for
adaptive queries. Each reply is a Gaussian mechanism. In `local` runs of methods whose clients choose a cluster, it is
composed with randomised response. There is no privacy amplification by sampling of clients, since the sample depends on
the seed, which is not secret.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from coterie.errors import ConfigError

GRID = 1e-3
"""Discretisation interval of privacy losses, which are rounded up."""
MOST_STEPS = 20_000
"""Approximate maximum number of intervals; for large privacy losses, the intervals are longer."""
EXACT = 1e-4
"""Relative precision of computed noise."""
MOST_NOISE, MOST_CHOICE = 1e7, 50.0
"""Upper ends of the searches for the noise and for the epsilon of a choice."""
CHOICE_SHARE = 0.5
"""Default share of the budget for all choices of a cluster together."""


@dataclass(frozen=True)
class Answer:
    """Privacy mechanism of one reply of a client."""

    ratio: float
    """Noise multiplier: standard deviation of the noise divided by the sensitivity."""
    choice: float | None = None
    """Epsilon of the randomised response for the chosen cluster; None if the client does not choose a cluster."""


@lru_cache(maxsize=4096)
def epsilon(answer: Answer, count: int, delta: float) -> float:
    """Return the total privacy loss of several replies.

    Args:
        answer: Mechanism of each reply.
        count: Number of replies.
        delta: Delta of the guarantee.

    Returns:
        Epsilon of the composition; 0 without replies.
    """
    if count == 0:
        return 0.0
    ratio = answer.ratio / math.sqrt(count)  # the composition of Gaussian mechanisms is one with less noise
    if answer.choice is None:
        with np.errstate(divide="ignore"):  # if epsilon is 0, the library computes the logarithm of 0
            return float(_library("gaussian_mechanism").get_epsilon_gaussian(ratio, delta))
    most = epsilon(Answer(answer.ratio), count, delta) + count * answer.choice
    grid = max(GRID, most / MOST_STEPS)
    gaussian = _distributions().from_gaussian_mechanism(ratio, value_discretization_interval=grid)
    return float(_choices(answer.choice, count, grid).compose(gaussian).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _choices(choice: float, count: int, grid: float = GRID) -> Any:
    """Return the privacy loss distribution of `count` randomised responses with epsilon `choice`.

    Two clusters are the worst case, since no mechanism with this epsilon has a larger privacy loss than randomised
    response with two values. Therefore the number of clusters and its changes do not matter.
    """
    one = _distributions().from_randomized_response(
        noise_parameter=2 / (1 + math.exp(choice)), num_buckets=2, value_discretization_interval=grid
    )
    # the accountant of the library would count repetitions of this event once, so they are composed here
    return one.self_compose(count)


def noise_for(budget: float, delta: float, count: int, choice: float | None = None) -> float:
    """Return the smallest noise multiplier with which replies stay within a privacy budget.

    Args:
        budget: Epsilon of the budget.
        delta: Delta of the guarantee.
        count: Number of replies.
        choice: Epsilon of the randomised response for the chosen cluster; None without choices.

    Raises:
        ConfigError: if the choices alone exceed the budget.
    """

    def spent(ratio: float) -> float:
        return epsilon(Answer(ratio, choice), count, delta)

    if spent(MOST_NOISE) > budget:
        raise ConfigError(
            f"privacy_epsilon={budget:g} is exceeded with privacy_choice={choice:g} in {count} rounds for any noise: "
            "choose a smaller privacy_choice, leave it out, or use fewer rounds"
        )
    return _least(lambda ratio: spent(ratio) <= budget, MOST_NOISE)


def choice_for(budget: float, delta: float, count: int) -> float:
    """Return the largest epsilon of randomised response with which all choices use at most their share of a budget.

    Args:
        budget: Epsilon of the whole budget.
        delta: Delta of the guarantee.
        count: Number of choices.
    """
    share = CHOICE_SHARE * budget

    def fits(part: float) -> bool:
        return float(_choices(1 / part, count).get_epsilon_for_delta(delta)) <= share

    return 1 / _least(fits, MOST_CHOICE * count / share)


def _least(fits: Callable[[float], bool], high: float) -> float:
    """Return the smallest value that fits, rounded up to the precision `EXACT`; `high` and larger values must fit."""
    low = high
    while fits(low) and low > 1e-6:
        high, low = low, low / 4
    while high / low > 1 + EXACT:
        middle = math.sqrt(high * low)
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _distributions() -> Any:
    return _library("pld.privacy_loss_distribution")


def _library(module: str) -> Any:
    """Import a module of dp-accounting, which takes a second."""
    from importlib import import_module

    try:
        return import_module(f"dp_accounting.{module}")
    except ModuleNotFoundError:
        raise ConfigError(
            "differential privacy needs the package dp-accounting: install it by pip install 'coterie[privacy]'"
        ) from None
