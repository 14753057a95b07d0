"""How much a client's answers give away together: epsilon at a delta, and the noise that keeps within a budget.

The arithmetic is that of `dp-accounting` (extra `privacy`): privacy loss distributions, whose composition holds even
where every question depends on the answers before. Each answer is a Gaussian mechanism; in `local` runs of methods
whose clients choose, with a randomised response before it. No gain is claimed from asking only some of the clients: who
is asked follows from the seed, which is no secret.
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
"""Steps in which privacy losses are counted, rounded to the safe side."""
MOST_STEPS = 20_000
"""Where losses are large the steps are, too, so that there are about so many: none of it is private anyway."""
EXACT = 1e-4
"""To what part a noise is found."""
MOST_NOISE, MOST_CHOICE = 1e7, 50.0
CHOICE_SHARE = 0.5
"""What all choices together may take of a budget, if nobody says."""


@dataclass(frozen=True)
class Answer:
    """What one answer of a client gives away."""

    ratio: float
    """Standard deviation of the noise over what the client's data can change."""
    choice: float | None = None
    """The epsilon of the cluster that it says; None: it says none of its own choosing."""


@lru_cache(maxsize=4096)
def epsilon(answer: Answer, count: int, delta: float) -> float:
    """What `count` such answers give away together; 0 for none."""
    if count == 0:
        return 0.0
    ratio = answer.ratio / math.sqrt(count)  # so many Gaussians are one of less noise
    if answer.choice is None:
        with np.errstate(divide="ignore"):  # the library takes a logarithm of 0 where epsilon is 0
            return float(_library("gaussian_mechanism").get_epsilon_gaussian(ratio, delta))
    most = epsilon(Answer(answer.ratio), count, delta) + count * answer.choice
    grid = max(GRID, most / MOST_STEPS)
    gaussian = _distributions().from_gaussian_mechanism(ratio, value_discretization_interval=grid)
    return float(_choices(answer.choice, count, grid).compose(gaussian).get_epsilon_for_delta(delta))


@lru_cache(maxsize=64)
def _choices(choice: float, count: int, grid: float = GRID) -> Any:
    """The privacy loss of so many choices.

    Two clusters are the worst case: no mechanism with this epsilon gives away more than a randomised response over two.
    So the number of clusters does not matter, nor whether it changes.
    """
    one = _distributions().from_randomized_response(
        noise_parameter=2 / (1 + math.exp(choice)), num_buckets=2, value_discretization_interval=grid
    )
    # the library's accountant would count repetitions of this event once, so they are composed here
    return one.self_compose(count)


def noise_for(budget: float, delta: float, count: int, choice: float | None = None) -> float:
    """The least `Answer.ratio` with which `count` answers stay within the budget."""

    def spent(ratio: float) -> float:
        return epsilon(Answer(ratio, choice), count, delta)

    if spent(MOST_NOISE) > budget:
        raise ConfigError(
            f"privacy_epsilon={budget:g} cannot be kept with privacy_choice={choice:g} in {count} rounds, whatever the "
            "noise: give a smaller privacy_choice, or none, or fewer rounds"
        )
    return _least(lambda ratio: spent(ratio) <= budget, MOST_NOISE)


def choice_for(budget: float, delta: float, count: int) -> float:
    """The largest epsilon of a choice with which `count` of them take no more than their share of the budget."""
    share = CHOICE_SHARE * budget

    def fits(part: float) -> bool:
        return float(_choices(1 / part, count).get_epsilon_for_delta(delta)) <= share

    return 1 / _least(fits, MOST_CHOICE * count / share)


def _least(fits: Callable[[float], bool], high: float) -> float:
    """The least value that fits, to `EXACT` and on the safe side; `high` fits, and so does all that is larger."""
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
    """A part of dp-accounting, which takes a second to import."""
    from importlib import import_module

    try:
        return import_module(f"dp_accounting.{module}")
    except ModuleNotFoundError:
        raise ConfigError(
            "a private run needs an accountant, which is an extra: pip install 'coterie[privacy]'"
        ) from None
